"""How late a machine sees what another one writes into a folder that both share, and whether locks hold.

    python -m benchmarks.shared_folder HERE THERE

HERE and THERE are the same folder, as two machines see it: for NFS, two mounts with `nosharecache`. What is
written in HERE is looked for in THERE every 50 ms, by a plain `stat` and as the page and the nodes look.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ddp_gui.events.run_view import RunView
from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.engines.local.stopping import StopRequests
from trainers.engines.several_nodes.reports import NodesFolder
from trainers.files.json_files import read_json, write_json_atomically

LOOK_EVERY_S = 0.05
GIVES_UP_AFTER_S = 90.0
# Nothing is written for so long before: NFS remembers longer what has not changed for longer.
QUIET_S = (1.0, 10.0, 40.0)
WORDS = ("state", {"state": "running", "reason": "measured"})


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="Measure a folder that two machines share.")
    parser.add_argument("here", type=Path)
    parser.add_argument("there", type=Path)
    options = parser.parse_args()
    print("| what | seen after |\n|---|---|")
    with tempfile.TemporaryDirectory(dir=options.here, ignore_cleanup_errors=True) as folder:
        here, there = Path(folder), options.there / Path(folder).name
        _seen_after(there.is_dir)
        for quiet_s in QUIET_S:
            _of_events(here, there, quiet_s)
        _of_new_files(here, there)
        _of_locks(here, there)


def _of_events(here: Path, there: Path, quiet_s: float) -> None:
    for how in ("stat", "the page"):
        run, seen = _run_in(here, there)
        file, view = EventFile(run.events), RunView(seen, 1)
        file.append([(time.time(), *WORDS)])
        look = view.catch_up if how == "the page" else _by_stat(seen.events)
        _seen_after(look)
        _look_in_vain(look, quiet_s)
        began = time.monotonic()
        file.append([(time.time(), *WORDS)])
        took_ms = (time.monotonic() - began) * 1e3
        _say(f"an event after {quiet_s:.0f} s, by {how} (written in {took_ms:.1f} ms)", _seen_after(look))
        file.close()


def _of_new_files(here: Path, there: Path) -> None:
    for how in ("stat", "the page"):
        run, seen = _run_in(here, there)
        look = RunView(seen, 1).catch_up if how == "the page" else seen.events.exists
        _look_in_vain(look, 5.0)
        file = EventFile(run.events)
        file.append([(time.time(), *WORDS)])
        file.close()
        _say(f"the first event of a run, by {how}", _seen_after(look))
    run, seen = _run_in(here, there)
    start = NodesFolder(seen, "1-0")
    _look_in_vain(start.is_there, 5.0)
    NodesFolder(run, "1-0").make()
    _say("the folder of a start, by another node", _seen_after(start.is_there))
    # Who waits for commands has made their file.
    seen.expect_commands()
    requests = StopRequests(seen.commands)
    _look_in_vain(requests.read, 5.0)
    run.append_command("stop", save=True)
    _say("a Stop, by the first node", _seen_after(requests.read))
    write_json_atomically(run.status, {"count": 1})
    _look_in_vain(lambda: read_json(seen.status)["count"] == 2, 5.0)
    write_json_atomically(run.status, {"count": 2})
    _say("a file that another has replaced", _seen_after(lambda: read_json(seen.status)["count"] == 2))


def _of_locks(here: Path, there: Path) -> None:
    run, seen = _run_in(here, there)
    held = run.acquire_lock()
    is_refused = seen.is_locked()
    print(f"| a lock that is held there | {'refused' if is_refused else '**given to both**'} |", flush=True)
    os.close(held)
    _say("that it is free", _seen_after(lambda: not seen.is_locked()))


def _run_in(here: Path, there: Path) -> tuple[RunDirectory, RunDirectory]:
    """Return a run as both machines see it."""
    run = rundir.create(here, Config())
    _seen_after(lambda: run.run_id in os.listdir(there))
    return run, RunDirectory(there / run.run_id)


def _by_stat(path: Path) -> Callable[[], bool]:
    newest = -1

    def has_grown() -> bool:
        nonlocal newest
        before, newest = newest, path.stat().st_size if path.exists() else -1
        return newest != before

    return has_grown


def _look_in_vain(look: Callable[[], object], seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        look()
        time.sleep(LOOK_EVERY_S)


def _seen_after(look: Callable[[], object]) -> float | None:
    began = time.monotonic()
    while not look():
        if time.monotonic() - began > GIVES_UP_AFTER_S:
            return None
        time.sleep(LOOK_EVERY_S)
    return time.monotonic() - began


def _say(what: str, seconds: float | None) -> None:
    print(f"| {what} | {'never' if seconds is None else f'{seconds:.2f} s'} |", flush=True)


if __name__ == "__main__":
    main()
