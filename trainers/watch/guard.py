"""Prevents errors of hooks from affecting the user's script, and installs hooks after an import."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
# Names of the hooks that raised an error.
failed: set[str] = set()


def hook(function: _Hook) -> _Hook:
    """Make a hook safe: print its first error, and raise none in the script."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - watching must never end the script
            if function.__name__ not in failed:
                failed.add(function.__name__)
                print("Internal error of Rankscope; the script itself continues:", file=sys.stderr)
                traceback.print_exc()
            return None

    return guarded  # type: ignore[return-value]


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function after the first import of a module by any code."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name, self._callback = name, callback

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own specification, with a loader that calls the function at the end."""
        del path, target
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute, callback = spec.loader.exec_module, self._callback

        def execute_and_install(module: ModuleType) -> None:
            execute(module)
            callback()

        spec.loader.exec_module = execute_and_install  # type: ignore[method-assign]
        return spec


def after_import(name: str, callback: Callable[[], None]) -> None:
    """Call a function once a module is imported: now, or after its first import."""
    if name in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, AfterImport(name, callback))
