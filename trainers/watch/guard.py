"""Keeps errors of the hooks out of the script that they watch."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
# Names of the hooks that raised an error.
failed: set[str] = set()


def hook(function: _Hook) -> _Hook:
    """Make a hook safe in a script: its first error is printed, and none is raised."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - watching must never end the script
            if function.__name__ not in failed:
                failed.add(function.__name__)
                print("An error of Rankscope, not of the script, which continues:", file=sys.stderr)
                traceback.print_exc()
            return None

    return guarded  # type: ignore[return-value]
