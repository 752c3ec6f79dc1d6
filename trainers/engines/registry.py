"""The engines by name."""

from __future__ import annotations

from trainers.engines.base import Engine
from trainers.engines.local.engine import LocalEngine

_ENGINES: dict[str, Engine] = {LocalEngine.name: LocalEngine()}


class UnknownEngineError(ValueError):
    """There is no engine of this name here."""


def register(engine: Engine) -> None:
    """Make an engine known: runs whose status names it are its own from now on."""
    _ENGINES[engine.name] = engine


def is_known(name: str) -> bool:
    """Tell whether there is an engine of this name here."""
    return name in _ENGINES


def named(name: str) -> Engine:
    """Return the engine of this name.

    Raises:
        UnknownEngineError: when there is none.
    """
    if not is_known(name):
        known = ", ".join(sorted(_ENGINES))
        raise UnknownEngineError(f"engine is {name[:80]!r}, but allowed is: {known}")
    return _ENGINES[name]
