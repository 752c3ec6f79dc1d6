"""The scenes by theme; importing a module puts its faults into the table."""

from __future__ import annotations

import importlib

THEMES = ("signals", "ranks", "disks", "damage", "people", "clocks", "others", "rude")


def load_all() -> None:
    """Put every fault into the table."""
    for theme in THEMES:
        importlib.import_module(f"tests.faults.scenes.{theme}")
