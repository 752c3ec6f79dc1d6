"""Registry of engines: the kinds that the command line offers, and the engine that runs under each name."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path

from trainers.engines import base
from trainers.engines.base import Engine, EngineKind
from trainers.engines.local.engine import LocalEngine

_ENGINES: dict[str, Engine] = {LocalEngine.name: LocalEngine()}


class UnknownEngineError(ValueError):
    """No engine of this name is registered."""


def register(engine: Engine) -> None:
    """Register an engine. It owns all runs whose status names it."""
    _ENGINES[engine.name] = engine


def is_known(name: str) -> bool:
    """True if an engine of this name is registered."""
    return name in _ENGINES


def get_engine(name: str) -> Engine:
    """Return the engine of this name.

    Raises:
        UnknownEngineError: If it is not registered.
    """
    if not is_known(name):
        known = ", ".join(sorted(_ENGINES))
        raise UnknownEngineError(f"engine is {name[:80]!r}; allowed: {known}")
    return _ENGINES[name]


@functools.cache
def kinds() -> Mapping[str, EngineKind]:
    """Return the engines that the command line offers, by name: the local engine first, then the others
    sorted.

    Each folder of trainers/engines with a module `register` adds its own.
    """
    folder = Path(__file__).parent
    for file in sorted(folder.glob("*/register.py")):
        importlib.import_module(f"{__package__}.{file.parent.name}.register")
    return dict(sorted(base.KINDS.items(), key=lambda item: (item[0] != LocalEngine.name, item[0])))
