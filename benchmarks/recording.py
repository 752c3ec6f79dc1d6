"""What a recording costs: from the command to the file, the file's size, and steps before and after it.

    python -m benchmarks.recording [--steps 5] [--rounds 3]

The GPT on its usual text, on two CPU ranks, with its gradients through shared memory and over gloo, where
torch.profiler runs while steps are recorded. The target: 5 steps in at most 5 s and 20 MB. Steps after a
recording are compared with those before it: nothing of it may stay behind.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.compare import NEVER, NUM_RANKS
from benchmarks.machine import Conditions, summary
from tests.harness import Launcher, LiveRun
from trainers.contract import recordings

MOST_EPOCHS = 100_000

GPT = {"dataset": "austen", "model": "gpt", "nproc_per_node": NUM_RANKS}
WAYS = {"shared_memory": {}, "gloo": {"all_reduce": "backend"}}
NUM_COMPARED = 15


def main() -> None:
    """Measure the rounds asked for and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    conditions = Conditions.note()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for number in range(options.rounds):
        for name, way in WAYS.items():
            found[name].append(play(way, options.steps))
            print(f"round {number + 1}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    figures = {
        f"{name} {what}": summary([played[what] for played in rounds])
        for name, rounds in found.items()
        for what in rounds[0]
    }
    print(json.dumps({"num_steps": options.steps, **figures, **conditions.report()}, indent=2))


def play(way: dict[str, str], num_steps: int) -> dict[str, float]:
    """Record once in a fresh run; return seconds, bytes, and the steps after it against those before."""
    with tempfile.TemporaryDirectory() as scratch:
        launcher = Launcher(Path(scratch).resolve())
        try:
            live = launcher.start(
                **GPT, **way, num_epochs=MOST_EPOCHS, eval_every_steps=NEVER, checkpoint_every_steps=NEVER
            )
            # The first step is unlike the others: DDP lays its buckets out anew.
            live.wait_for_step(1 + NUM_COMPARED)
            asked = time.monotonic()
            live.ask("record", num_steps=num_steps)
            event = live.wait_for("recording")
            click_to_file_s = time.monotonic() - asked
            last = event["step"] + num_steps - 1
            live.wait_for_step(last + 1 + NUM_COMPARED)
            before, after = (
                _median_s(live, 2, event["step"]),
                _median_s(live, last + 2, last + 2 + NUM_COMPARED),
            )
            return {
                "click_to_file_s": round(click_to_file_s, 3),
                "begun_to_file_s": event["duration_s"],
                "file_bytes": event["size_bytes"],
                "recorded_to_usual_step": round(_recorded_s(live, event["step"]) / before, 3),
                "after_to_before": round(after / before, 3),
            }
        finally:
            launcher.close()


def _median_s(live: LiveRun, begin: int, end: int) -> float:
    found: float = median(
        event["step_time_s"] for event in live.events("step") if begin <= event["step"] < end
    )
    return found


def _recorded_s(live: LiveRun, step: int) -> float:
    (main_rank, *_) = recordings.read(live.run, step)["ranks"]
    found: float = median(each["ended_s"] - each["began_s"] for each in main_rank["steps"])
    return found


if __name__ == "__main__":
    main()
