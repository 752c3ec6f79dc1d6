"""The scenes of the faults by name."""

from __future__ import annotations

from tests.faults.trial import Scene

FAULTS: dict[str, Scene] = {}


def add(name: str, scene: Scene) -> None:
    """Register a fault."""
    assert name not in FAULTS, f"two faults are called {name}"
    FAULTS[name] = scene
