"""Registry of engines by name."""

from __future__ import annotations

from trainers.engines.base import Engine
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


def named(name: str) -> Engine:
    """Return the engine of this name.

    Raises:
        UnknownEngineError: If it is not registered.
    """
    if not is_known(name):
        known = ", ".join(sorted(_ENGINES))
        raise UnknownEngineError(f"engine is {name[:80]!r}, but allowed is: {known}")
    return _ENGINES[name]
