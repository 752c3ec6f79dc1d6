"""The summary of a run: its configuration, its command, and its differences from the previous run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ddp_gui.auth import rights
from ddp_gui.devices import capacity
from ddp_gui.events import event_reader, tables
from ddp_gui.events.run_view import RunView
from ddp_gui.launch import launcher
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.plan.plan import shown_run_dir
from ddp_gui.runs import listing
from ddp_gui.runs.run_list_routes import differing_fields
from ddp_gui.runs.runs import RunStore
from trainers.contract import code, rundir
from trainers.contract import config as config_module
from trainers.contract.catalogue import CatalogueStrategy
from trainers.contract.config import Config
from trainers.contract.events import LIVE_STATES, Event
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.base import submitted_script

# Placeholder that the page replaces with the step of a checkpoint.
ANY_STEP = 987_654_321
# Maximum number of earlier runs opened in search of a readable one.
MAX_TRIED = 50


def summarise(view: RunView, store: RunStore) -> dict[str, Any]:
    """Return the facts that do not change while a run is live, and whether the run is live."""
    config, owner, engine = view.config, rights.owner_of(view.run), liveness.engine_for(view.status())
    catalogue = store.catalogue_for(view.run, config)
    dataset, model = catalogue.datasets.get(config.dataset), catalogue.models.get(config.model)
    strategy = None if config.is_script else catalogue.strategies.get(config.strategy)
    task = catalogue.tasks.get(dataset.task) if dataset else None
    sample_unit = dataset.sample_unit if dataset else "samples"
    mistake = listing.find_mistake(config, catalogue)
    size = model.size(config.model_size) if model else None
    num_replicas = config.num_replicas(strategy.ranks_per_replica if strategy else "one")
    run_dir = shown_run_dir(view.run.path)
    plan = _plan(view)
    expected_train = dataset.num_train if dataset else None
    num_train = plan.get("num_train", expected_train)
    num_steps = plan.get("num_steps", view.total_steps)
    expected_size = size.num_parameters.get(config.dataset) if size else None
    return {
        "run_id": view.run.run_id,
        **listing.shown_name(view.run, config.name),
        "owner": owner,
        "imported": listing.read_imported(view.run),
        "is_live": view.status().state in LIVE_STATES,
        "start": _start(view.run, config, plan, store),
        "may_change": rights.may_change(owner),
        "config": config.to_json(),
        "model_label": model.label if model else plan.get("model") or config.model,
        "dataset_label": listing.dataset_label(config, catalogue),
        "num_parameters": plan.get("num_parameters", expected_size),
        "num_trained": plan.get("num_trained"),
        "task": dataset.task if dataset else None,
        "loss_words": task.loss_words if task else None,
        "first_metric": task.first_metric if task else None,
        "sample_unit": sample_unit,
        "mistake": mistake,
        "no_fingerprints": _no_fingerprints(config, strategy),
        "charts": tables.describe_charts(sample_unit, config),
        "num_train": num_train,
        "max_ranks": capacity.read(engine, config).max_ranks(config.device),
        "strategy_label": listing.strategy_label(config, catalogue),
        "strategy_sharing": _sharing(config, strategy, mistake),
        "num_replicas": num_replicas,
        **_batches(config, plan, num_train, num_replicas),
        "num_steps": num_steps,
        "more_epochs": launcher.more_epochs_note(config, num_steps=num_steps),
        "command": launcher.train_command(engine, config, view.run.path.parent, f"{run_dir}/{code.FOLDER}"),
        "script": submitted_script(engine, view.run),
        "kills_ranks": engine.is_this_machine,
        # The page replaces the placeholder by the step of a current checkpoint.
        "resume_command": {
            "text": launcher.resume_command(engine, view.run, ANY_STEP),
            "placeholder": str(ANY_STEP),
        },
        "run_dir": run_dir,
        "memory": None if (memory := store.predicted_memory(config, catalogue)) is None else asdict(memory),
        "created_unix_s": view.run.config.stat().st_mtime,
    }


def _start(run: RunDirectory, config: Config, plan: Event, store: RunStore) -> dict[str, Any] | None:
    """Return the checkpoint that a run started from, and the replaced tensors; None for a new model.

    `is_there` is false if that run was deleted or replaced, or the current user cannot see it.
    """
    if not config.start_from:
        return None
    run_id, _, step = config.start_from.rpartition("/")
    start = {"run_id": run_id, "step": int(step), "is_there": store.has_source(run, run_id)}
    return start | {"words": listing.start_text(config, plan.get("start"))}


def _batches(config: Config, plan: Event, num_train: int | None, num_replicas: int) -> dict[str, int | None]:
    """Return the global batch and the steps per epoch; for a script, only the observed values."""
    if config.is_script:
        return {name: plan.get(name) for name in ("global_batch", "steps_per_epoch")}
    steps = config.steps_per_epoch(num_train, num_replicas) if num_train else None
    return {"global_batch": config.global_batch(num_replicas), "steps_per_epoch": steps}


def describe_configuration(run: RunDirectory, store: RunStore) -> dict[str, Any]:
    """Return every field of a run's configuration with its label, and the changes since the previous run."""
    config = run.read_config()
    previous = _run_before(run, store, is_script=config.is_script)
    comparison: dict[str, Any] | None = None
    if previous is not None:
        previous_run, previous_config = previous
        is_other_code = config.is_script and _has_other_code(run, previous_run)
        changes = differences(previous_config, config)
        comparison = {"run_id": previous_run.run_id, "changes": changes, "is_other_code": is_other_code}
    return {"fields": fields_of(config, store.catalogue.get()), "before": comparison}


def _has_other_code(run: RunDirectory, other_run: RunDirectory) -> bool:
    """Return True if the code of two runs differs; False if one of them cannot be read."""
    try:
        return code.read(run.path) != code.read(other_run.path)
    except (OSError, ValueError):
        return False


def differences(before: Config, now: Config) -> list[dict[str, Any]]:
    """Return the fields in which two configurations differ, except for the run's name."""
    return [
        {
            "field": difference["field"],
            "label": difference["label"],
            "before": difference["values"][0],
            "now": difference["values"][1],
        }
        for difference in differing_fields([before, now])
    ]


def fields_of(config: Config, catalogue: Catalogue) -> list[dict[str, Any]]:
    """Return every field that is relevant for the configuration, with label, help and default."""
    own_options = {
        name: option for name, option in catalogue.own_options().items() if name in config.plugin_options
    }
    settings = config_module.settings() | {name: option.setting for name, option in own_options.items()}
    defaults = config_module.default_values() | {name: option.default for name, option in own_options.items()}
    values = config.to_json()
    script_fields = ("name", "nproc_per_node", "on_hang", "hang_timeout_s")
    return [
        {
            "field": name,
            "label": setting.label,
            "topic": setting.topic,
            "help": setting.help,
            "value": values[name],
            "is_default": values[name] == defaults[name],
        }
        for name, setting in settings.items()
        if catalogue.is_applicable(name, values)
        and (config.is_script or setting.topic != "script")
        and (not config.is_script or setting.topic == "script" or name in script_fields)
    ]


def _run_before(run: RunDirectory, store: RunStore, *, is_script: bool) -> tuple[RunDirectory, Config] | None:
    """Return the latest earlier run of this kind that is readable and visible to the current user."""
    created_ns = run.config.stat().st_mtime_ns
    older = []
    for path in store.runs_dir.iterdir():
        if path.name == run.run_id or not rundir.is_run_id(path.name):
            continue
        try:
            written_ns = (path / "config.json").stat().st_mtime_ns
        except OSError:
            continue
        if written_ns <= created_ns:
            older.append((written_ns, path))
    for _, path in sorted(older, reverse=True)[:MAX_TRIED]:
        try:
            candidate = store.open(path.name)
            config = candidate.read_config()
        except (OSError, ValueError):
            continue
        if config.is_script == is_script:
            return candidate, config
    return None


def _sharing(config: Config, strategy: CatalogueStrategy | None, mistake: Mapping[str, str] | None) -> str:
    """Describe what the ranks communicate in a step, and a deliberate mistake, if any."""
    if config.is_script:
        return "The script determines what the ranks communicate in a step."
    text = (
        strategy.sharing if strategy else f"The strategy {config.strategy} is not installed on this machine."
    )
    return text if mistake is None else f"{text} But this run is broken on purpose: {mistake['description']}"


def _no_fingerprints(config: Config, strategy: CatalogueStrategy | None) -> str | None:
    """Return why replicas are not compared in this run; None if they are."""
    if config.world_size == 1:
        return "With one rank there are no replicas to compare."
    if strategy is not None and not strategy.holds_replica:
        return (
            f"With {strategy.label}, no rank holds all weights, so there are no complete replicas to compare."
        )
    if config.fingerprint_every_steps == 0:
        return "This run does not compare replicas (fingerprint_every_steps is 0)."
    return None


def _plan(view: RunView) -> Event:
    """Return the run's `plan` event. If the run's events were not read yet, search the start of the file."""
    if view.series.plan or view.unread()[0] == 0:
        return view.series.plan
    batch, _, _ = event_reader.read_batch(view.run.events, 0, is_careful=False)
    return next((event for event in reversed(batch) if event["kind"] in ("plan", "script")), {})
