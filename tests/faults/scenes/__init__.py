"""The scenes by theme. Importing a module registers its faults."""

from __future__ import annotations

import importlib

THEMES = ("signals", "ranks", "disks", "damage", "others", "rude")


def load_all() -> None:
    """Register every fault."""
    for theme in THEMES:
        importlib.import_module(f"tests.faults.scenes.{theme}")
