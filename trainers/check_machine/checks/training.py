"""The checks of training: DDP and each strategy that fits the devices.

With DDP: checkpoint, killed rank, bit-exact resume and Stop. With each strategy: comparison of the first
losses with DDP, Stop, and a checkpoint. All jobs train one small network with the same global batch.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from trainers.check_machine.checks.bench import Bench, checkpoint_fault
from trainers.check_machine.checks.devices import CheckDevices
from trainers.check_machine.checks.findings import Outcome, Value
from trainers.contract import config as config_module
from trainers.contract.config import Config, RanksPerReplica
from trainers.contract.manifests import MANIFEST, WEIGHTS
from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import read_json

NUM_STEPS = 10

Losses = Mapping[int, float | None]
# As reported by the probe, with the network that it can train.
Strategy = Mapping[str, Any]


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
        self._interrupted_losses: list[Losses] = []

    def checkpoint(self) -> Outcome:
        """Start the run, and save a checkpoint during training."""
        started = time.monotonic()
        job = self._bench.start(ddp_config(self._bench.devices))
        self._run = job.run
        job.wait_for_step(NUM_STEPS)
        start_s = time.monotonic() - started
        saved = job.wait_for_checkpoint(job.ask("checkpoint")["step"])
        if (fault := checkpoint_fault(job.run, saved["step"])) is not None:
            return self._bench.failed("The checkpoint is incomplete:", fault)
        self._saved_step = saved["step"]
        values = (
            Value(name=f"start to step {NUM_STEPS:,}", value=start_s, unit="s"),
            Value(name="training paused", value=saved["stall_s"], unit="s", is_compared=False),
        )
        message = f"Saved at step {saved['step']:,} during training, and every file is complete."
        return Outcome.passed(message, values=values)

    def kill(self) -> Outcome:
        """Kill a rank with SIGKILL; check that the run names it and that no process remains."""
        job = self._bench.job
        if job is None or self._saved_step is None:
            return Outcome.not_checked("The job did not reach the point at which a rank is killed.")
        rank = self._bench.devices.num_ranks - 1
        pid = job.rank_pid(rank)
        if pid is None:
            return Outcome.not_checked("This system does not show the processes of the ranks.")
        os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        status = job.wait_for_end()
        elapsed_s = time.monotonic() - killed_at
        self._interrupted_losses.append(job.losses)
        error = (job.events("error") or [{}])[-1]
        if status.state != "failed" or (error.get("code"), error.get("rank")) != ("rank_killed", rank):
            return self._bench.failed(
                f"Rank {rank} was killed, but the run reports:", status.error or status.state
            )
        if survivors := job.end():
            return self._bench.failed(f"{len(survivors)} processes of the job could not be killed.")
        self._bench.end_job()
        message = (
            f"Rank {rank} was killed (SIGKILL): reported after {elapsed_s:.1f} s, and no process remained."
        )
        return Outcome.passed(message, values=(Value(name="kill to end", value=elapsed_s, unit="s"),))

    def resume(self) -> Outcome:
        """Resume from the checkpoint."""
        if self._run is None or self._saved_step is None:
            return Outcome.not_checked("There is no checkpoint to resume from.")
        job = self._bench.resume(self._run, self._saved_step)
        job.wait_for_step(self._saved_step + NUM_STEPS)
        first = min(job.losses)
        if first != self._saved_step + 1:
            return self._bench.failed(
                f"Resumed at step {self._saved_step:,}, it continued with step {first:,}."
            )
        return Outcome.passed(f"Resumed with step {first:,}, from the checkpoint before the kill.")

    def stop(self) -> Outcome:
        """Stop the resumed job with a save."""
        job = self._bench.job
        if job is None:
            return Outcome.not_checked("There is no job to stop.")
        stopped_at = time.monotonic()
        step = self._bench.stop(job)
        elapsed_s = time.monotonic() - stopped_at
        self._interrupted_losses.append(job.losses)
        self._stopped_step = step
        self._bench.end_job()
        message = f"Stopped at step {step:,} and saved; the last process ended after {elapsed_s:.1f} s."
        return Outcome.passed(message, values=(Value(name="Stop to end", value=elapsed_s, unit="s"),))

    def exact(self) -> Outcome:
        """Train without interruption, and compare all losses and weights bit by bit."""
        step = self._stopped_step
        if self._run is None or step is None:
            return Outcome.not_checked("The resumed run did not finish, so there is nothing to compare.")
        job = self._bench.start(ddp_config(self._bench.devices, max_steps=step))
        status = job.wait_for_end()
        if status.state != "finished":
            return self._bench.failed(f"The undisturbed run is {status.state}:", status.error or "")
        if (fault := checkpoint_fault(job.run, step)) is not None:
            return self._bench.failed("The checkpoint of the undisturbed run is incomplete:", fault)
        self.losses = job.losses
        if (differing_step := first_difference(self.losses, self._interrupted_losses)) is not None:
            return self._bench.failed(f"The loss of the resumed run differs at step {differing_step:,}.")
        if weights_digest(job.run, step) != weights_digest(self._run, step):
            return self._bench.failed(f"The losses are equal, but the weights of step {step:,} differ.")
        self._bench.end_job()
        message = (
            f"All losses, and the weights of step {step:,}, equal those of an uninterrupted run bit by bit."
        )
        return Outcome.passed(message)


def first_difference(undisturbed: Losses, interrupted: list[Losses]) -> int | None:
    """Return the first step at which a loss differs in any bit from the undisturbed run's, or None."""
    steps = [
        step
        for losses in interrupted
        for step, loss in losses.items()
        if step in undisturbed and loss != undisturbed[step]
    ]
    return min(steps, default=None)


def weights_digest(run: RunDirectory, step: int) -> str:
    """Return the checksum of a checkpoint's weights, from its manifest."""
    files = read_json(run.checkpoints / f"step_{step}" / MANIFEST)["files"]
    return str(next(files[name]["sha256"] for name in WEIGHTS if name in files))


DATASET, MODEL = "digits", "vit"
BATCH_PER_RANK = 4
NEVER = 10**9
_COMMON_FIELDS = {
    "num_epochs": 100_000,
    "seed": 0,
    # Fields for bit-identical results, also on GPUs.
    "deterministic": True,
    "eval_every_steps": NEVER,
    "checkpoint_every_steps": NEVER,
    "keep_best_checkpoint": False,
}


def ddp_config(devices: CheckDevices, *, max_steps: int | None = None) -> Config:
    """Return the configuration of the DDP jobs."""
    values = {"dataset": DATASET, "model": MODEL, "batch_size": BATCH_PER_RANK, "max_steps": max_steps}
    return config_module.parse(
        _COMMON_FIELDS | values | {"nproc_per_node": devices.num_ranks, "device": devices.kind}
    )


def strategy_config(strategy: Strategy, devices: CheckDevices, num_ranks: int) -> Config:
    """Return the configuration of a strategy's job, with the same global batch as DDP.

    Args:
        strategy: As reported by the probe, with the network that it can train.
    """
    dataset, model = strategy["trains"]
    config = config_module.parse(
        _COMMON_FIELDS
        | {
            "dataset": dataset,
            "model": model,
            "strategy": strategy["name"],
            "nproc_per_node": num_ranks,
            "device": devices.kind,
        }
    )
    num_replicas = config.num_replicas(strategy["ranks_per_replica"])
    global_batch = ddp_config(devices).global_batch(devices.num_ranks)
    return config_module.parse(config.to_json() | {"batch_size": max(1, global_batch // num_replicas)})


def ranks_for(sharing: RanksPerReplica, num_devices: int) -> int | None:
    """Return the number of ranks for a strategy; None if there are too few devices.

    If ranks share one copy of the model, two ranks are enough, because any model can be split in two.
    """
    if sharing == "one":
        return num_devices
    if num_devices < 2:
        return None
    return 4 if sharing != "all" and num_devices >= 4 else 2


def can_compare(strategy: Strategy) -> bool:
    """True if a strategy trains the same network as the DDP jobs."""
    return tuple(strategy["trains"]) == (DATASET, MODEL)


# Number of steps to compare: later losses differ because rounding differences accumulate.
STEPS_COMPARED = 10
# Tolerance: losses start at about 2.3, and rounding differences are far smaller.
MAX_DIFFERENCE = 0.01


def check_strategy(bench: Bench, strategy: Strategy, ddp_losses: Losses) -> Outcome:
    """Train with a strategy, and stop with a save.

    Args:
        strategy: As reported by the probe.
        ddp_losses: Losses of the same network with the same global batches; empty if unknown.

    Raises:
        JobError: If the job fails or hangs.
        CancelledError: If a user cancels the check.
    """
    if strategy["trains"] is None:
        return Outcome.not_checked("This strategy can train none of the small models.")
    num_ranks = ranks_for(strategy["ranks_per_replica"], bench.devices.num_ranks)
    if num_ranks is None:
        return Outcome.skipped(
            "The ranks of this strategy share one copy of the model, so it needs two devices."
        )
    started = time.monotonic()
    job = bench.start(strategy_config(strategy, bench.devices, num_ranks))
    job.wait_for_step(NUM_STEPS)
    start_s = time.monotonic() - started
    step = bench.stop(job)
    losses = job.losses
    if any(loss is None or not math.isfinite(loss) for loss in losses.values()):
        return bench.failed("A loss became infinite or NaN.")
    difference = largest_difference(losses, ddp_losses) if can_compare(strategy) else None
    if difference is not None and difference > MAX_DIFFERENCE:
        return bench.failed(
            f"The first losses differ from DDP's losses by up to {difference:.2g}, more than "
            "rounding can explain."
        )
    bench.end_job()
    values = [Value(name=f"start to step {NUM_STEPS:,}", value=start_s, unit="s")]
    comparison_text = ""
    if difference is not None:
        values.append(Value(name="difference from DDP's losses", value=difference, unit="loss"))
        comparison_text = " with DDP's losses"
    ranks = f"{num_ranks} rank{'' if num_ranks == 1 else 's'}"
    return Outcome.passed(
        f"{ranks}: {step} steps{comparison_text}, stopped and saved completely.", values=tuple(values)
    )


def largest_difference(losses: Losses, ddp_losses: Losses) -> float | None:
    """Return the largest difference between the first losses; None if no step can be compared."""
    pairs = [(losses.get(step), ddp_losses.get(step)) for step in range(1, STEPS_COMPARED + 1)]
    return max(
        (abs(loss - ddp_loss) for loss, ddp_loss in pairs if loss is not None and ddp_loss is not None),
        default=None,
    )
