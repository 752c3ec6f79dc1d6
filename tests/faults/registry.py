"""The faults by name: scene, number of trials in the full suite, time limit until the state is correct."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.trial import Scene

LIMIT_S = 15.0
HANG_LIMIT_S = 45.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row of the table."""

    name: str
    scene: Scene
    times: int
    limit_s: float


FAULTS: dict[str, Fault] = {}


def add(name: str, scene: Scene, *, times: int = 10, limit_s: float = LIMIT_S) -> None:
    """Register a fault."""
    assert name not in FAULTS, f"two faults are called {name}"
    FAULTS[name] = Fault(name=name, scene=scene, times=times, limit_s=limit_s)


def fault(name: str, *, times: int = 10, limit_s: float = LIMIT_S) -> Callable[[Scene], Scene]:
    """Put a scene into the table of faults."""
    """Return a decorator that registers a scene as a fault."""

    def register(scene: Scene) -> Scene:
        add(name, scene, times=times, limit_s=limit_s)
        return scene

    return register
