"""Errors that a person can do something about, said as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import gradio as gr

from ddp_gui.catalogue import CatalogueError
from ddp_gui.launcher import LaunchError
from ddp_gui.own_data import LookError

Result = TypeVar("Result")


def in_plain_words(action: Callable[[], Result]) -> Result:
    """Turn what a user can cause into an error that the page shows as it is."""
    try:
        return action()
    except (ValueError, OSError, LaunchError, CatalogueError, LookError) as error:
        raise gr.Error(str(error), print_exception=False) from error
