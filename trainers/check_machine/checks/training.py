"""The checks of DDP: checkpoint, killed rank, bit-exact resume, Stop."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from trainers.check_machine.checks.bench import Bench, fault_of
from trainers.check_machine.checks.configs import ddp_config
from trainers.check_machine.checks.findings import Value
from trainers.check_machine.checks.outcome import Outcome
from trainers.contract.manifests import MANIFEST, WEIGHTS
from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import read_json

NUM_STEPS = 10

Losses = Mapping[int, float | None]


class DdpChecks:
    """One DDP run that is saved, killed, resumed and stopped, and an identical undisturbed run.

    Attributes:
        losses: Losses of the undisturbed run, by step.
    """

    def __init__(self, bench: Bench) -> None:
        self.losses: Losses = {}
        self._bench = bench
        self._run: RunDirectory | None = None
        self._saved_step: int | None = None
        self._stopped_step: int | None = None
        self._disturbed: list[Losses] = []

    def checkpoint(self) -> Outcome:
        """Start the run, and save a checkpoint during training."""
        started = time.monotonic()
        job = self._bench.start(ddp_config(self._bench.devices))
        self._run = job.run
        job.wait_for_step(NUM_STEPS)
        began_s = time.monotonic() - started
        saved = job.wait_for_checkpoint(job.ask("checkpoint")["step"])
        if (fault := fault_of(job.run, saved["step"])) is not None:
            return self._bench.failed("The checkpoint is incomplete:", fault)
        self._saved_step = saved["step"]
        values = (
            Value(name=f"start to step {NUM_STEPS:,}", value=began_s, unit="s"),
            Value(name="training paused", value=saved["stall_s"], unit="s", is_compared=False),
        )
        words = f"Saved at step {saved['step']:,} during training, and every file is complete."
        return Outcome.passed(words, values=values)

    def kill(self) -> Outcome:
        """Kill a rank with SIGKILL; check that the run names it and that no process remains."""
        job = self._bench.job
        if job is None or self._saved_step is None:
            return Outcome.not_checked("The job to be killed did not get that far.")
        rank = self._bench.devices.num_ranks - 1
        pid = job.rank_pid(rank)
        if pid is None:
            return Outcome.not_checked("This system does not show which process is which rank.")
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        status = job.wait_for_end()
        took_s = time.monotonic() - killed
        self._disturbed.append(job.losses)
        error = (job.events("error") or [{}])[-1]
        if status.state != "failed" or (error.get("code"), error.get("rank")) != ("rank_killed", rank):
            return self._bench.failed(
                f"Rank {rank} was killed, but the run says:", status.error or status.state
            )
        if left := job.end():
            return self._bench.failed(f"{len(left)} processes of the job could not be ended.")
        self._bench.done()
        words = f"Rank {rank} was killed (SIGKILL): reported after {took_s:.1f} s, and no process remained."
        return Outcome.passed(words, values=(Value(name="kill to end", value=took_s, unit="s"),))

    def resume(self) -> Outcome:
        """Resume from the checkpoint."""
        if self._run is None or self._saved_step is None:
            return Outcome.not_checked("There is no checkpoint to continue from.")
        job = self._bench.resume(self._run, self._saved_step)
        job.wait_for_step(self._saved_step + NUM_STEPS)
        first = min(job.losses)
        if first != self._saved_step + 1:
            return self._bench.failed(
                f"Resumed at step {self._saved_step:,}, it continued with step {first:,}."
            )
        return Outcome.passed(f"Continued with step {first:,}, from the checkpoint before the kill.")

    def stop(self) -> Outcome:
        """Stop the resumed job with a save."""
        job = self._bench.job
        if job is None:
            return Outcome.not_checked("There is no job to stop.")
        asked = time.monotonic()
        step = job.ask("stop", save=True)["step"]
        status = job.wait_for_end()
        took_s = time.monotonic() - asked
        if status.state != "stopped":
            return self._bench.failed(f"After Stop the run is {status.state}:", status.error or "")
        if (fault := fault_of(job.run, step)) is not None:
            return self._bench.failed("It stopped, but its checkpoint is incomplete:", fault)
        self._disturbed.append(job.losses)
        self._stopped_step = step
        self._bench.done()
        words = f"Stopped at step {step:,} and saved; the last process was gone after {took_s:.1f} s."
        return Outcome.passed(words, values=(Value(name="Stop to end", value=took_s, unit="s"),))

    def exact(self) -> Outcome:
        """Train without interruption, and compare all losses and weights bit by bit."""
        step = self._stopped_step
        if self._run is None or step is None:
            return Outcome.not_checked(
                "There is nothing to compare with: the resumed run did not get that far."
            )
        job = self._bench.start(ddp_config(self._bench.devices, max_steps=step))
        status = job.wait_for_end()
        if status.state != "finished":
            return self._bench.failed(f"The undisturbed run is {status.state}:", status.error or "")
        if (fault := fault_of(job.run, step)) is not None:
            return self._bench.failed("The checkpoint of the undisturbed run is incomplete:", fault)
        self.losses = job.losses
        if (different := first_difference(self.losses, self._disturbed)) is not None:
            return self._bench.failed(f"The resumed run has another loss at step {different:,}.")
        if weights_digest(job.run, step) != weights_digest(self._run, step):
            return self._bench.failed(f"The losses are the same, but not the weights of step {step:,}.")
        self._bench.done()
        words = (
            f"All losses, and the weights of step {step:,}, have the same bits as without kill and resume."
        )
        return Outcome.passed(words)


def first_difference(undisturbed: Losses, others: list[Losses]) -> int | None:
    """Return the first step at which a loss differs in any bit from the undisturbed run's, or None."""
    steps = [
        step
        for losses in others
        for step, loss in losses.items()
        if step in undisturbed and loss != undisturbed[step]
    ]
    return min(steps, default=None)


def weights_digest(run: RunDirectory, step: int) -> str:
    """Return the checksum of a checkpoint's weights, from its manifest."""
    files = read_json(run.checkpoints / f"step_{step}" / MANIFEST)["files"]
    return str(next(files[name]["sha256"] for name in WEIGHTS if name in files))
