"""The named endpoints of the communication check, for the page and for `gradio_client` alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from ddp_gui import machine
from ddp_gui.communication import Check, CommunicationChecks
from ddp_gui.machine_report.report import MachineReport


class MachineApi:
    """Starts, shows and stops checks; results are JSON values."""

    def __init__(self, checks: CommunicationChecks, report: MachineReport) -> None:
        self._checks = checks
        self._report = report

    def check_communication(self, num_ranks: int = 2) -> dict[str, Any]:
        """Start real all-reduces between that many ranks; one check at a time."""
        busy_with = self._report.live_run_ids()
        return _in_plain_words(lambda: self._checks.start(num_ranks, machine.look(), busy_with))

    def communication_check(self, check_id: str) -> dict[str, Any]:
        """Return a check's state and what it has measured so far."""
        return _in_plain_words(lambda: self._checks.look(check_id))

    def stop_communication_check(self, check_id: str) -> dict[str, Any]:
        """End a check; when this returns nothing of it is left."""
        return _in_plain_words(lambda: self._checks.stop(check_id))

    def register(self) -> None:
        """Add the endpoints to the Gradio app under construction."""
        # Not queued: a click must not wait behind another person's.
        for endpoint in (
            self.check_communication,
            self.communication_check,
            self.stop_communication_check,
        ):
            gr.api(endpoint, api_name=endpoint.__name__, queue=False)


def _in_plain_words(action: Callable[[], Check]) -> dict[str, Any]:
    try:
        return action().to_json()
    except (ValueError, OSError) as error:
        raise gr.Error(str(error), print_exception=False) from error
