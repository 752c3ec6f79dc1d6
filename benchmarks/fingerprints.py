"""What comparing replicas costs training: never, as often as by default, and after every step.

    python -m benchmarks.fingerprints [--rounds 5] [--cases mlp,gpt] [--json FILE]

In turns, the same run of two CPU ranks under a supervisor. Counted are the steps of the last three quarters,
by the clock on the wall. What a comparison takes is what a step takes longer where each has one. What the
default costs is that, times the comparisons that there were, as a share of the run's time: on a machine that
others use as well, the ratio of two runs is too coarse for it.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from benchmarks.cases import CASES, Case
from benchmarks.machine import Conditions
from benchmarks.pairs import Figures, column, in_turns, parser_of, ratios, tell
from tests.harness import Launcher, all_events

WARM_UP_SHARE = 0.25
NEVER, BY_DEFAULT, EACH_STEP = "never", "by default", "after each step"
EVERY = {NEVER: 0, BY_DEFAULT: None, EACH_STEP: 1}
LONG = 100_000


def main() -> None:
    """Measure the rounds asked for, and print what each way costs."""
    parser = parser_of(__doc__, num_rounds=5)
    parser.add_argument("--cases", default="mlp,gpt")
    options = parser.parse_args()
    conditions = Conditions.note()
    found: dict[str, list[float]] = {}
    for name in options.cases.split(","):
        ways = {way: partial(play, CASES[name], every) for way, every in EVERY.items()}
        rounds = in_turns(ways, options.rounds)
        found |= {f"{name}, {way}: steps/s": column(rounds[way], "steps_per_s") for way in ways}
        pace = {way: column(rounds[way], "steps_per_s") for way in ways}
        found[f"{name}: pace by default / never"] = ratios(pace[BY_DEFAULT], pace[NEVER])
        costs_s = [1 / each - 1 / none for each, none in zip(pace[EACH_STEP], pace[NEVER], strict=True)]
        found[f"{name}: a comparison, ms"] = [1000 * cost for cost in costs_s]
        shares = zip(costs_s, column(rounds[BY_DEFAULT], "comparisons_per_s"), strict=True)
        found[f"{name}: share of the time by default, %"] = [100 * cost * often for cost, often in shares]
    tell(found, conditions, options.json)


def play(case: Case, every_steps: int | None) -> Figures:
    """Train a case once; return its pace, and how often replicas were compared."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder))
        live = launcher.start(
            model=case.model,
            model_size=case.size,
            dataset=case.dataset,
            batch_size=case.batch_size,
            max_steps=case.num_steps,
            num_epochs=LONG,
            eval_every_steps=LONG,
            checkpoint_every_steps=LONG,
            fingerprint_every_steps=every_steps,
        )
        status = live.wait_for_end()
        assert status.state == "finished", live.story()
        events = all_events(live.run)
        launcher.close()
    steps = [event for event in events if event["kind"] == "step"]
    first = steps[round(WARM_UP_SHARE * len(steps))]
    took_s = steps[-1]["time_unix_s"] - first["time_unix_s"]
    compared = [
        event for event in events if event["kind"] == "fingerprints" and event["step"] > first["step"]
    ]
    return {
        "steps_per_s": (steps[-1]["step"] - first["step"]) / took_s,
        "comparisons_per_s": len(compared) / took_s,
    }


if __name__ == "__main__":
    main()
