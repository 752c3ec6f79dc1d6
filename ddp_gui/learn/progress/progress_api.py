"""The named endpoint that keeps a person's progress with their account."""

from __future__ import annotations

from typing import Any

from ddp_gui.gradio_routes.endpoints import register
from ddp_gui.launch.user_errors import in_plain_words
from ddp_gui.learn.library import Library
from ddp_gui.learn.progress.progress_files import ProgressFiles


class ProgressApi:
    """The endpoint over the files; results are JSON values."""

    def __init__(self, files: ProgressFiles, library: Library) -> None:
        self._files = files
        self._library = library

    def keep_progress(self, lesson: str, progress: dict[str, Any]) -> dict[str, Any]:
        """Keep how far the current user is with a lesson; return what holds, joined with what was known."""
        return in_plain_words(lambda: self._files.keep(self._library.find(lesson).name, progress))

    def register(self) -> None:
        """Add the endpoint to the Gradio app under construction."""
        register(self.keep_progress)
