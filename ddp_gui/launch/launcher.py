"""Starts and resumes runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_gui.auth import rights
from ddp_gui.auth.rights import ClassSettingsFile
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.plan.plan import Plan, Startable, shown_run_dir
from trainers.contract import config as config_module
from trainers.contract import events, manifests, rundir
from trainers.contract.commands import WholeNumber
from trainers.contract.config import Config, ConfigError, Problem
from trainers.contract.rundir import Checkpoint, Numbering, RunDirectory
from trainers.contract.status import Status
from trainers.engines import liveness, registry
from trainers.engines.base import CODE_PLACEHOLDER, Engine
from trainers.engines.local import stopping
from trainers.files import installation
from trainers.files.plain_files import PLUGINS_VARIABLE, own_plugins
from trainers.machine.os_errors import explain

# Placeholder for the run's directory, replaced after all other values have been quoted.
_RUN_DIR_PLACEHOLDER = "@RUN@"
# Name of the run that the command creates, unique for each execution.
_NEW_RUN = "by-hand-$(date +%m%d-%H%M%S)"


def train_command(engine: Engine, config: Config, runs_dir: Path, code_dir: str = "") -> str:
    """Return the command that trains a new run with a configuration.

    Args:
        code_dir: the folder of a script's code.
    """
    run_dir = f"{shlex.quote(shown_run_dir(runs_dir))}/{_NEW_RUN}"
    command = engine.command(config, _RUN_DIR_PLACEHOLDER)
    command = [part.replace(CODE_PLACEHOLDER, code_dir) for part in command]
    return _in_project(shlex.join(command).replace(_RUN_DIR_PLACEHOLDER, run_dir))


def resume_command(engine: Engine, run: RunDirectory, step: int) -> str:
    """Return the command that resumes a run from its checkpoint of `step`."""
    return _in_project(shlex.join(engine.command(run.read_config(), shown_run_dir(run.path), step)))


def _in_project(command: str) -> str:
    plugins = own_plugins()
    variable = "" if plugins is None else f"{PLUGINS_VARIABLE}={shlex.quote(str(plugins))} "
    return installation.in_project(f"{variable}{command}")


MAX_MORE_EPOCHS = 100_000
# Schedules that do not depend on the length of the run.
SCHEDULES_WITHOUT_AN_END = ("constant", "step")


def other_ranks(before: Config, catalogue: Catalogue, num_ranks: Any, global_batch: str) -> dict[str, Any]:
    """Return the fields that change when a run is resumed with another number of ranks.

    Raises:
        ConfigError: if the global batch cannot be kept.
    """
    strategy = catalogue.strategies.get(before.strategy)
    if num_ranks is None or num_ranks == "" or strategy is None:
        return {}
    if global_batch not in ("keep", "rescale"):
        raise ConfigError([Problem(field="global_batch", value=global_batch, allowed="keep or rescale")])
    after = config_module.parse(before.to_json() | {"nproc_per_node": num_ranks})
    if after.world_size == before.world_size:
        return {}
    changes: dict[str, Any] = {"nproc_per_node": after.nproc_per_node}
    if global_batch == "keep":
        num_replicas = before.num_replicas(strategy.ranks_per_replica)
        batch_before = before.global_batch(num_replicas)
        num_parts = after.num_replicas(strategy.ranks_per_replica) * after.gradient_accumulation_steps
        if batch_before % num_parts:
            allowed = (
                f"a number of ranks among which the global batch of {batch_before:,} can be shared, "
                "or global_batch rescale, which keeps each rank's batch"
            )
            raise ConfigError([Problem(field="nproc_per_node", value=num_ranks, allowed=allowed)])
        changes["batch_size"] = batch_before // num_parts
        if before.scale_lr:
            # The peak rate depends on the global batch, which stays the same.
            changes["learning_rate"] = before.peak_learning_rate(num_replicas) / num_parts
    return changes


def more_epochs(checkpoint: Checkpoint, more: Any, *, stopped_early: bool) -> dict[str, Any]:
    """Return the fields that change when a run trains this many epochs after a checkpoint.

    The number of epochs replaces a limit of steps. If early stopping ended the run, it is turned off, because
    the run would end again immediately.

    Raises:
        ConfigError: if `more` is not a valid number of epochs.
        ValueError: if the checkpoint cannot be read.
    """
    if isinstance(more, bool) or not isinstance(more, int) or not 1 <= more <= MAX_MORE_EPOCHS:
        allowed = f"a whole number from 1 to {MAX_MORE_EPOCHS:,}"
        raise ConfigError([Problem(field="more_epochs", value=more, allowed=allowed)])
    progress = manifests.read_state(checkpoint)["progress"]
    num_done = int(progress["epoch"]) + (int(progress["samples_in_epoch"]) > 0)
    changes: dict[str, Any] = {"num_epochs": num_done + more, "max_steps": None}
    return changes | ({"early_stopping_patience": None} if stopped_early else {})


def more_epochs_note(config: Config, *, num_steps: int | None) -> str:
    """Return a sentence that compares the result with a run that requests all epochs from the start.

    Args:
        num_steps: the run's total number of steps, if known.
    """
    if config.lr_schedule not in SCHEDULES_WITHOUT_AN_END:
        schedule = config.lr_schedule.replace("_", "-")
        return (
            f"The {schedule} schedule will span all epochs: the learning rate jumps up first, so the "
            "result differs from a run that requests all epochs from the start."
        )
    if config.warmup_ratio or (num_steps is not None and config.warmup_steps > num_steps):
        return (
            "The warm-up was shorter, so the result differs slightly from a run that requests all epochs "
            "from the start."
        )
    return "The result equals that of a run that requests all epochs from the start."


class NotWritableError(ValueError):
    """A run accepts no command, because its folder is not writable or its engine does not answer."""


def create(
    runs_dir: Path, plan: Startable, owner: str, fill: Callable[[RunDirectory], None] | None = None
) -> RunDirectory:
    """Create a run.

    Args:
        owner: the run's owner; empty without login.
        fill: writes the other initial files of its directory.
    Raises:
        OSError: if the run directory cannot be written.
    """

    def fill_in(run: RunDirectory) -> None:
        if owner:
            rights.note_owner(run, owner)
        plan.note(run)
        if fill is not None:
            fill(run)

    return rundir.create(runs_dir, plan.config, fill_in, numbering(runs_dir))


def numbering(runs_dir: Path) -> Numbering | None:
    """Return how the current user's runs are numbered; None if the user may see all runs."""
    settings = ClassSettingsFile(runs_dir).read()
    if rights.may_see(None, settings):
        return None
    return Numbering(
        suffix=rights.current_user().name,
        may_see=lambda path: rights.may_see(rights.owner_of(RunDirectory(path)), settings),
    )


def checkpoint_to_resume(run: RunDirectory, step: int | None, plan: Plan) -> Checkpoint:
    """Return the checkpoint of `step`, or the latest intact one, if training can continue after it.

    A run that has done all of its steps, but was killed before it finished, can also be resumed. `plan` is
    the plan of the resumed run, which may have another number of ranks.

    Raises:
        ValueError: if the checkpoint does not exist, or is the end of a finished run.
    """
    checkpoint = pick_checkpoint(run, step)
    num_steps = num_steps_from(checkpoint, plan)
    if checkpoint.step >= num_steps and liveness.read_status(run).state == "finished":
        raise ValueError(
            f"run {run.run_id} has done all of its {num_steps:,} steps at this checkpoint: choose an "
            "earlier checkpoint, or train more epochs"
        )
    return checkpoint


def num_steps_from(checkpoint: Checkpoint, plan: Plan) -> int:
    """Return the last step of a run resumed from a checkpoint, from the data sizes in the checkpoint."""
    try:
        state = manifests.read_state(checkpoint)
        position = {name: state["progress"][name] for name in ("step", "epoch", "samples_in_epoch")}
        num_train = int(state["binding"]["num_train"])
    except (ValueError, LookupError):
        return plan.num_steps  # training will report the damage
    return plan.config.num_steps(num_train, plan.num_replicas, **position)


def pick_checkpoint(run: RunDirectory, step: int | None) -> Checkpoint:
    """Return the checkpoint of `step`, or the latest intact one.

    If none is intact, return the one saved last; training then reports its damage.

    Raises:
        ValueError: if the run has no such checkpoint.
    """
    checkpoints = run.list_checkpoints()
    if not checkpoints:
        raise ValueError(f"run {run.run_id} has no checkpoint to resume from: start a new run")
    if step is None:
        intact = manifests.latest_intact(run, sum_bytes=manifests.QUICK_BYTES)
        return intact or max(checkpoints, key=lambda item: (item.saved_unix_s, item.step))
    for item in checkpoints:
        if item.step == step:
            return item
    steps = ", ".join(str(item.step) for item in checkpoints)
    raise ValueError(f"checkpoint_step is {step}; allowed: one of {steps}, or null for the latest")


def send(run: RunDirectory, status: Status, name: str, **arguments: object) -> str:
    """Send a command other than `stop` to a live run and return the command's id.

    Args:
        status: the run's actual state, read for this request (also in the functions below).
    Raises:
        ValueError: if the run is not live.
    """
    assert name != "stop", "use `stop`, which also enforces the stop"
    _require_live(run, status, name)
    try:
        return run.append_command(name, **arguments)
    except OSError as error:
        raise _not_writable(run, name, error) from error


def stop(run: RunDirectory, status: Status, *, save: bool, why: str = "") -> str:
    """Make the engine end a live run; return the command's id, or "" if a signal was sent instead.

    A stop without saving needs no disk space: if the run's folder accepts no command, the run gets a signal.

    Raises:
        NotWritableError: if the command to save cannot be sent, because the folder is not writable.
        ValueError: if the run is not live.
    """
    _require_live(run, status, "stop")
    engine = registry.get_engine(status.engine)
    try:
        return engine.stop(run, status, save=save, reason=why)
    except OSError as error:
        if not save:
            _kill(run, status, engine)
        if save or liveness.is_alive(run):
            raise _not_writable(run, "stop", error) from error
    return ""


def kill_rank(run: RunDirectory, status: Status, rank: object) -> int:
    """Kill the process of one rank of a live run; return the rank.

    Raises:
        ValueError: if the run is not live, the rank does not exist, or its engine does not support it.
    """
    number = WholeNumber(name="rank", minimum=0, maximum=run.read_config().world_size - 1).validate(rank)
    _require_live(run, status, "kill a rank")
    engine = registry.get_engine(status.engine)
    if not engine.is_this_machine:
        location = f"this run is on {engine.name}"
        raise ValueError(f"the page can kill a single rank only on its own machine; {location}")
    try:
        stopping.kill_rank(run, status, number)
    except OSError as error:
        raise _not_writable(run, "kill a rank", error) from error
    return number


def stop_or_kill(run: RunDirectory, why: str) -> bool:
    """Stop a run, with a save if its folder is writable; return True if it saves.

    Raises:
        NotWritableError: if the run cannot be stopped either way.
        ValueError: if it is not live.
    """
    status = liveness.read_status(run)
    try:
        stop(run, status, save=True, why=why)
    except NotWritableError:
        stop(run, status, save=False, why=why)
        return False
    return True


def _kill(run: RunDirectory, status: Status, engine: Engine) -> None:
    try:
        engine.kill(run, status)
    except OSError as error:  # no space for the final events either
        print(f"run {run.run_id} was killed, but its end could not be recorded: {explain(error)}", flush=True)


def _require_live(run: RunDirectory, status: Status, name: str) -> None:
    if run.queued.exists() and status.state == "queued":
        raise ValueError(
            f"run {run.run_id} is still in the queue: it can be asked to {name} once it has started"
        )
    if status.state not in events.LIVE_STATES:
        raise ValueError(f"run {run.run_id} is {status.state}: only a live run can be asked to {name}")


def _not_writable(run: RunDirectory, name: str, error: OSError) -> NotWritableError:
    if error.errno is None:  # the engine does not answer; the folder is not the problem
        return NotWritableError(f"run {run.run_id} cannot be asked to {name}: {error}")
    return NotWritableError(
        f"run {run.run_id} cannot be asked to {name}, because its folder is not writable: "
        f"{explain(error)}, or stop it without saving"
    )
