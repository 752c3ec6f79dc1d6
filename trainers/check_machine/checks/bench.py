"""Runs the jobs of checks that train, with the check's devices and folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from trainers.check_machine.checks import devices as gpus
from trainers.check_machine.checks.cancelling import CancellableWait, TooLateError
from trainers.check_machine.checks.devices import CheckDevices
from trainers.check_machine.checks.findings import REPORT_HINT, Outcome
from trainers.check_machine.checks.job import CheckJob, JobError
from trainers.contract import manifests
from trainers.contract.check_files import TEARDOWN_S
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory, create

GPUS_TAKEN_HINT = "Check again when the GPUs are free."


class Bench:
    """Runs jobs in the folder of a check, one at a time, and leaves none running.

    Args:
        limit_s: Maximum duration of a job.
    """

    def __init__(self, folder: Path, devices: CheckDevices, waiter: CancellableWait, limit_s: float) -> None:
        self.devices = devices
        self.job: CheckJob | None = None
        self._folder = folder
        self._waiter = waiter
        self._limit_s = limit_s

    def start(self, config: Config) -> CheckJob:
        """Start a new run."""
        return self._begin(create(self._folder, config), None)

    def resume(self, run: RunDirectory, step: int) -> CheckJob:
        """Resume an ended run from a checkpoint."""
        return self._begin(run, step)

    def end_job(self) -> None:
        """End the current job, if any."""
        if self.job is not None:
            self.job.end()
            self.job = None

    def failed(self, message: str, detail: str = "") -> Outcome:
        """End the job, and return a failure with the end of its logs.

        Args:
            detail: The job's own error, which is appended to the message.
        """
        job, log = self.job, ""
        self.end_job()
        if job is not None:
            log = job.log_end()
        return Outcome.failed(message, REPORT_HINT, detail=detail, log=log)

    def stop(self, job: CheckJob) -> int:
        """Stop a job with a save, wait for its end, and return the step.

        Raises:
            JobError: If the job does not stop, or its checkpoint is incomplete.
            CancelledError: If a user cancels the check.
        """
        step: int = job.ask("stop", save=True)["step"]
        status = job.wait_for_end()
        if status.state != "stopped":
            raise JobError(f"After Stop the run is {status.state}:", status.error or "")
        if (fault := checkpoint_fault(job.run, step)) is not None:
            raise JobError("The run stopped, but its checkpoint is incomplete:", fault)
        return step

    def run_guarded(self, check: Callable[[], Outcome]) -> Outcome:
        """Run a check; end and report a job that fails or hangs.

        Raises:
            CancelledError: If a user cancels the check.
        """
        if (gpu_user := self._new_gpu_user()) is not None:
            return Outcome.not_checked(f"Skipped: {gpu_user}.", GPUS_TAKEN_HINT)
        try:
            return check()
        except JobError as error:
            return self.failed(str(error), error.detail)

    def _begin(self, run: RunDirectory, resume_step: int | None) -> CheckJob:
        self.end_job()
        variables = self.devices.environment
        self.job = CheckJob(run, variables, self._waiter, limit_s=self._limit_s, resume_step=resume_step)
        return self.job

    def _new_gpu_user(self) -> str | None:
        """Return a text about a new user of a GPU, or None. Must not be called during a job, whose processes
        use the GPUs.

        Raises:
            CancelledError: If a user cancels the check.
        """
        if self.job is not None or self.devices.kind == "cpu":
            return None
        deadline = time.monotonic() + TEARDOWN_S
        try:
            self._waiter.wait("free GPUs", lambda: self._gpu_user() is None, deadline)
        except TooLateError:
            return self._gpu_user()
        return None

    def _gpu_user(self) -> str | None:
        return gpus.find_new_user(self.devices, gpus.sample())


def checkpoint_fault(run: RunDirectory, step: int) -> str | None:
    """Return the fault of a step's checkpoint, or None."""
    checkpoint = next((item for item in run.list_checkpoints() if item.step == step), None)
    return f"step {step:,} has no checkpoint" if checkpoint is None else manifests.find_fault(checkpoint)
