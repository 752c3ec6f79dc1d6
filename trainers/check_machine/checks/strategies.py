"""The check of each strategy that fits the devices: first losses against DDP's, Stop, and a checkpoint."""

from __future__ import annotations

import math
import time

from trainers.check_machine.checks import configs
from trainers.check_machine.checks.bench import Bench, fault_of
from trainers.check_machine.checks.configs import Strategy
from trainers.check_machine.checks.findings import Value
from trainers.check_machine.checks.outcome import Outcome
from trainers.check_machine.checks.training import NUM_STEPS, Losses

# Losses of later steps differ because rounding differences accumulate.
STEPS_COMPARED = 10
# Losses start at about 2.3; rounding differences are far smaller than this.
MOST_DIFFERENCE = 0.01


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
        return Outcome.not_checked("None of the small models can be trained with it.")
    num_ranks = configs.ranks_for(strategy["ranks_per_replica"], bench.devices.num_ranks)
    if num_ranks is None:
        return Outcome.skipped("Its ranks share one copy of the model, so it takes two devices.")
    started = time.monotonic()
    job = bench.start(configs.strategy_config(strategy, bench.devices, num_ranks))
    job.wait_for_step(NUM_STEPS)
    began_s = time.monotonic() - started
    step = job.ask("stop", save=True)["step"]
    status = job.wait_for_end()
    if status.state != "stopped":
        return bench.failed(f"After Stop the run is {status.state}:", status.error or "")
    if (fault := fault_of(job.run, step)) is not None:
        return bench.failed("It stopped, but its checkpoint is incomplete:", fault)
    losses = job.losses
    if any(loss is None or not math.isfinite(loss) for loss in losses.values()):
        return bench.failed("A loss became infinite or NaN.")
    apart = largest_difference(losses, ddp_losses) if configs.can_compare(strategy) else None
    if apart is not None and apart > MOST_DIFFERENCE:
        return bench.failed(f"Its first losses are up to {apart:.2g} off DDP's; rounding explains far less.")
    bench.done()
    values = [Value(name=f"start to step {NUM_STEPS:,}", value=began_s, unit="s")]
    as_ddp = ""
    if apart is not None:
        values.append(Value(name="apart from DDP's losses", value=apart, unit="loss"))
        as_ddp = " with DDP's losses"
    ranks = f"{num_ranks} rank{'' if num_ranks == 1 else 's'}"
    return Outcome.passed(
        f"{ranks}: {step} steps{as_ddp}, stopped and saved completely.", values=tuple(values)
    )


def largest_difference(losses: Losses, ddp_losses: Losses) -> float | None:
    """Return the largest difference between the first losses; None if no step can be compared."""
    pairs = [(losses.get(step), ddp_losses.get(step)) for step in range(1, STEPS_COMPARED + 1)]
    return max(
        (abs(one - other) for one, other in pairs if one is not None and other is not None), default=None
    )
