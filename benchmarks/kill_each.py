"""Kill -9 each process of a running job in turn and see what is left.

    python -m benchmarks.kill_each

For each of GUI, supervisor, torchrun, rank 0 and rank 1: the state the run ended in, after how many
seconds, the processes left, and what the run says happened. One Markdown row each.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psutil
from gradio_client import Client

from tests.harness import ranks_below
from tools import page_driver
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

VICTIMS = ("GUI", "supervisor", "torchrun", "rank 0", "rank 1")
CONFIG = {"dataset": "fashion_mnist", "model": "cnn", "num_epochs": 500}
KILL_AFTER_STEPS = 100
END_TIMEOUT_S = 30.0
GUI_WATCH_S = 5.0


def main() -> None:
    """Print the table."""
    print("| killed with -9 | state of the run | after s | processes left | what it says |")
    print("|---|---|---|---|---|")
    for victim in VICTIMS:
        with tempfile.TemporaryDirectory() as folder:
            print("| " + " | ".join(kill(victim, Path(folder))) + " |", flush=True)


def kill(victim: str, runs_dir: Path) -> tuple[str, ...]:
    """Start a run, kill one of its processes, and return a row of the table."""
    with page_driver.serve(runs_dir) as server:
        run_id = Client(server.address, verbose=False).predict(CONFIG, api_name="/start_run")["run_id"]
        run = RunDirectory(runs_dir / run_id)
        _wait_for_step(run, KILL_AFTER_STEPS)
        tree = processes_of(run)
        tree["GUI"] = psutil.Process(server.process.pid)
        tree[victim].kill()
        killed = time.monotonic()
        if victim == "GUI":
            return _after_gui(run, tree)
        while liveness.read_status(run).state in events.LIVE_STATES or _alive(tree):
            if time.monotonic() - killed > END_TIMEOUT_S:
                break
            time.sleep(0.02)
        took = time.monotonic() - killed
    status = liveness.read_status(run)
    for checkpoint in run.list_checkpoints():
        assert (checkpoint.path / "manifest.json").is_file()
    return victim, status.state, f"{took:.1f}", str(len(_alive(tree))), status.error or ""


def processes_of(run: RunDirectory) -> dict[str, psutil.Process]:
    """Return the processes of a run by what they are."""
    pid = liveness.read_status(run).pid
    assert pid is not None
    supervisor = psutil.Process(pid)
    (torchrun,) = supervisor.children()
    named = {"supervisor": supervisor, "torchrun": torchrun}
    return named | {f"rank {rank}": process for rank, process in enumerate(ranks_below(torchrun))}


def _after_gui(run: RunDirectory, tree: dict[str, psutil.Process]) -> tuple[str, ...]:
    before = (events.last(run.events) or {})["seq"]
    time.sleep(GUI_WATCH_S)
    after = (events.last(run.events) or {})["seq"]
    state = liveness.read_status(run).state
    run.append_command("stop", save=True)
    while liveness.read_status(run).state in events.LIVE_STATES or _alive(tree):
        time.sleep(0.05)
    return (
        "GUI",
        f"{state} (goes on)",
        "–",
        str(len(_alive(tree))),
        f"{after - before} more events in 5 s; then stopped by command",
    )


def _alive(tree: dict[str, psutil.Process]) -> list[str]:
    return [
        name
        for name, process in tree.items()
        if name != "GUI" and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


def _wait_for_step(run: RunDirectory, step: int) -> None:
    deadline = time.monotonic() + 60
    while (events.last(run.events) or {}).get("step", 0) < step:
        assert time.monotonic() < deadline, "the run did not get going"
        time.sleep(0.05)


if __name__ == "__main__":
    main()
