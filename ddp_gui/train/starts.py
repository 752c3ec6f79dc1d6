"""Starts from another run's checkpoint: inherited fields, and a comparison of the weights with the data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ddp_gui.auth.rights import current_user
from ddp_gui.plan.plan import Plan
from ddp_gui.run.model_process import ModelError, ModelProcesses
from ddp_gui.runs.runs import RunStore
from trainers.contract import start_from
from trainers.contract.config import ConfigError, Problem
from trainers.contract.rundir import Checkpoint, RunDirectory
from trainers.machine.os_errors import explain

MAX_CACHED_ANSWERS = 200
INHERITED = ("model", "model_size", "pretrained_path", "lora_rank")


class NotInheritedError(ConfigError):
    """A field differs from the checkpoint's. The form fixes these fields once it is filled in."""


class Starts:
    """Finds and compares checkpoints to start from.

    Args:
        models: processes with torch that compare weights with data; None: only the run itself compares.
    """

    def __init__(self, store: RunStore, models: ModelProcesses | None) -> None:
        self._store, self._models = store, models
        self._answers: dict[str, dict[str, Any]] = {}

    def complete(self, raw: Any) -> Any:
        """Return a configuration with the fields that it inherits from its checkpoint, if it names one.

        Raises:
            NotInheritedError: if a given field differs.
            ConfigError: if the checkpoint does not exist.
        """
        name = raw.get("start_from") if isinstance(raw, dict) else None
        if not isinstance(name, str) or "/" not in name:
            return raw  # parsing rejects an invalid text
        run, checkpoint = self._find(name)
        config, length = run.read_config(), start_from.sequence_length(checkpoint)
        inherited = {field: getattr(config, field) for field in INHERITED}
        problems = [
            Problem(
                field=field, value=raw[field], allowed=f"{'empty' if value == '' else value}, as in {name}"
            )
            for field, value in inherited.items()
            if raw.get(field) not in (None, "", value)
        ]
        if problems:
            raise NotInheritedError(problems)
        return {**raw, **inherited, "sequence_length": raw.get("sequence_length") or length}

    def check(self, planned: Plan) -> Plan:
        """Return the plan of a run that starts from a checkpoint, extended by the function that adds the
        weights.

        Raises:
            ConfigError: if a tensor does not fit the data; names the tensor and both shapes.
        """
        config = planned.config
        run, checkpoint = self._find(config.start_from)
        answer = self._compare(planned, run, checkpoint)
        if problem := answer.get("problem"):
            allowed = f"a data set that fits {config.start_from}: {problem}"
            raise ConfigError([Problem(field="dataset", value=config.dataset, allowed=allowed)])
        size = max(start_from.size_bytes(checkpoint), 10**5) / 10**6
        note = (
            f"The new run has its own copy of the weights ({size:,.1f} MB), so you may delete the other run."
        )
        if answer.get("replaced"):
            before, now = answer["num_classes_before"], answer["num_classes"]
            change = f"{before:,} → {now:,} classes" if before != now else "other classes"
            note += f" The last layer starts with new weights: {change}."
        return replace(planned, copy_start=partial(start_from.copy, run, checkpoint), start_text=note)

    def _find(self, name: str) -> tuple[RunDirectory, Checkpoint]:
        try:
            self._store.open(name.rpartition("/")[0])  # refuses a run that the current user cannot see
            return start_from.find(self._store.runs_dir, name)
        except (OSError, ValueError) as error:
            allowed = f"a checkpoint of a run that you can see: {explain(error)}"
            raise ConfigError([Problem(field="start_from", value=name, allowed=allowed)]) from error

    def _compare(self, planned: Plan, run: RunDirectory, checkpoint: Checkpoint) -> dict[str, Any]:
        """Compare the weights with the data in a process with torch; return `problem` or `replaced`."""
        if self._models is None:
            return {}
        config, dataset = planned.config, planned.dataset
        request = {"do": "compare", "run_dir": str(run.path.absolute()), "step": checkpoint.step}
        request |= {"config": config.to_json(), "num_classes": dataset.num_classes}
        # The key contains only fields that affect shapes: changes of other fields keep the cached answer.
        data = (config.data_path, config.label_column, config.sequence_length, dataset)
        key = repr((run.path, checkpoint.step, checkpoint.saved_unix_s, data))
        if key not in self._answers:
            try:
                answer = self._models.ask(current_user().name, request)
            except ModelError as error:
                allowed = f"a checkpoint that can be compared with the data: {error}"
                raise ConfigError(
                    [Problem(field="start_from", value=config.start_from, allowed=allowed)]
                ) from error
            while len(self._answers) >= MAX_CACHED_ANSWERS:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = answer
        return self._answers[key]
