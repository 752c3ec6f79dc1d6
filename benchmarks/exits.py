"""Does a finished rank ever abort at its exit? Many short 2-rank jobs, several at once to make load.

    python -m benchmarks.exits [--runs 200] [--at-once 4] [--reversed]

`--reversed` keeps model and optimizer until after the process group is gone, the order that aborts now
and then: it shows that this measurement can find it. Prints one Markdown row.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from trainers.contract import config, rundir
from trainers.contract.torchrun import rank_exit_codes, torchrun_options

SHORT = {
    "dataset": "digits",
    "model": "mlp",
    "nproc_per_node": 2,
    "device": "cpu",
    "max_steps": 3,
    "checkpoint_every_steps": 10**6,
    "eval_every_steps": 10**6,
    "keep_best_checkpoint": False,
}
REVERSED = "EXITS_REVERSED"
JOB_TIMEOUT_S = 300.0
FINE = "fine"


def main() -> None:
    """Run the jobs and print the row; as a rank, be one."""
    if "RANK" in os.environ:
        be_a_rank()
        return
    parser = argparse.ArgumentParser(description="Count how finished ranks exit.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--reversed", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as pool:
        jobs = [
            pool.submit(exits_of_one, Path(folder), is_reversed=options.reversed) for _ in range(options.runs)
        ]
        for number, job in enumerate(as_completed(jobs), start=1):
            outcomes.update(job.result())
            print(f"{number} of {options.runs} jobs: {dict(outcomes)}", file=sys.stderr, flush=True)
    order = "group first, then model" if options.reversed else "model first, then group"
    bad = ", ".join(f"{count} × {name}" for name, count in outcomes.items() if name != FINE) or "none"
    print("| order | jobs | at once | ranks that exited well | others | minutes |")
    print("|---|---|---|---|---|---|")
    minutes = (time.monotonic() - began) / 60
    print(f"| {order} | {options.runs} | {options.at_once} | {outcomes[FINE]} | {bad} | {minutes:.0f} |")


def exits_of_one(runs_dir: Path, *, is_reversed: bool) -> list[str]:
    """Run one job to its end and return how each of its two ranks exited."""
    run = rundir.create(runs_dir, config.parse(SHORT))
    arguments = rundir.worker_arguments(run.read_config(), run.path)
    arguments[arguments.index("trainers.worker")] = "benchmarks.exits"
    with (run.logs / "torchrun.log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *arguments],
            env={**os.environ, **torchrun_options(run.logs / "torchrun"), REVERSED: str(int(is_reversed))},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )
    if done.returncode == 0:
        return [FINE, FINE]
    # torchrun ends the other rank when one fails: only the first failure is one of its own making.
    codes = rank_exit_codes((run.logs / "torchrun.log").read_text(errors="replace"))
    failed = [code for code in codes.values() if code != -signal.SIGTERM]
    return [_name(code) for code in failed] + [FINE] * (2 - len(failed))


def be_a_rank() -> None:
    """Train as the worker does; in the reversed order, hold on to the job until the process ends."""
    from trainers import loop, worker
    from trainers.job import Job

    if os.environ[REVERSED] == "1":
        kept = []
        train = loop.train

        def train_and_keep(job: Job) -> None:
            kept.append(job)
            train(job)

        loop.train = train_and_keep
        # Where the interpreter takes everything apart is where it can abort.
        sys.exit(worker.main())
    worker.end(worker.main())


def _name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    main()
