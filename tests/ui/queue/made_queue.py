"""A simulated queue of files: a run that requests more GPUs than exist, and a run that looks live."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ddp_gui.auth import rights
from ddp_gui.queue.store import QueueStore
from tests.unit.ddp_gui.runs.test_runs import make_run
from trainers.contract import tickets
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.tickets import Grant, Ticket
from trainers.files.json_files import write_json_atomically

NOWHERE_SO_MANY_GPUS = 64


@contextlib.contextmanager
def made_line(runs_dir: Path, person: str, name: str) -> Iterator[tuple[RunDirectory, RunDirectory]]:
    """Create a waiting and a running run of a user, until the block ends."""
    waiting, going_on = make_run(runs_dir), make_run(runs_dir)
    for run in (waiting, going_on):
        rights.note_owner(run, person)
        run.config.write_text(json.dumps(json.loads(run.config.read_text()) | {"name": name}))
    ticket = Ticket(
        person=person, kind="cuda", num_ranks=NOWHERE_SO_MANY_GPUS, asked_unix_s=time.time(), resume_step=10
    )
    tickets.write_queued(waiting, ticket)
    grant = Grant(token="made", granted_unix_s=time.time(), gpus=())
    granted = Ticket(person=person, kind="cpu", num_ranks=1, asked_unix_s=time.time(), grant=grant)
    write_json_atomically(going_on.granted, asdict(granted))
    lock = going_on.acquire_lock()
    going_on.write_status(Status(state="running", started_unix_s=time.time()))
    # Register them as another page on the same runs would.
    with QueueStore(runs_dir).open() as book:
        book.waiting.append(waiting.run_id)
        book.running.append(going_on.run_id)
    try:
        yield waiting, going_on
    finally:
        os.close(lock)
        for run in (waiting, going_on):
            shutil.rmtree(run.path)
