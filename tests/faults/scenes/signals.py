"""SIGKILL and SIGTERM to each process of a run, and to all simultaneously."""

from __future__ import annotations

import contextlib
import signal
from functools import partial

import psutil

from tests.faults.registry import add
from tests.faults.trial import BUSY_START_S, Trial
from tests.harness import LiveRun, processes_of, wait_until

VICTIMS = ("supervisor", "torchrun", "rank 0", "rank 1")
# The error of the run after a signal to each of its processes.
SAYS = {
    ("SIGKILL", "supervisor"): "gone, so the run ended without a final event",
    ("SIGKILL", "torchrun"): r"torchrun, the parent of all ranks, was killed \(SIGKILL\)",
    ("SIGKILL", "rank 0"): r"Rank 0 was killed \(SIGKILL\)",
    ("SIGKILL", "rank 1"): r"Rank 1 was killed \(SIGKILL\)",
    ("SIGTERM", "torchrun"): "torchrun.*was terminated",
    ("SIGTERM", "rank 0"): "Rank 0 was terminated",
    ("SIGTERM", "rank 1"): "Rank 1 was terminated",
}


def find(live: LiveRun, victim: str) -> psutil.Process:
    """Return one process of a run, waiting until it exists."""

    def look() -> psutil.Process | None:
        try:
            if victim == "supervisor":
                return psutil.Process(live.supervisor.pid)
            return live.torchrun() if victim == "torchrun" else live.rank(int(victim[-1]))
        except (StopIteration, LookupError, psutil.Error):
            return None

    found: psutil.Process = wait_until(f"a process {victim}", look, BUSY_START_S)
    return found


def _end_one(trial: Trial, name: str, victim: str) -> None:
    live = trial.start_and_wait_a_while()
    process = find(live, victim)
    trial.strike()
    process.send_signal(signal.Signals[name])
    live.reap()
    states = ("lost",) if (name, victim) == ("SIGKILL", "supervisor") else ("failed",)
    if (name, victim) == ("SIGTERM", "supervisor"):
        states = ("stopped", "failed")  # failed: before the signal handler was installed
    trial.ends(live.run, *states, says=SAYS.get((name, victim), ""))


def _kill_all(trial: Trial) -> None:
    live = trial.start_and_wait_a_while()
    family = processes_of(live.run)
    trial.dice.shuffle(family)
    trial.strike()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended together with another process
            process.kill()
    live.reap()
    trial.ends(
        live.run, "lost", says="Resume continues from the latest complete checkpoint|start the run again"
    )


for _name in ("SIGKILL", "SIGTERM"):
    for _victim in VICTIMS:
        add(f"{_name} to {_victim}", partial(_end_one, name=_name, victim=_victim))
add("SIGKILL to all at once", _kill_all)
