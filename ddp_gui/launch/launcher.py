"""Starts, resumes and commands runs; the supervisor it starts outlives the page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ddp_gui.auth import current_user, owners, rights
from ddp_gui.auth.class_settings import ClassSettingsFile
from ddp_gui.launch import stopping
from ddp_gui.launch.warm_pool import WarmPool
from ddp_gui.plan import data_snapshot
from ddp_gui.plan.plan import Plan
from trainers.contract import events, manifests, rundir
from trainers.contract.orders import Order
from trainers.contract.run_ids import Numbering
from trainers.contract.rundir import Checkpoint, CommandName, RunDirectory
from trainers.contract.tickets import Ticket
from trainers.files import private_files
from trainers.files.plain_files import open_plain, open_to_append
from trainers.machine import cuda_environment, environment, processes
from trainers.paths import REPOSITORY

HANDSHAKE_S = 20.0
HANDSHAKE_POLL_S = 0.01
MOST_LAST_WORDS_BYTES = 16 * 1024


class LaunchError(RuntimeError):
    """The supervisor did not come up; says its last words."""


def create(
    runs_dir: Path, plan: Plan, owner: str, fill: Callable[[RunDirectory], None] | None = None
) -> RunDirectory:
    """Create a run.

    Args:
        owner: whose run it is; empty where nobody has to log in.
        fill: writes what else is in its directory from the beginning.

    Raises:
        OSError: when the run directory cannot be written.
    """

    def fill_in(run: RunDirectory) -> None:
        if owner:
            owners.note_owner(run, owner)
        data_snapshot.note_data(run, plan)
        if fill is not None:
            fill(run)

    return rundir.create(runs_dir, plan.config, fill_in, numbering(runs_dir))


def numbering(runs_dir: Path) -> Numbering | None:
    """Return how the current user's runs are numbered; None where they may see all runs."""
    settings = ClassSettingsFile(runs_dir).read()
    if rights.may_see(None, settings):
        return None
    return Numbering(
        suffix=current_user.current_user().name,
        may_see=lambda path: rights.may_see(owners.owner_of(RunDirectory(path)), settings),
    )


def resume_paused(run: RunDirectory) -> None:
    """Ask a paused run to go on."""
    run.append_command("resume")


def checkpoint_to_go_on_from(run: RunDirectory, step: int | None, plan: Plan) -> Checkpoint:
    """Return the checkpoint of `step`, or the newest whole one, where something is left to do after it.

    A run that has done all of its steps, but ended before it could say so, has that left to do.
    `plan` says how it goes on; its configuration may have another number of ranks.

    Raises:
        ValueError: when there is no such checkpoint, or the run is finished and this is its end.
    """
    checkpoint = pick_checkpoint(run, step)
    num_steps = num_steps_from(checkpoint, plan)
    if checkpoint.step >= num_steps and run.read_status().state == "finished":
        raise ValueError(
            f"run {run.run_id} has done all of its {num_steps:,} steps at this checkpoint: choose an earlier "
            "one, or start a new run with more epochs"
        )
    return checkpoint


def num_steps_from(checkpoint: Checkpoint, plan: Plan) -> int:
    """Return the last step of a run that goes on from a checkpoint, by what it says of the data."""
    try:
        state = manifests.read_state(checkpoint)
        position = {name: state["progress"][name] for name in ("step", "epoch", "samples_in_epoch")}
        num_train = int(state["binding"]["num_train"])
    except (ValueError, LookupError):
        return plan.num_steps  # training will say what is wrong with it
    return plan.config.num_steps(num_train, plan.num_replicas, **position)


def pick_checkpoint(run: RunDirectory, step: int | None) -> Checkpoint:
    """Return the checkpoint of `step`, or of those whose files are what was saved the one saved last.

    Where none is whole it is the one saved last, of which training says what is wrong with it.

    Raises:
        ValueError: when there is none.
    """
    there = run.list_checkpoints()
    if not there:
        raise ValueError(f"run {run.run_id} has no checkpoint to resume from: start a new run")
    if step is None:
        whole = manifests.newest_whole(run, sum_bytes=manifests.QUICK_BYTES)
        return whole or max(there, key=lambda item: (item.saved_unix_s, item.step))
    for item in there:
        if item.step == step:
            return item
    steps = ", ".join(str(item.step) for item in there)
    raise ValueError(f"checkpoint_step is {step}, but allowed is: one of {steps}, or null for the newest")


def send(run: RunDirectory, name: CommandName, **arguments: object) -> str:
    """Send a command to a live run and return the command's id.

    Raises:
        ValueError: when the run is not live.
    """
    state = run.read_status().state
    if run.queued.exists() and state == "queued":
        raise ValueError(
            f"run {run.run_id} is still in the queue: it can be asked to {name} once it has started"
        )
    if state not in events.LIVE_STATES:
        raise ValueError(f"run {run.run_id} is {state}: only a live run can be asked to {name}")
    try:
        command_id = run.append_command(name, **arguments)
    except OSError as error:
        if name == "stop" and not arguments.get("save", True) and _end_by_signal(run):
            return ""
        raise ValueError(
            f"run {run.run_id} cannot be asked to {name}, because its folder cannot be written "
            f"({error.strerror}): free some space, or stop it without saving"
        ) from error
    if name == "stop":
        stopping.see_to_it(run)
    return command_id


def _end_by_signal(run: RunDirectory) -> bool:
    """Tell a run's supervisor to end it; whether there was one, by its number and when it was started."""
    private_files.require_ours(run.status)  # it names the process
    status = run.read_status()
    if status.pid is None or (found := processes.look_at(status.pid)) is None:
        return False
    if found.started_unix_s != status.pid_start_time:
        return False  # somebody else has the number now
    os.kill(status.pid, signal.SIGTERM)
    return True


def start_supervisor(
    run: RunDirectory, ticket: Ticket, standby: WarmPool | None = None
) -> subprocess.Popen[bytes]:
    """Start the supervisor of a run that was granted what its ticket says, and of its GPUs only those.

    Where ranks stand by for it, they and their supervisor take it.
    """
    grant = ticket.grant
    assert grant is not None, "a run is started when it was given what it needs"
    command = [
        sys.executable,
        "-m",
        "trainers.engines.local.supervisor",
        str(run.path.resolve()),
        "--ticket",
        grant.token,
    ]
    if ticket.resume_step is not None:
        command += ["--resume", str(ticket.resume_step)]
    more = cuda_environment.only(gpu.uuid for gpu in grant.gpus)  # of none on the CPU: it sees none
    order = Order(
        run_dir=str(run.path.resolve()), resume_step=ticket.resume_step, ticket=grant.token, environment=more
    )
    if standby is not None and (taken := standby.take(ticket.num_ranks, order)) is not None:
        return taken
    run.logs.mkdir(exist_ok=True)
    with os.fdopen(open_to_append(_log_of(run)), "ab") as log:
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment.for_a_child(more, keep=environment.FOR_NOTIFYING),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_until_owned(run: RunDirectory, process: subprocess.Popen[bytes]) -> None:
    """Wait for the supervisor's first status, which says that it holds the lock.

    Raises:
        LaunchError: when the supervisor ends at once, or says nothing.
    """
    deadline = time.monotonic() + HANDSHAKE_S
    while run.read_status().pid != process.pid:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise LaunchError(f"run {run.run_id} could not be started: {_last_words(run) or 'no answer'}")
        time.sleep(HANDSHAKE_POLL_S)


def _last_words(run: RunDirectory) -> str:
    try:
        with open_plain(_log_of(run)) as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MOST_LAST_WORDS_BYTES))
            lines = log.read().decode("utf-8", errors="replace").strip().splitlines()
    except (OSError, ValueError):
        return ""
    return lines[-1] if lines else ""


def _log_of(run: RunDirectory) -> Path:
    return run.logs / "supervisor.log"
