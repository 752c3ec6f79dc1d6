"""The named endpoint of what a teacher sets for the class."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ddp_gui.auth import rights
from ddp_gui.gradio_routes.endpoints import register
from ddp_gui.launch.user_errors import in_plain_words
from ddp_gui.runs.runs import RunStore


class ClassApi:
    """Shows and changes the settings; results are JSON values."""

    def __init__(self, store: RunStore) -> None:
        self._settings = store.class_settings

    def class_settings(self, changes: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the class's settings, after a teacher's changes to those that are named."""

        def change() -> dict[str, Any]:
            if not changes:
                return asdict(self._settings.read())
            rights.require_teacher("change the settings of the class")
            return asdict(self._settings.change(**changes))

        return in_plain_words(change)

    def register(self) -> None:
        """Add the endpoint to the Gradio app under construction."""
        register(self.class_settings)
