"""Endpoints and routes of the Machine page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from fastapi import HTTPException

from ddp_gui.auth import rights
from ddp_gui.auth.rights import current_user
from ddp_gui.background.workers import SLOW, GeneratedFile, Router, file_chunks
from ddp_gui.devices import capacity
from ddp_gui.machine.communication import CommunicationCheck, CommunicationChecks, LinkChecks
from ddp_gui.machine.machine_check import MachineChecks
from ddp_gui.machine.report import MachineReport
from ddp_gui.operations import Rate, operation
from ddp_gui.plan.package_install import PackageInstalls
from ddp_gui.queue.scheduler import Scheduler
from ddp_gui.runs.runs import RunStore
from trainers.files.private_files import open_own
from trainers.machine.os_errors import explain

HIDDEN_RUN = "another user's run"


def without_hidden(report: dict[str, Any], is_shown: Callable[[str], bool]) -> dict[str, Any]:
    """Return a report of the machine without ids and users of runs that the current user may not see."""
    return report | {
        "gpus": [_visible_gpu(gpu, is_shown) for gpu in report["gpus"]],
        "runs": [run for run in report["runs"] if is_shown(run["run_id"])],
    }


def _visible_gpu(gpu: dict[str, Any], is_shown: Callable[[str], bool]) -> dict[str, Any]:
    if gpu["processes"] is None:
        return gpu
    return gpu | {"processes": [_visible_process(process, is_shown) for process in gpu["processes"]]}


def _visible_process(process: dict[str, Any], is_shown: Callable[[str], bool]) -> dict[str, Any]:
    if process["run_id"] is None or is_shown(process["run_id"]):
        return process
    return process | {"run_id": None, "name": HIDDEN_RUN, "user": None}


CHECK_RATE = Rate("a check", 6)
MACHINE_CHECK_RATE = Rate("a check of the machine", 2, within_s=300.0)


@dataclass
class MachineApi:
    """Starts, shows and stops checks; results are JSON values."""

    _checks: CommunicationChecks
    _machine_checks: MachineChecks
    _links: LinkChecks
    _installs: PackageInstalls
    _report: MachineReport
    _store: RunStore
    _scheduler: Scheduler

    @operation(rate=CHECK_RATE)
    def check_communication(self, num_ranks: int = 2) -> dict[str, Any]:
        """Start real all-reduces between this number of ranks; one check at a time."""
        runs, person = self._report.live_run_ids(), current_user().name
        return self._visible_check(self._checks.start(num_ranks, capacity.read(), runs, person))

    @operation()
    def communication_check(self, check_id: str) -> dict[str, Any]:
        """Return a check's state and its measurements so far."""
        return self._visible_check(self._checks.find(check_id))

    @operation(method_checks="who started it, teacher")
    def stop_communication_check(self, check_id: str) -> dict[str, Any]:
        """End a check, and wait until all its processes have ended."""
        check = self._checks.find(check_id)
        if not rights.may_change(check.started_by):
            raise rights.NotAllowedError("only a teacher or the user who started this check can stop it")
        return self._visible_check(self._checks.stop(check.check_id))

    @operation(teacher="measure between the hosts: no run can use them during this time", rate=CHECK_RATE)
    def measure_links(self) -> dict[str, Any]:
        """Measure all-reduces between the hosts on which runs train, pair by pair; one check at a time."""
        self._links.start()
        return self._links.to_json()

    @operation(teacher="check this machine: it uses every free GPU while it runs", rate=MACHINE_CHECK_RATE)
    def check_machine(self) -> dict[str, Any]:
        """Start short real jobs that show whether this machine trains correctly; one check at a time."""
        return self._scheduler.with_gpus(self._machine_checks.start).to_json()

    @operation()
    def machine_check(self, check_id: str) -> dict[str, Any]:
        """Return the progress of a check of the machine, and its findings."""
        return self._machine_checks.find(check_id)

    @operation(teacher="cancel a check of this machine")
    def cancel_machine_check(self, check_id: str) -> dict[str, Any]:
        """Cancel a check of the machine; its state shows when all its processes have ended."""
        return self._machine_checks.cancel(check_id)

    @operation(teacher="install a package")
    def install_data_set(self, name: str) -> dict[str, Any]:
        """Install the package that contains a data set; one at a time."""
        return asdict(self._installs.start(name))

    @operation()
    def data_set_install(self, name: str) -> dict[str, Any]:
        """Return the progress of the installation of a data set's package."""
        return asdict(self._installs.find(name))

    def _visible_check(self, check: CommunicationCheck) -> dict[str, Any]:
        """Return a check without the names of runs that the current user may not see."""
        values = check.to_json()
        visible_ids = [
            run_id if self._store.is_shown(run_id) else HIDDEN_RUN for run_id in values["busy_with"]
        ]
        return values | {"busy_with": list(dict.fromkeys(visible_ids))}


def make_router(report: MachineReport, store: RunStore, checks: MachineChecks) -> Router:
    """Return the routes below `/live/machine`."""
    router = Router(prefix="/live")

    @router.get("/machine")
    def machine() -> dict[str, Any]:
        return without_hidden(report.sample(), store.is_shown)

    @router.get("/machine/check/{check_id}/report.txt")
    @SLOW.handler
    def report_of_check(check_id: str) -> GeneratedFile:
        try:
            path = checks.report(check_id)
            # check before the response begins, because an error later could only truncate it
            open_own(path).close()
        except (OSError, ValueError) as error:
            raise HTTPException(status_code=404, detail=explain(error)) from error
        return GeneratedFile(
            SLOW, file_chunks(path), f"machine-check-{check_id}.txt", "text/plain; charset=utf-8"
        )

    return router
