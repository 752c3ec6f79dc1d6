"""Inject faults into real runs and print a table of the results.

    python -m tests.faults [--times N] [--only WORDS …] [--seed N] [--at-once N] [--into FILE]

Each outcome is immediately appended to a JSON Lines file, so an interrupted suite continues where it stopped.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.faults import table
from tests.faults.registry import FAULTS, Fault
from tests.faults.scenes import load_all
from tests.faults.trial import CannotBePlayedError, Outcome, play


def main() -> int:
    """Run the selected faults. The exit code is 0 if every check passed."""
    # SIGTERM acts like Ctrl-C: trials in progress finish and are cleaned up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _options()
    load_all()
    chosen = [item for item in FAULTS.values() if _is_meant(item.name, options.only)]
    if not chosen:
        sys.exit("No such fault. There are: " + ", ".join(FAULTS))
    print(f"Seed {options.seed}; outcomes go to {options.into}.\n\n{table.HEAD}", flush=True)
    done = table.load(options.into)
    with ThreadPoolExecutor(options.at_once) as pool, tempfile.TemporaryDirectory(prefix="faults-") as folder:
        try:
            waiting = [(item, _begin(pool, item, done, options, Path(folder))) for item in chosen]
            return 0 if _print_rows(waiting) else 1
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise


def _print_rows(waiting: list[tuple[Fault, list[Outcome | Future[Outcome]]]]) -> bool:
    """Print a row per fault when its trials are complete, then the total. Return True if all passed."""
    everything: list[Outcome] = []
    not_played = []
    are_good = True
    for item, outcomes in waiting:
        try:
            played = [found if isinstance(found, Outcome) else found.result() for found in outcomes]
        except CannotBePlayedError as error:
            not_played.append(f"{item.name}: {error}")
            continue
        everything += played
        print(table.row(item.name, played), flush=True)
        for outcome in played:
            if not table.is_good(outcome, item.limit_s):
                are_good = False
                print(f"    seed {outcome.seed}: {outcome}", file=sys.stderr, flush=True)
    print(table.row("**all**", everything), flush=True)
    for reason in not_played:
        print(f"Not played here. {reason}", flush=True)
    return are_good


def _begin(
    pool: ThreadPoolExecutor, item: Fault, done: list[Outcome], options: argparse.Namespace, folder: Path
) -> list[Outcome | Future[Outcome]]:
    """Return the known outcomes of a fault and submit its other trials to the pool."""
    known = {outcome.seed: outcome for outcome in done if outcome.fault == item.name}
    times = options.times or item.times
    seeds = range(options.seed, options.seed + times)
    return [known.get(seed) or pool.submit(_play, item, seed, folder, options.into) for seed in seeds]


def _play(item: Fault, seed: int, folder: Path, into: Path) -> Outcome:
    place = folder / f"{''.join(c if c.isalnum() else '-' for c in item.name)}-{seed}"
    outcome = play(item.name, item.scene, seed, place)
    table.keep(into, outcome)
    return outcome


def _is_meant(name: str, words: list[str] | None) -> bool:
    return not words or any(word in name for word in words)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Do every fault to real runs, and see what holds.")
    parser.add_argument("--times", type=int, help="how often each; left out: as often as its line says")
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="faults whose name has these words")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial of each fault")
    parser.add_argument("--at-once", type=int, default=2, help="trials at a time; a run mostly waits")
    parser.add_argument("--into", type=Path, default=Path("faults.jsonl"), help="where outcomes are kept")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
