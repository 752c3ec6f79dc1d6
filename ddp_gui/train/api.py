"""Named endpoints that start and control runs, shared by the page and `gradio_client`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

from ddp_gui.auth import rights
from ddp_gui.auth.rights import DataAccess
from ddp_gui.background.workers import CLICKS, STARTS
from ddp_gui.devices.capacity import Machine
from ddp_gui.launch import launcher
from ddp_gui.launch.as_code import script
from ddp_gui.operations import SEES_RUN, Function, Rate, operation
from ddp_gui.plan import plan, recipe
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.plan.own_data import Inspection
from ddp_gui.plan.plan import Plan, Startable
from ddp_gui.queue.presenter import QueuePresenter
from ddp_gui.queue.scheduler import Scheduler, StartResult
from ddp_gui.run.model_process import ModelProcesses
from ddp_gui.runs import imports
from ddp_gui.runs.runs import RunStore, status_values
from ddp_gui.train.starts import Starts
from trainers.contract import code, events
from trainers.contract import config as config_module
from trainers.contract.commands import COMMANDS, Argument, Endpoint
from trainers.contract.config import Config, ConfigError, Problem
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

STARTS_RATE = Rate("a start", 10)
INSPECTION_RATE = Rate("an inspection of data", 20)
# Messages, by whether the stop saves.
STOPPING = {True: "Saving a checkpoint, then stopping.", False: "Stopping without saving."}
REMOVED = "Removed from the queue."
STOPPING_SCRIPT = "Stopping: at the script's next call of watch.should_stop, else by SIGTERM."


class Api:
    """The endpoints of one runs directory. Results are JSON values."""

    def __init__(
        self,
        store: RunStore,
        scheduler: Scheduler,
        queue_presenter: QueuePresenter,
        access: DataAccess,
        models: ModelProcesses | None = None,
        plan_script: Callable[[RunDirectory], Startable] | None = None,
    ) -> None:
        self.starts = Starts(store, models)
        self._scheduler = scheduler
        self._queue_presenter = queue_presenter
        self.access = access
        self._catalogue = store.catalogue
        self.store = store
        self._own_data = store.own_data
        self._plan_script = plan_script

    def machine(self, config: Config | None = None) -> Machine:
        """Return the resources that are available to this configuration; None: to any run."""
        return self._scheduler.capacity(config)

    def plan(self, raw: dict[str, Any], *, resumes: bool = False) -> Plan:
        """Validate a configuration and plan its run. The user's own data must have been inspected before.

        Args:
            resumes: True for an existing run, which has its own copy of the checkpoint that it started from.
        Raises:
            ConfigError: naming the field, the value and the allowed range.
        """
        raw = raw if resumes else self.starts.complete(raw)
        config, catalogue, machine = self._with_data(raw)
        planned = plan.make(recipe.complete(config, catalogue, raw), catalogue, machine)
        if planned.config.start_from and not resumes:
            planned = self.starts.check(planned)
        self._scheduler.check_engine_support(planned.config)
        return planned

    def recipe(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return recommended values for the fields of `recipe.FIELDS` that `raw` omits.

        Empty if the data set is unknown or another field is invalid.
        """
        try:
            config, catalogue, _ = self._with_data(raw)
        except ConfigError:
            return {}
        if config.dataset not in catalogue.datasets:
            return {}
        complete = recipe.complete(config, catalogue, raw)
        return {name: getattr(complete, name) for name in recipe.FIELDS if name not in raw}

    def _with_data(self, raw: dict[str, Any]) -> tuple[Config, Catalogue, Machine]:
        """Return the configuration, the catalogue with the user's own data, if any, and the machine."""
        config = config_module.parse(raw)
        machine = self._scheduler.capacity(config)
        config = plan.parse(raw, machine, config)
        self.access.check(config)
        catalogue = self._catalogue.get()
        if config.dataset in catalogue.own_data:
            catalogue = self._own_data.extend(catalogue, config, self._own_data.find_cached(config))
        return config, catalogue, machine

    async def inspect(self, raw: dict[str, Any], *, anew: bool = False) -> Inspection:
        """Inspect the user's own data.

        Args:
            anew: ignore a cached result.

        Raises:
            ConfigError: if the data does not exist or the current user cannot see it.
            InspectionError: if the inspection process failed.
        """
        config = config_module.parse(raw)
        await CLICKS.run(self.access.check, config)
        if anew:
            INSPECTION_RATE.count(self)
        return await self._own_data.inspect(config, ignore_cache=anew)

    def largest_batch(self, raw: dict[str, Any], inspection: Inspection) -> int | None:
        """Return the largest possible batch per rank with this data; None if it is unknown."""
        try:
            config = config_module.parse(raw)
        except ConfigError:
            return None
        strategy = self._catalogue.get().strategies.get(config.strategy)
        if inspection.dataset is None or strategy is None:
            return None
        return max(1, inspection.dataset.num_train // config.num_replicas(strategy.ranks_per_replica))

    async def _inspect_first(self, raw: dict[str, Any]) -> None:
        """Inspect the user's own data, if the configuration uses it, before the run is planned."""

        def own_data() -> dict[str, Any] | None:
            completed = self.starts.complete(raw)
            is_own = (
                isinstance(completed, dict) and completed.get("dataset") in self._catalogue.get().own_data
            )
            return completed if is_own else None

        if (own_config := await CLICKS.run(own_data)) is not None:
            await self.inspect(own_config)

    @operation()
    def catalog(self) -> dict[str, Any]:
        """Return the available models, data sets and strategies, and the broken plug-ins."""
        return dict(self._catalogue.get().raw)

    @operation()
    async def as_code(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a configuration as one script that uses only torch and numpy, and as a notebook.

        Missing fields get the values that the form would fill in.
        """
        await self._inspect_first(config)
        planned = await CLICKS.run(self.plan, config)
        return await CLICKS.run(script.describe, planned.config, planned.dataset, planned.strategy)

    @operation(rate=STARTS_RATE, counts_itself=True)
    async def start_run(self, config: dict[str, Any], use_occupied_gpus: bool = False) -> dict[str, Any]:
        """Start or queue a run; missing fields get the values that the form would fill in.

        GPUs that other programs use are excluded unless `use_occupied_gpus` is true.
        """

        def start() -> dict[str, Any]:
            planned = self.plan(config)
            STARTS_RATE.count(self)
            owner = rights.current_user().name
            placed = self._scheduler.start(planned, owner, uses_occupied_gpus=bool(use_occupied_gpus))
            return self._placed_result(placed, "Started.")

        await self._inspect_first(config)
        return await STARTS.run(start)

    @operation(run="change")
    def stop_run(self, run: RunDirectory, save: bool = True) -> dict[str, Any]:
        """Stop a run, by default after saving a checkpoint; a queued run is removed from the queue."""
        if run.queued.exists() and (state := self._scheduler.remove_from_queue(run)) is not None:
            return _result(run, REMOVED, state) | {"command_id": None}
        status = liveness.read_status(run)
        is_script = (run.path / code.FOLDER).is_dir()
        command_id = launcher.stop(run, status, save=save and not is_script)
        if status.state == "queued":  # the run waited in the engine's queue
            return _result(run, REMOVED) | {"command_id": None}
        message = STOPPING_SCRIPT if is_script else STOPPING[bool(save)]
        if status.state == "starting" and not is_script:  # there may be nothing to save yet
            message = "Stopping."
        # Without a command, the run has already ended.
        return _result(run, message, status.state if command_id else None) | {"command_id": command_id}

    @operation(run="change")
    def kill_rank(self, run: RunDirectory, rank: int) -> dict[str, Any]:
        """Kill the process of one rank. The run fails, and can be resumed from a checkpoint."""
        status = liveness.read_status(run)
        number = launcher.kill_rank(run, status, rank)
        return _result(run, f"Rank {number} was killed. The run now fails.", status.state)

    @operation(run="change", rate=STARTS_RATE, counts_itself=True)
    async def resume_run(
        self,
        run: RunDirectory,
        checkpoint_step: int | None = None,
        nproc_per_node: int | None = None,
        global_batch: str = "keep",
    ) -> dict[str, Any]:
        """Continue a paused run, or resume an ended one from a checkpoint (by default the latest).

        An ended run can be resumed with a different number of ranks. With `global_batch` "keep" the batch
        per rank changes; with "rescale" it stays and the global batch changes.
        """
        return await self._resume(run, checkpoint_step, nproc_per_node, global_batch, more_epochs=None)

    @operation(run="change", rate=STARTS_RATE, counts_itself=True)
    async def train_more(
        self,
        run: RunDirectory,
        more_epochs: int,
        checkpoint_step: int | None = None,
        nproc_per_node: int | None = None,
        global_batch: str = "keep",
    ) -> dict[str, Any]:
        """Resume an ended run for a number of epochs after a checkpoint, whatever length was configured."""
        return await self._resume(run, checkpoint_step, nproc_per_node, global_batch, more_epochs=more_epochs)

    async def _resume(
        self,
        run: RunDirectory,
        checkpoint_step: int | None,
        nproc_per_node: int | None,
        global_batch: str,
        *,
        more_epochs: int | None,
    ) -> dict[str, Any]:
        await CLICKS.run(imports.refuse_to_continue, run)
        run_config = await CLICKS.run(run.read_config)

        def resume_script() -> dict[str, Any]:
            unsupported = {"nproc_per_node": nproc_per_node, "more_epochs": more_epochs}
            for name, value in unsupported.items():
                if value is not None and value != getattr(run_config, name, None):
                    allowed = (
                        "null: a script keeps its number of ranks, and itself decides how long it trains"
                    )
                    raise ConfigError([Problem(field=name, value=value, allowed=allowed)])
            if self._plan_script is None:
                raise ValueError("scripts can be started and resumed only on the page")
            if (state := liveness.read_status(run).state) in events.LIVE_STATES:
                raise ValueError(f"run {run.run_id} is {state}: only an ended run can be resumed")
            checkpoint = launcher.pick_checkpoint(run, _parse_step(checkpoint_step))
            checked = self._plan_script(run)
            STARTS_RATE.count(self)
            placed = self._scheduler.resume(run, checkpoint.step, checked, rights.owner_of(run) or "")
            return self._placed_result(placed, f"Continuing from step {checkpoint.step:,}.")

        def resume() -> dict[str, Any]:
            status = liveness.read_status(run)
            state = status.state
            if state == "paused" and more_epochs is None:
                run.append_command("resume")
                return _result(run, "Continuing.", state)
            if state == "queued":
                raise ValueError(f"run {run.run_id} is already in the queue: it starts automatically")
            if state in events.LIVE_STATES:
                allowed_states = (
                    "a paused or an ended run can be resumed"
                    if more_epochs is None
                    else "an ended run can be trained for more epochs"
                )
                raise ValueError(f"run {run.run_id} is {state}: only {allowed_states}")
            # Validate only the changed configuration: the original may need more GPUs than this machine has.
            changes = launcher.other_ranks(run_config, self._catalogue.get(), nproc_per_node, global_batch)
            checked = self.plan(run_config.to_json() | changes, resumes=True)
            step = _parse_step(checkpoint_step)
            if more_epochs is not None:
                last_checkpoint = launcher.pick_checkpoint(run, step)
                stopped_early = state == "finished" and last_checkpoint.step < launcher.num_steps_from(
                    last_checkpoint, checked
                )
                changes |= launcher.more_epochs(last_checkpoint, more_epochs, stopped_early=stopped_early)
                checked = self.plan(run_config.to_json() | changes, resumes=True)
            checkpoint = launcher.checkpoint_to_resume(run, step, checked)
            STARTS_RATE.count(self)
            placed = self._scheduler.resume(run, checkpoint.step, checked, rights.owner_of(run) or "")
            is_end = checkpoint.step >= launcher.num_steps_from(checkpoint, checked)
            action = "All steps are done: the run finishes" if is_end else "Continuing"
            return self._placed_result(placed, f"{action} from step {checkpoint.step:,}.")

        if run_config.is_script:
            return await STARTS.run(resume_script)
        await self._inspect_first(run_config.to_json() | {"start_from": ""})
        return await STARTS.run(resume)

    @operation()
    def list_runs(self) -> list[dict[str, Any]]:
        """List all runs that the current user can see, most recent first."""
        return self.store.rows()

    @operation(method_checks=SEES_RUN)
    def run_status(self, run_id: str) -> dict[str, Any]:
        """Return the content of status.json with the latest step and metrics."""
        view = self.store.view(run_id)
        view.catch_up()
        view.refresh_status()
        return status_values(view)

    def send(self, run_id: str, name: str, values: Sequence[Any]) -> None:
        """Send a command to a run, like the command's endpoint.

        Raises:
            ValueError: if the command is refused; the message gives the reason.
        """
        checked = _check_arguments(COMMANDS[name].arguments, values)
        run = self.store.open(run_id, to_change=True)
        launcher.send(run, liveness.read_status(run), name, **checked)

    def _placed_result(self, placed: StartResult, message: str) -> dict[str, Any]:
        """Return the result of a start: the run's state, or its place in the queue and expected start."""
        if placed.place is None:
            return _result(placed.run, message) | {"place": None, "num_waiting": 0}
        wait_text = self._queue_presenter.describe_place(placed)
        queue_position = {"place": placed.place, "num_waiting": placed.num_waiting}
        return _result(placed.run, f"Waiting: {wait_text}.", "queued") | queue_position


def _result(run: RunDirectory, message: str, state: str | None = None) -> dict[str, Any]:
    """Return the answer of an operation on a run; `state` is None if the operation has changed it."""
    return {"run_id": run.run_id, "state": state or liveness.read_status(run).state, "message": message}


def _check_arguments(arguments: Sequence[Argument], values: Sequence[Any]) -> dict[str, Any]:
    pairs = zip(arguments, values, strict=True)
    return {argument.name: argument.validate(value) for argument, value in pairs}


def _parse_step(step: Any) -> int | None:
    if step is None or step == "":
        return None
    if isinstance(step, bool) or not isinstance(step, int | float | str) or not str(step).isdecimal():
        raise ValueError(f"checkpoint_step is {step!r}; allowed: the step of a checkpoint, or null")
    return int(step)


def _command_operation(name: str, arguments: Sequence[Argument], endpoint: Endpoint) -> Function:
    """Return the operation that sends a command; it takes a run and the command's arguments."""

    def send_command(_api: Api, run: RunDirectory, *values: Any) -> dict[str, Any]:
        checked, status = _check_arguments(arguments, values), liveness.read_status(run)
        command_id = launcher.send(run, status, name, **checked)
        return _result(run, endpoint.answer.format(**checked), status.state) | {"command_id": command_id}

    send_command.__name__, send_command.__doc__ = endpoint.name, endpoint.help
    common_parameters = [
        Parameter(parameter, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for parameter, kind in (("self", Any), ("run", RunDirectory))
    ]
    argument_parameters = [
        common_parameters[0].replace(
            name=argument.name,
            annotation=argument.kind,
            default=Parameter.empty if argument.default is None else argument.default,
        )
        for argument in arguments
    ]
    send_command.__annotations__ = {
        parameter.name: parameter.annotation for parameter in argument_parameters
    } | {"return": dict[str, Any]}
    send_command.__signature__ = Signature([*common_parameters, *argument_parameters])  # type: ignore[attr-defined]
    return operation(run="change")(send_command)


for _name, _command in COMMANDS.items():
    if _command.endpoint is not None:
        command_operation = _command_operation(_name, _command.arguments, _command.endpoint)
        setattr(Api, _command.endpoint.name, command_operation)
