"""Creates runs and sends commands to live ones; a run's engine starts and ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddp_gui.auth import current_user, owners, rights
from ddp_gui.auth.class_settings import ClassSettingsFile
from ddp_gui.plan import data_snapshot
from ddp_gui.plan.plan import Plan
from trainers.contract import events, manifests, rundir
from trainers.contract.commands import WholeNumber
from trainers.contract.run_ids import Numbering
from trainers.contract.rundir import Checkpoint, RunDirectory
from trainers.engines import liveness
from trainers.engines.base import Engine
from trainers.machine.os_errors import explain


class NotWritableError(ValueError):
    """A run takes no command now: its folder cannot be written, or its engine does not answer."""


def create(
    runs_dir: Path, plan: Plan, owner: str, fill: Callable[[RunDirectory], None] | None = None
) -> RunDirectory:
    """Create a run.

    Args:
        owner: the run's owner; empty without a login.
        fill: writes the other initial files of its directory.

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
    """Return how the current user's runs are numbered; None if they may see all runs."""
    settings = ClassSettingsFile(runs_dir).read()
    if rights.may_see(None, settings):
        return None
    return Numbering(
        suffix=current_user.current_user().name,
        may_see=lambda path: rights.may_see(owners.owner_of(RunDirectory(path)), settings),
    )


def resume_paused(run: RunDirectory) -> None:
    """Ask a paused run to continue."""
    run.append_command("resume")


def checkpoint_to_go_on_from(run: RunDirectory, step: int | None, plan: Plan) -> Checkpoint:
    """Return the checkpoint of `step`, or the newest whole one, if there is work left after it.

    A run that has done all of its steps, but was killed before it finished, still has to finish. `plan` is
    for the resumed run; its configuration may have another number of ranks.

    Raises:
        ValueError: when there is no such checkpoint, or the run is finished and this is its end.
    """
    checkpoint = pick_checkpoint(run, step)
    num_steps = num_steps_from(checkpoint, plan)
    if checkpoint.step >= num_steps and liveness.read_status(run).state == "finished":
        raise ValueError(
            f"run {run.run_id} has done all of its {num_steps:,} steps at this checkpoint: choose an earlier "
            "one, or train more epochs from there"
        )
    return checkpoint


def num_steps_from(checkpoint: Checkpoint, plan: Plan) -> int:
    """Return the last step of a run resumed from a checkpoint, by the data sizes in the checkpoint."""
    try:
        state = manifests.read_state(checkpoint)
        position = {name: state["progress"][name] for name in ("step", "epoch", "samples_in_epoch")}
        num_train = int(state["binding"]["num_train"])
    except (ValueError, LookupError):
        return plan.num_steps  # training reports what is wrong with it
    return plan.config.num_steps(num_train, plan.num_replicas, **position)


def pick_checkpoint(run: RunDirectory, step: int | None) -> Checkpoint:
    """Return the checkpoint of `step`, or the intact one that was saved last.

    If none is intact it is the one saved last; training then reports what is wrong with it.

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


def send(run: RunDirectory, name: str, **arguments: object) -> str:
    """Send a command other than `stop` to a live run and return the command's id.

    Raises:
        ValueError: when the run is not live.
    """
    assert name != "stop", "`stop` also sees to it that a stop is obeyed"
    _require_live(run, name)
    try:
        return run.append_command(name, **arguments)
    except OSError as error:
        raise _not_writable(run, name, error) from error


def stop(run: RunDirectory, *, save: bool, why: str = "") -> str:
    """Have a live run's engine end it; return the command's id, or "" where it was ended by a signal.

    A stop without saving needs nothing of the disk: a run whose folder takes no command gets a signal.

    Raises:
        NotWritableError: when it cannot be asked to save, because its folder cannot be written.
        ValueError: when the run is not live.
    """
    _require_live(run, "stop")
    engine = liveness.engine_of(run)
    try:
        return engine.stop(run, save=save, why=why)
    except OSError as error:
        if not save:
            _kill(run, engine)
        if save or liveness.is_alive(run):
            raise _not_writable(run, "stop", error) from error
    return ""


def kill_rank(run: RunDirectory, rank: object) -> int:
    """Kill the process of one rank of a live run; return the rank.

    Raises:
        ValueError: when the run is not live, there is no such rank, or its engine cannot.
    """
    number = WholeNumber(name="rank", least=0, most=run.read_config().world_size - 1).checked(rank)
    _require_live(run, "kill a rank")
    try:
        liveness.engine_of(run).kill_rank(run, number)
    except OSError as error:
        raise _not_writable(run, "kill a rank", error) from error
    return number


def stop_surely(run: RunDirectory, why: str) -> bool:
    """Stop a run for good, after a save if its folder takes the command; return True if it saves first.

    Raises:
        NotWritableError: when it cannot be stopped either way.
        ValueError: when it is not live.
    """
    try:
        stop(run, save=True, why=why)
    except NotWritableError:
        stop(run, save=False, why=why)
        return False
    return True


def _kill(run: RunDirectory, engine: Engine) -> None:
    try:
        engine.kill(run)
    except OSError as error:  # its final events have no room either
        print(f"run {run.run_id} was killed, and that could not be recorded: {explain(error)}", flush=True)


def _require_live(run: RunDirectory, name: str) -> None:
    state = liveness.read_status(run).state
    if run.queued.exists() and state == "queued":
        raise ValueError(
            f"run {run.run_id} is still in the queue: it can be asked to {name} once it has started"
        )
    if state not in events.LIVE_STATES:
        raise ValueError(f"run {run.run_id} is {state}: only a live run can be asked to {name}")


def _not_writable(run: RunDirectory, name: str, error: OSError) -> NotWritableError:
    if error.errno is None:  # not the folder: an engine that does not answer
        return NotWritableError(f"run {run.run_id} cannot be asked to {name}: {error}")
    return NotWritableError(
        f"run {run.run_id} cannot be asked to {name}, because its folder cannot be written: "
        f"{explain(error)}, or stop it without saving"
    )
