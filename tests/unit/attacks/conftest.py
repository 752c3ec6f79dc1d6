"""Fixtures of the page's tests."""

from __future__ import annotations

from tests.unit.ddp_gui.conftest import catalogue, place, supervisors  # noqa: F401
