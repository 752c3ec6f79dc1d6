"""Every way to parallelise: the same losses as one process, memory per rank, exact resume, other world sizes.

    python -m benchmarks.strategies [--kills 20] [--only zero3,tensor]

Real runs on CPU ranks. A kill is SIGKILL to supervisor, torchrun and all ranks at a random moment, be it
between steps, in a collective or while a checkpoint is written; the run then goes on from the newest
whole checkpoint. In the end every loss must be the one of the run that nobody disturbed, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.harness import Launcher, LiveRun, all_events
from trainers import registry
from trainers.contract.rundir import RunDirectory

GLOBAL_BATCH = 16
COMPARED_STEPS = 50
KILLED_STEPS = {2: 600, 4: 150}  # by the number of ranks: four on two cores are slow
NUM_BLOCKS = 2  # of the small GPT: a pipeline has at most as many stages
LONGEST_LIFE = 0.06  # of what the undisturbed run took
MODEL = {"model": "gpt", "dataset": "austen", "learning_rate": 0.001, "device": "cpu", "num_epochs": 1000}
NEVER = 10**9


def main() -> None:
    """Measure the strategies asked for and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    registry.discover_all()
    names = [name for name in options.only.split(",") if name] or list(registry.strategies())
    columns = ["strategy", "ranks", "loss at 50", "largest difference", "peak MB per rank", "kills", "exact"]
    columns += ["ranks halved", "ranks doubled from half", "ranks doubled"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder))
        alone = losses(
            finish(
                launcher.start(**MODEL, nproc_per_node=1, batch_size=GLOBAL_BATCH, **until(COMPARED_STEPS))
            )
        )
        for name in names:
            print(row(launcher, name, alone, options.kills, random.Random(options.seed)), flush=True)  # noqa: S311
        launcher.close()


def row(launcher: Launcher, name: str, alone: dict[int, float], kills: int, dice: random.Random) -> str:
    """Measure one strategy; return its line of the table."""
    ranks = 4 if registry.strategies()[name].ranks_per_replica == "tensor_parallel_size" else 2
    live = finish(launcher.start(**config_of(name, ranks), **until(COMPARED_STEPS)))
    together = losses(live)
    difference = max(abs(together[step] - alone[step]) for step in alone)
    peak = max(rank["peak_memory_bytes"] for event in live.events("ranks") for rank in event["ranks"])
    num_kills, exact = survive(launcher, config_of(name, ranks), kills, dice)
    changes = [
        change(launcher, name, before, after, alone)
        for before, after in ((ranks, ranks // 2), (ranks // 2, ranks), (ranks, 2 * ranks))
    ]
    words = " | ".join("–" if one is None else f"yes ({one:.0e})" for one in changes)
    return (
        f"| {name} | {ranks} | {together[COMPARED_STEPS]:.6f} | {difference:.1e} | {peak / 1e6:.0f} "
        f"| {num_kills} | {'yes' if exact else 'NO'} | {words} |"
    )


def config_of(name: str, ranks: int) -> dict[str, Any]:
    """Return a configuration of this strategy whose global batch is always the same."""
    shares = {"one": 1, "all": ranks, "tensor_parallel_size": 2}
    replicas = max(1, ranks // shares[registry.strategies()[name].ranks_per_replica])
    return MODEL | {"strategy": name, "nproc_per_node": ranks, "batch_size": GLOBAL_BATCH // replicas}


def until(steps: int, checkpoint_every: int = NEVER) -> dict[str, Any]:
    """Return the fields that end a run after some steps without evaluations in between."""
    return {"max_steps": steps, "eval_every_steps": NEVER, "checkpoint_every_steps": checkpoint_every}


def survive(launcher: Launcher, config: dict[str, Any], kills: int, dice: random.Random) -> tuple[int, bool]:
    """Kill a run again and again; return how often it was killed and whether the losses are the same bits."""
    if kills == 0:
        return 0, True
    steps = until(KILLED_STEPS[config["nproc_per_node"]], 10)
    live = launcher.start(**config, **steps)
    live.wait_for("state", lambda event: event["state"] == "running")
    started = time.monotonic()
    undisturbed = losses(finish(live))
    longest_life_s = LONGEST_LIFE * (time.monotonic() - started)
    live = launcher.start(**config, **steps)
    killed = 0
    while killed < kills:
        live.wait_for("state", lambda event: event["state"] == "running")
        time.sleep(dice.uniform(0.0, longest_life_s))  # the random moment
        if live.supervisor.poll() is not None:
            break  # it was over before it could be killed
        live.kill()
        killed += 1
        there = live.run.list_checkpoints()
        live = launcher.start_run(live.run, resume_step=there[-1].step if there else None)
    finish(live)
    return killed, losses_of(live.run) == undisturbed


def change(launcher: Launcher, name: str, before: int, after: int, alone: dict[int, float]) -> float | None:
    """Train half the steps on `before` ranks and the rest on `after`; return the largest difference."""
    if (
        before < 1
        or after < 1
        or after > 4
        or not _is_possible(name, before)
        or not _is_possible(name, after)
    ):
        return None
    first = finish(launcher.start(**config_of(name, before), **until(COMPARED_STEPS // 2)))
    path = first.run.config
    values = json.loads(path.read_text(encoding="utf-8")) | config_of(name, after)
    path.write_text(json.dumps(values | until(COMPARED_STEPS)), encoding="utf-8")
    finish(launcher.start_run(first.run, resume_step=COMPARED_STEPS // 2))
    found = losses_of(first.run)
    return max(abs(found[step] - alone[step]) for step in alone)


def _is_possible(name: str, ranks: int) -> bool:
    if name == "pipeline":
        return ranks <= NUM_BLOCKS
    return name != "data_tensor" or ranks % 2 == 0


def finish(live: LiveRun) -> LiveRun:
    """Wait for the end of a run, which must be a good one."""
    status = live.wait_for_end(timeout_s=600.0)
    assert status.state == "finished", live.story()
    return live


def losses(live: LiveRun) -> dict[int, float]:
    """Return the loss of every step of this start of a run."""
    return live.losses()


def losses_of(run: RunDirectory) -> dict[int, float]:
    """Return the loss of every step over all starts of a run; what was done again counts."""
    return {event["step"]: event["loss"] for event in all_events(run) if event["kind"] == "step"}


if __name__ == "__main__":
    main()
