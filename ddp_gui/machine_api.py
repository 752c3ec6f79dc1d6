"""The named endpoints of the communication check, for the page and for `gradio_client` alike."""

from __future__ import annotations

from typing import Any

from ddp_gui import machine
from ddp_gui.communication import CommunicationChecks
from ddp_gui.endpoints import register
from ddp_gui.machine_report.report import MachineReport
from ddp_gui.plainly import in_plain_words


class MachineApi:
    """Starts, shows and stops checks; results are JSON values."""

    def __init__(self, checks: CommunicationChecks, report: MachineReport) -> None:
        self._checks = checks
        self._report = report

    def check_communication(self, num_ranks: int = 2) -> dict[str, Any]:
        """Start real all-reduces between that many ranks; one check at a time."""
        busy_with = self._report.live_run_ids()
        return in_plain_words(lambda: self._checks.start(num_ranks, machine.look(), busy_with).to_json())

    def communication_check(self, check_id: str) -> dict[str, Any]:
        """Return a check's state and what it has measured so far."""
        return in_plain_words(lambda: self._checks.look(check_id).to_json())

    def stop_communication_check(self, check_id: str) -> dict[str, Any]:
        """End a check; when this returns nothing of it is left."""
        return in_plain_words(lambda: self._checks.stop(check_id).to_json())

    def register(self) -> None:
        """Add the endpoints to the Gradio app under construction."""
        register(
            self.check_communication,
            self.communication_check,
            self.stop_communication_check,
        )
