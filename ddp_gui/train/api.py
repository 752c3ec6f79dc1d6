"""Named endpoints that start and control runs, shared by the page and `gradio_client`."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, Signature
from typing import Any

from ddp_gui.auth import rights
from ddp_gui.auth.rights import DataAccess
from ddp_gui.background.workers import CLICKS, STARTS, RateLimit
from ddp_gui.devices.capacity import Machine
from ddp_gui.gradio_routes.endpoints import Function, register
from ddp_gui.launch import launcher
from ddp_gui.launch.as_code import script
from ddp_gui.launch.launcher import in_plain_words, waiting_in_plain_words
from ddp_gui.plan import plan, recipe
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.plan.own_data import Inspection
from ddp_gui.plan.plan import Plan
from ddp_gui.queue import presenter
from ddp_gui.queue.presenter import QueuePresenter
from ddp_gui.queue.scheduler import Placed, Scheduler
from ddp_gui.runs.runs import RunStore, status_values
from trainers.contract import config as config_module
from trainers.contract import events
from trainers.contract.commands import COMMANDS, Argument, Endpoint
from trainers.contract.config import Config, ConfigError
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

MOST_STARTS = 10
MOST_LOOKS = 20


class Api:
    """The endpoints of one runs directory. Results are JSON values."""

    def __init__(self, store: RunStore, line: Scheduler, view: QueuePresenter, access: DataAccess) -> None:
        self._scheduler = line
        self._view = view
        self.access = access
        self._starts = RateLimit("a start", MOST_STARTS, 60.0)
        self._inspections = RateLimit("an inspection of data", MOST_LOOKS, 60.0)
        self._catalogue = store.catalogue
        self._store = store
        self._own_data = store.own_data

    def machine(self, config: Config | None = None) -> Machine:
        """Return the resources that are available to this configuration; None asks for any run."""
        return self._scheduler.capacity(config)

    def plan(self, raw: dict[str, Any]) -> Plan:
        """Validate a configuration and plan its run. Own data must have been inspected before.

        Raises:
            ConfigError: naming the field, the value and the allowed range.
        """
        config, catalogue, here = self._with_data(raw)
        planned = plan.make(recipe.complete(config, catalogue, raw), catalogue, here)
        self._scheduler.refuse_for_engine(planned)
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
        completed = recipe.complete(config, catalogue, raw)
        return {name: getattr(completed, name) for name in recipe.FIELDS if name not in raw}

    def _with_data(self, raw: dict[str, Any]) -> tuple[Config, Catalogue, Machine]:
        """Return the configuration, the catalogue with the user's own data, if any, and the machine."""
        here = self._scheduler.capacity(config_module.parse(raw))
        config = plan.parse(raw, here)
        self.access.check(config)
        catalogue = self._catalogue.get()
        if config.dataset in catalogue.own_data:
            catalogue = self._own_data.extend(catalogue, config, self._own_data.remembered(config))
        return config, catalogue, here

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
            self._inspections.count()
        return await self._own_data.inspect(config, anew=anew)

    def largest_batch(self, raw: dict[str, Any], known: Inspection) -> int | None:
        """Return the largest possible batch per rank with this data; None if it is unknown."""
        try:
            config = config_module.parse(raw)
        except ConfigError:
            return None
        strategy = self._catalogue.get().strategies.get(config.strategy)
        if known.dataset is None or strategy is None:
            return None
        return max(1, known.dataset.num_train // config.num_replicas(strategy.ranks_per_replica))

    async def _inspect_first(self, raw: dict[str, Any]) -> None:
        """Inspect own data, if the configuration uses it, before the run is planned."""
        if isinstance(raw, dict) and raw.get("dataset") in (await CLICKS.run(self._catalogue.get)).own_data:
            await self.inspect(raw)

    def catalog(self) -> dict[str, Any]:
        """Return the available models, data sets and strategies, and the broken plug-ins."""
        return dict(in_plain_words(lambda: self._catalogue.get().raw))

    async def as_code(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a configuration as one script of torch and numpy, and as a notebook.

        Missing fields get the values that the form would fill in.
        """

        async def write() -> dict[str, Any]:
            await self._inspect_first(config)
            planned = await CLICKS.run(self.plan, config)
            return await CLICKS.run(script.describe, planned.config, planned.dataset, planned.strategy)

        return await waiting_in_plain_words(write())

    async def start_run(self, config: dict[str, Any], use_occupied_gpus: bool = False) -> dict[str, Any]:
        """Start or queue a run; missing fields get the values that the form would fill in.

        GPUs that other programs use are excluded unless `use_occupied_gpus` is true.
        """

        async def start() -> dict[str, Any]:
            await self._inspect_first(config)
            return await STARTS.run(start_now)

        def start_now() -> dict[str, Any]:
            planned, owner = self.plan(config), rights.current_user().name
            self._starts.count()
            placed = self._scheduler.start(planned, owner, uses_occupied_gpus=bool(use_occupied_gpus))
            return self._answer_placed(placed, "Started.")

        return await waiting_in_plain_words(start())

    def stop_run(self, run_id: str, save: bool = True) -> dict[str, Any]:
        """Stop a run, by default after saving a checkpoint; a queued run is removed from the queue."""

        def stop() -> dict[str, Any]:
            run = self._store.open_to_change(run_id)
            command_id, message = None, "Removed from the queue."
            if not (run.queued.exists() and self._scheduler.take_out(run)):
                is_waiting = liveness.read_status(run).state == "queued"  # in the engine's queue
                is_script = run.read_config().is_script
                command_id = launcher.stop(run, save=save and not is_script)
                if is_waiting:
                    return _answer(run, message) | {"command_id": None}
                message = "Saving a checkpoint, then stopping." if save else "Stopping without saving."
                if is_script:
                    message = "Stopping: when the script asks, or else by SIGTERM."
            return _answer(run, message) | {"command_id": command_id}

        return in_plain_words(stop)

    def kill_rank(self, run_id: str, rank: int) -> dict[str, Any]:
        """Kill the process of one rank. The run fails, and can be resumed from a checkpoint."""

        def kill() -> dict[str, Any]:
            run = self._store.open_to_change(run_id)
            number = launcher.kill_rank(run, rank)
            return _answer(run, f"Rank {number} was killed: the run fails now.")

        return in_plain_words(kill)

    async def resume_run(
        self,
        run_id: str,
        checkpoint_step: int | None = None,
        nproc_per_node: int | None = None,
        global_batch: str = "keep",
    ) -> dict[str, Any]:
        """Continue a paused run, or resume an ended one from a checkpoint (by default the latest).

        An ended run can be resumed with a different number of ranks. With `global_batch` "keep" the batch
        per rank changes; with "rescale" it stays and the global batch changes.
        """
        return await self._resume(run_id, checkpoint_step, nproc_per_node, global_batch, more_epochs=None)

    async def train_more(
        self,
        run_id: str,
        more_epochs: int,
        checkpoint_step: int | None = None,
        nproc_per_node: int | None = None,
        global_batch: str = "keep",
    ) -> dict[str, Any]:
        """Resume an ended run for a number of epochs after a checkpoint, whatever length was configured."""
        return await self._resume(
            run_id, checkpoint_step, nproc_per_node, global_batch, more_epochs=more_epochs
        )

    async def _resume(
        self,
        run_id: str,
        checkpoint_step: int | None,
        nproc_per_node: int | None,
        global_batch: str,
        *,
        more_epochs: int | None,
    ) -> dict[str, Any]:
        async def resume() -> dict[str, Any]:
            config = await CLICKS.run(lambda: self._store.open_to_change(run_id).read_config())
            await self._inspect_first(config.to_json())
            return await STARTS.run(resume_now)

        def resume_now() -> dict[str, Any]:
            run = self._store.open_to_change(run_id)
            state = liveness.read_status(run).state
            if state == "paused" and more_epochs is None:
                launcher.resume_paused(run)
                return _answer(run, "Continuing.")
            if state == "queued":
                raise ValueError(f"run {run_id} is already in the queue: it starts automatically")
            if state in events.LIVE_STATES:
                can = (
                    "a paused or an ended run can be resumed"
                    if more_epochs is None
                    else "an ended run trains more"
                )
                raise ValueError(f"run {run_id} is {state}: only {can}")
            # Validate only the changed configuration: the original may need more GPUs than this machine has.
            before = run.read_config()
            changes = launcher.other_ranks(before, self._catalogue.get(), nproc_per_node, global_batch)
            checked = self.plan(before.to_json() | changes)
            step = _parse_step(checkpoint_step)
            if more_epochs is not None:
                end = launcher.pick_checkpoint(run, step)
                stopped_early = state == "finished" and end.step < launcher.num_steps_from(end, checked)
                changes |= launcher.more_epochs(end, more_epochs, stopped_early=stopped_early)
                checked = self.plan(before.to_json() | changes)
            checkpoint = launcher.checkpoint_to_go_on_from(run, step, checked)
            self._starts.count()
            placed = self._scheduler.resume(run, checkpoint.step, checked, rights.owner_of(run) or "")
            is_end = checkpoint.step >= launcher.num_steps_from(checkpoint, checked)
            words = "All steps are done: the run finishes" if is_end else "Continuing"
            return self._answer_placed(placed, f"{words} from step {checkpoint.step:,}.")

        return await waiting_in_plain_words(resume())

    def list_runs(self) -> list[dict[str, Any]]:
        """List all runs that the current user can see, most recent first."""
        return in_plain_words(lambda: self._store.rows())

    def run_status(self, run_id: str) -> dict[str, Any]:
        """Return the content of status.json with the latest step and metrics."""

        def read() -> dict[str, Any]:
            view = self._store.view(run_id)
            view.catch_up()
            view.refresh_status()
            return status_values(view)

        return in_plain_words(read)

    def register(self) -> None:
        """Add the endpoints to the Gradio app under construction."""
        register(
            self.catalog,
            self.as_code,
            self.start_run,
            self.stop_run,
            self.kill_rank,
            self.resume_run,
            self.train_more,
            self.list_runs,
            self.run_status,
        )
        for name, command in COMMANDS.items():
            if command.endpoint is not None:
                register(self._endpoint(name, command.arguments, command.endpoint))

    def send(self, run_id: str, name: str, values: Sequence[Any]) -> None:
        """Send a command to a run, as the command's endpoint does.

        Raises:
            ValueError: if it is refused; the text names the reason.
        """
        checked = _checked(COMMANDS[name].arguments, values)
        launcher.send(self._store.open_to_change(run_id), name, **checked)

    def _endpoint(self, name: str, arguments: Sequence[Argument], endpoint: Endpoint) -> Function:
        """Create the endpoint of a command; it takes a run id and the command's arguments."""

        def ask(run_id: str, *values: Any) -> dict[str, Any]:
            def send() -> dict[str, Any]:
                checked = _checked(arguments, values)
                run = self._store.open_to_change(run_id)
                command_id = launcher.send(run, name, **checked)
                return _answer(run, endpoint.answer.format(**checked)) | {"command_id": command_id}

            return in_plain_words(send)

        ask.__name__, ask.__doc__ = endpoint.name, endpoint.help
        required = Parameter("run_id", Parameter.POSITIONAL_OR_KEYWORD, annotation=str)
        parameters = [required] + [
            required.replace(
                name=argument.name,
                annotation=argument.kind,
                default=Parameter.empty if argument.default is None else argument.default,
            )
            for argument in arguments
        ]
        ask.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": dict[str, Any]}
        ask.__signature__ = Signature(parameters, return_annotation=Any)  # type: ignore[attr-defined]
        return ask

    def _answer_placed(self, placed: Placed, message: str) -> dict[str, Any]:
        """Return the result of a start: the run's state, or its place in the queue and expected start."""
        place = placed.place
        if place is not None:
            place_values = self._view.place(placed.run.run_id, afresh=True)
            words = place_values["words"] or presenter.in_words(place, None)
            message = f"Waiting: {words}."
        return _answer(placed.run, message) | {"place": place, "num_waiting": placed.num_waiting}


def _answer(run: RunDirectory, message: str) -> dict[str, Any]:
    return {"run_id": run.run_id, "state": liveness.read_status(run).state, "message": message}


def _checked(arguments: Sequence[Argument], values: Sequence[Any]) -> dict[str, Any]:
    given = zip(arguments, values, strict=True)
    return {argument.name: argument.checked(value) for argument, value in given}


def _parse_step(step: Any) -> int | None:
    if step is None or step == "":
        return None
    if isinstance(step, bool) or not isinstance(step, int | float | str) or not str(step).isdecimal():
        raise ValueError(f"checkpoint_step is {step!r}, but allowed is: the step of a checkpoint, or null")
    return int(step)
