"""Choices of the form's fields, and the HTML that describes the configuration."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gradio as gr

from ddp_gui.auth.rights import current_user
from ddp_gui.devices.capacity import Machine
from ddp_gui.http import shell
from ddp_gui.http.shell import as_html
from ddp_gui.operations import as_current_user
from ddp_gui.plan import package_install, recipe
from ddp_gui.plan import plan as plan_module
from ddp_gui.plan.catalogue import Catalogue, CatalogueSource
from ddp_gui.plan.memory import Prediction
from ddp_gui.plan.plan import Plan
from ddp_gui.train import fill_in
from ddp_gui.train import form as form_module
from ddp_gui.train.api import Api
from ddp_gui.train.form import FINE_TUNING_FIELDS, FOLDED_WHERE, Form
from trainers.contract import config as config_module
from trainers.contract.config import Config, ConfigError
from trainers.engines.base import Engine, PlacementField
from trainers.forward.state import TRACKERS

SPARK_POINTS = 60
SPARK_WIDTH, SPARK_HEIGHT = 120, 24


def equation(plan: Plan) -> str:
    """Render how batch size, ranks and accumulation result in the global batch and steps per epoch."""
    config = plan.config
    word = "GPU" if plan.device_kind == "cuda" else "CPU rank"
    copies = plan.num_replicas
    ranks_each = config.world_size // copies
    if ranks_each == 1:
        terms = [
            (f"{config.batch_size:,}", shell.glossary_term("batch per rank", f"per {word}")),
            (f"{copies}", f"{word}{'' if copies == 1 else 's'}"),
        ]
    else:
        shared = f"model cop{'y' if copies == 1 else 'ies'}, {ranks_each} {word}s each"
        terms = [(f"{config.batch_size:,}", "per copy"), (f"{copies}", shared)]
    if config.gradient_accumulation_steps > 1:
        terms.append(
            (f"{config.gradient_accumulation_steps}", shell.glossary_term("accumulation", "accumulated"))
        )
    product = "<i>×</i>".join(_factor(number, text) for number, text in terms)
    result = _factor(f"{plan.global_batch:,}", shell.glossary_term("global batch"))
    steps = _factor(f"{plan.steps_per_epoch:,}", shell.glossary_term("step", "steps per epoch"))
    data_attributes = f'data-kind="{plan.device_kind}" data-ranks="{config.world_size}"'
    line = (
        f'<div class="ddp-equation" role="status" {data_attributes}>'
        f"{product}<i>=</i>{result}<i>→</i>{steps}</div>"
    )
    return line + _world_size(plan, word) + _learning_rate(plan)


def start_note(start_from: str, plan: Plan | None) -> str:
    """Render the checkpoint that the run starts from; empty for a new model.

    Args:
        plan: None if the configuration has problems.
    """
    run_id, _, step = start_from.rpartition("/")
    if not step.isdecimal():
        return ""
    link = f'<a href="./run?id={quote(run_id, safe="")}">{as_html(run_id)}</a>, step {int(step):,}'
    more = "" if plan is None else f" {as_html(plan.start_text)}"
    return (
        f'<div class="ddp-start-from" role="status"><p><strong>Training further from {link}.</strong>'
        f" Choose the data to train on. The model keeps its trained weights.{more}</p>"
        '<p><a href="./">Start with a new model instead</a></p></div>'
    )


def expectation(plan: Plan) -> str:
    """Render the number of steps and, if the recipe was measured, the metric and the duration to expect."""
    steps = f"{plan.num_steps:,} {shell.glossary_term('step', 'step' if plan.num_steps == 1 else 'steps')}"
    expected = recipe.expected(plan.config)
    if expected is None:
        return f'<p class="ddp-expectation" id="expectation"><span>{steps} in all</span></p>'
    duration = (
        "" if plan.device_kind == "cuda" else f" in about {_seconds(expected.seconds)} on idle CPU cores"
    )
    metric = f"{expected.metric} of about <b>{expected.mean:.2f}</b>"
    return f'<p class="ddp-expectation" id="expectation"><span>{steps}: {metric}{duration}</span></p>'


def _seconds(seconds: float) -> str:
    """Format a duration with one or two digits: 7 s, 20 s, 2 min."""
    if seconds >= 90:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds < 20 else f"{round(seconds, -1):.0f} s"


def _world_size(plan: Plan, word: str) -> str:
    """Render the world size of a run on several machines."""
    config = plan.config
    if config.num_nodes == 1:
        return ""
    ranks_each = f"{config.nproc_per_node} {word}{'' if config.nproc_per_node == 1 else 's'} each"
    size = shell.glossary_term("world size")
    return (
        f'<p class="ddp-rate"><span>{config.num_nodes} machines × {ranks_each} = {size} '
        f"<b>{config.world_size}</b></span></p>"
    )


def _factor(number: str, text: str) -> str:
    return f"<span><b>{number}</b><small>{text}</small></span>"


def _learning_rate(plan: Plan) -> str:
    """Render the resulting learning rate if it differs from the entered one or changes over time."""
    config = plan.config
    factor = plan.peak_learning_rate / config.learning_rate
    if not config.scale_lr and config.lr_schedule == "constant" and plan.num_warmup_steps == 0:
        return ""
    parts = [f"{shell.glossary_term('learning rate')} {config.learning_rate:g}"]
    if config.scale_lr:
        parts[0] += f" × {factor:g} = <b>{plan.peak_learning_rate:g}</b>"
    if plan.num_warmup_steps:
        plural = "" if plan.num_warmup_steps == 1 else "s"
        parts.append(f"after {plan.num_warmup_steps:,} step{plural} of {shell.glossary_term('warm-up')}")
    elif config.scale_lr:
        parts.append(f"without a {shell.glossary_term('warm-up')}")
    if config.lr_schedule != "constant":
        parts.append("then " + config.lr_schedule.replace("_", " "))
    return f'<p class="ddp-rate"><span>{", ".join(parts)}</span>{_spark(plan)}</p>'


def _spark(plan: Plan) -> str:
    rates = plan.learning_rates(SPARK_POINTS)
    top = max(rates) or 1.0
    points = " ".join(
        f"{SPARK_WIDTH * index / (SPARK_POINTS - 1):.1f},{1 + (SPARK_HEIGHT - 2) * (1 - rate / top):.1f}"
        for index, rate in enumerate(rates)
    )
    return (
        f'<svg class="ddp-spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" role="img" '
        f'aria-label="The learning rate over the run"><polyline points="{points}"/></svg>'
    )


def dataset_groups(form: Form) -> str:
    """Return the group of each data set by label, for assets/js/train/form.js."""
    groups = {label: group for label, _, group in form.grouped_datasets()}
    return (
        f'<span id="ddp-dataset-groups" data-groups="{html.escape(json.dumps(groups), quote=True)}"></span>'
    )


def unavailable(catalogue: Catalogue, *, may_install: bool) -> str:
    """List data sets to install, with instructions; assets/js/machine/install.js connects the buttons."""
    entries = "".join(
        f"<li><b>{html.escape(way.what)}</b>: {html.escape(way.meaning)}"
        f"{install_button(way.data_set) if may_install and way.data_set else ''}"
        f"{f'<pre><code>{html.escape(way.command)}</code></pre>' if way.command else ''}</li>"
        for way in map(package_install.describe_missing, catalogue.unavailable)
    )
    return f'<ul class="ddp-more">{entries}</ul>' if entries else "All data sets are installed."


def install_button(data_set: str, done: str = "") -> str:
    """Return a button that installs a package; assets/js/machine/install.js connects it.

    Args:
        done: the advice to show after the installation; empty: to choose the data set.
    """
    name = html.escape(data_set, quote=True)
    done_attribute = f' data-done="{html.escape(done, quote=True)}"' if done else ""
    return (
        '<div class="ddp ddp-install"><button type="button" class="ddp-button ddp-button-small" '
        f'data-install="{name}"{done_attribute}>Install</button> <span role="status"></span></div>'
    )


def trackers() -> str:
    """List the trackers with their packages: installed, or a button (a student's click is refused)."""
    entries = []
    for name, kind in TRACKERS.items():
        state = (
            "needs no package" if not kind.package else "installed" if kind.is_installed else "not installed"
        )
        button = "" if kind.is_installed else install_button(name, "the next run can use it.")
        entries.append(f"<li><b>{html.escape(kind.label)}</b>: {state}.{button}</li>")
    return f'<ul class="ddp-more">{"".join(entries)}</ul>'


def warnings(sentences: Sequence[str]) -> str:
    """Render warnings about the run. They do not prevent a start."""
    if not sentences:
        return ""
    lines = "".join(f"<li>{as_html(sentence)}</li>" for sentence in sentences)
    return f'<ul class="ddp-before" role="status">{lines}</ul>'


def memory(plan: Plan, machine: Machine, predicted: Prediction | None) -> str:
    """Render the predicted memory of one rank by its parts; empty without a prediction."""
    if predicted is None:
        return ""
    config = plan.config
    available = machine.memory_for_a_rank(config.device, config.nproc_per_node)
    total = predicted.total_bytes
    labels = {
        "parameters": shell.glossary_term("parameters"),
        "gradients": shell.glossary_term("gradient", "gradients"),
        "optimizer": shell.glossary_term("optimizer state"),
        "activations": shell.glossary_term("activations"),
    }
    if predicted.process_bytes:
        labels["process"] = "CUDA and its libraries, about"
    parts = {name: getattr(predicted, f"{name}_bytes") for name in labels}
    bars = "".join(
        f'<span class="ddp-memory-{name}" style="width:{100 * size / max(1, total):.1f}%"></span>'
        for name, size in parts.items()
        if size
    )
    legend = "".join(
        f'<span><i class="ddp-memory-{name}"></i>{labels[name]} '
        f"{'unknown' if size is None else in_bytes(size)}</span>"
        for name, size in parts.items()
    )
    word = "GPU" if plan.device_kind == "cuda" else "rank"
    share = ""
    if available is not None:
        owner = "its GPU" if plan.device_kind == "cuda" else f"its share of {machine.place}"
        free = machine.free_for_a_rank(config.device, config.nproc_per_node)
        text = f"of the {in_bytes(available)} of {owner}"
        if free is not None:
            text += f", {in_bytes(free)} of them free at the moment"
        problem = None
        if total > available:
            problem = "it will not fit"
        elif free is not None and total > free:
            problem = "it will not fit next to the programs that currently use the GPU"
        share = f" {text}" if problem is None else f' <span class="ddp-memory-over">{text}: {problem}</span>'
    process_note = "" if predicted.process_bytes else ", besides the process itself"
    summary = f"<p>Each {word} will use at least <b>{in_bytes(total)}</b>{share}{process_note}.</p>"
    return (
        f'<div class="ddp-memory-card" role="group" aria-label="Predicted memory">{summary}'
        f'<div class="ddp-memory-track">{bars}</div><p class="ddp-memory-legend">{legend}</p></div>'
    )


def in_bytes(size: int) -> str:
    """Format a size in decimal units, as on the rest of the page."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 10 * unit else f"{size / unit:.0f} {name}"
    return f"{size} bytes"


def machine(machine: Machine) -> str:
    """Render the machine's resources."""
    return f'<p class="ddp-machine">{html.escape(machine.describe())}</p>'


def script(config: Config, runs_dir: Path, engine: Engine) -> str:
    """Return the script that Start would submit; empty if the engine needs no script."""
    try:
        return engine.script(config, runs_dir / "RUN") or ""
    except ValueError as error:
        return f"# no script: {error}"


def code_settings(plan: Plan | None) -> str:
    """Return an element with the settings, for which assets/js/script/as_code.js requests the script."""
    config = "" if plan is None else json.dumps(plan.config.to_json())
    return f'<div hidden data-config="{html.escape(config, quote=True)}"></div>'


def pick(
    catalogue: Catalogue, raw: dict[str, Any], num_parameters: int | None = None, offer: str | None = None
) -> str:
    """Describe the selected data set and model in Markdown, without details of own data.

    Args:
        offer: a sentence with advice to make the run faster.
    """
    dataset = catalogue.datasets.get(str(raw["dataset"]))
    model = catalogue.models.get(str(raw["model"]))
    paragraphs = []
    if dataset is not None:
        paragraphs.append(f"{dataset.description} ({dataset.source})")
    if model is not None:
        counted = f" {num_parameters:,} parameters." if num_parameters else ""
        paragraphs.append(f"**{model.label}**: {model.description}{counted}")
        if model.missing_packages:
            packages = " and ".join(model.missing_packages)
            paragraphs.append(
                f"It needs {packages}: run `{plan_module.INSTALL_FINE_TUNING}`, then restart the page."
            )
    if offer:
        paragraphs.append(offer)
    return "\n\n".join(paragraphs)


# Warm-up suggested when the learning rate is scaled up, as a share of the run.
OFFERED_WARM_UP = 0.05
# Event options: not queued, and without a progress overlay, which would flicker at these short calls.
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

FITTED_FIELDS = tuple(sorted({*form_module.FITTED_FIELDS, *recipe.FIELDS}))

# Options for events that follow a field's `change` in addition to the preview. When Gradio defers a call, it
# later repeats all handlers of the event, so two deferred calls would trigger each other endlessly.
BESIDE_PREVIEW: dict[str, Any] = {**QUIET, "trigger_mode": "multiple"}


@dataclass
class Choices:
    """Events that follow when the user selects a data set, a model or another field that affects others."""

    form: Form
    source: CatalogueSource
    rules: fill_in.Rules

    # Layout

    def add_dataset_and_model(self) -> None:
        """Lay out the data set and the model."""
        self.start_note = gr.HTML()
        self.form.add_controls(form_module.START_FIELD)
        with gr.Group(), gr.Row():
            self.form.add_controls("dataset", "model")
        # JSON of the values filled in by rules (`fill_in.recommend_values`). The user has edited fields that
        # differ.
        self.filled = gr.Textbox(visible=False)
        self._dataset_groups = gr.HTML(dataset_groups(self.form), elem_classes="ddp-nowhere")

    def add_fine_tuning(self) -> None:
        """Lay out the fields for models with pretrained weights; hidden for other models."""
        with gr.Group(visible=False) as self._fine_tuning:
            with gr.Row():
                self.form.add_controls(*FINE_TUNING_FIELDS[:2])
            self.form.add_controls(*FINE_TUNING_FIELDS[2:])

    def add_more_data(self) -> None:
        """Lay out the data sets whose package is missing, if there are any."""
        if not self.form.catalogue.unavailable:
            return
        with gr.Accordion("More data sets", open=False, elem_classes="ddp-fold"):
            more_data = gr.HTML(elem_id="more-data")
            installed = gr.Button("Installed", elem_id="data-installed", elem_classes="ddp-nowhere")
        # Newly installed data sets are offered when the page is opened and after an installation.
        outputs = [self.form.controls["dataset"], self._dataset_groups, more_data]
        offer = as_current_user(self._offer_data)
        gr.on(None, offer, None, outputs, **QUIET)
        installed.click(offer, None, outputs, **QUIET)

    # Events

    def connect(self, choose_own_data: gr.Button) -> None:
        """Connect the events. All controls of the form must have been laid out.

        Args:
            choose_own_data: selects the user's own data, as the list of data sets does.
        """
        fields = self.form.controls
        dataset, model = fields["dataset"], fields["model"]
        all_controls = list(fields.values())
        inputs = [self.filled, *all_controls]
        fitted = [self.filled, *(fields[name] for name in FITTED_FIELDS)]
        model_outputs = [fields["model_size"], fields["strategy"]]
        model.change(self._show_fine_tuning, model, self._fine_tuning, **BESIDE_PREVIEW)
        # Values filled in by code already fit together, so only user input adapts other fields.
        self.fit_model_after(
            dataset.input(as_current_user(self._fit_dataset), inputs, [model, *fitted], **QUIET).then
        )
        choose_own_data.click(
            as_current_user(self._choose_own_data), inputs, [dataset, model, *fitted], **QUIET
        )
        model.input(as_current_user(self._pick_model), inputs, [*model_outputs, *fitted], **QUIET)
        rank_fields = ("nproc_per_node", "num_nodes", "strategy", "lora_rank")
        gr.on(
            [fields[name].input for name in rank_fields if name in fields],
            as_current_user(self._fit_ranks),
            inputs,
            fitted,
            **QUIET,
        )
        gr.on(
            [fields[name].input for name in ("batch_size", "num_epochs", "max_steps")],
            as_current_user(self._fit_periods),
            inputs,
            [self.filled, *(fields[name] for name in recipe.PERIODS)],
            **QUIET,
        )
        for deciding, names in self.form.dependent_fields().items():
            dependent_controls = [fields[name] for name in names]
            show = partial(self.form.show_relevant, deciding)
            fields[deciding].change(show, fields[deciding], dependent_controls, **BESIDE_PREVIEW)
        fields["scale_lr"].input(
            _offer_warm_up,
            [fields["scale_lr"], fields["warmup_steps"], fields["warmup_ratio"]],
            fields["warmup_ratio"],
            **QUIET,
        )

    def fit_model_after(self, connect_event: Callable[..., Any]) -> Any:
        """After an event such as `model.input`, update sizes and strategies; return the new event."""
        fields = self.form.controls
        outputs = [fields["model_size"], fields["strategy"]]
        return connect_event(
            self._fit_model, [fields["model"], fields["dataset"], *outputs], outputs, **QUIET
        )

    def _fit_dataset(self, filled: str, *values: Any) -> list[Any]:
        raw = self.form.to_raw(*values)
        choices = self.form.model_choices(raw["dataset"])
        names = [name for _, name in choices]
        # A form for a checkpoint keeps the checkpoint's model; Start refuses data that does not fit.
        is_fixed = raw["model"] in names or bool(raw["start_from"])
        fitting_model = raw["model"] if is_fixed else names[0] if names else None
        strategies = [name for _, name in self.form.strategy_choices(str(fitting_model))]
        if raw["strategy"] not in strategies:
            raw["strategy"] = strategies[0]
        return [
            gr.skip() if raw["start_from"] else gr.update(choices=choices, value=fitting_model),
            *self._update_fitted(filled, raw | {"model": fitting_model}, leaves_preset=True),
        ]

    def _pick_model(self, filled: str, *values: Any) -> list[Any]:
        raw = self.form.to_raw(*values)
        model_updates = self._fit_model(raw["model"], raw["dataset"], raw["model_size"], raw["strategy"])
        raw["strategy"] = model_updates[1]["value"]
        return [*model_updates, *self._update_fitted(filled, raw, leaves_preset=True)]

    def _fit_ranks(self, filled: str, *values: Any) -> list[Any]:
        return self._update_fitted(filled, self.form.to_raw(*values), leaves_preset=False)

    def _fit_periods(self, filled: str, *values: Any) -> list[Any]:
        """Adapt the recommended periods to an edited duration; other fields keep their values."""
        raw = self.form.to_raw(*values)
        changes, _ = fill_in.recommend_values(self.form, self.rules, filled, raw, leaves_preset=False)
        periods = {name: changes[name] for name in recipe.PERIODS if name in changes}
        if periods:
            filled = json.dumps(json.loads(filled) | periods)
        return [filled, *fill_in.field_updates(self.form, recipe.PERIODS, periods)]

    def _update_fitted(self, filled: str, raw: dict[str, Any], *, leaves_preset: bool) -> list[Any]:
        changes, filled = fill_in.recommend_values(
            self.form, self.rules, filled, raw, leaves_preset=leaves_preset
        )
        return [filled, *fill_in.field_updates(self.form, FITTED_FIELDS, changes)]

    def _fit_model(self, model: str, dataset: str, size: str, strategy: str) -> tuple[Any, Any]:
        sizes, strategies = self.form.size_choices(model, dataset), self.form.strategy_choices(model)
        is_size = size in [name for _, name in sizes]
        is_strategy = strategy in [name for _, name in strategies]
        return (
            gr.update(choices=sizes, value=size if is_size else ""),
            gr.update(choices=strategies, value=strategy if is_strategy else strategies[0][1]),
        )

    def _choose_own_data(self, filled: str, *values: Any) -> list[Any]:
        own_name = next(iter(self.form.catalogue.own_data))
        new_values = [
            own_name if name == "dataset" else value
            for name, value in zip(self.form.names, values, strict=True)
        ]
        return [gr.update(value=own_name), *self._fit_dataset(filled, *new_values)]

    def _offer_data(self, request: gr.Request) -> tuple[Any, str, str]:
        catalogue = self.form.catalogue = self.source.get()
        # A form for a checkpoint offers only the data sets of its task.
        has_start = form_module.START_FIELD in request.query_params
        return (
            gr.skip() if has_start else gr.update(choices=self.form.dataset_choices()),
            dataset_groups(self.form),
            unavailable(catalogue, may_install=current_user().is_teacher),
        )

    def _show_fine_tuning(self, model: str) -> Any:
        selected = self.form.catalogue.models.get(model)
        return gr.update(visible=bool(selected and selected.may_have_path))


def _offer_warm_up(is_on: bool, steps: Any, ratio: Any) -> Any:
    return f"{OFFERED_WARM_UP:g}" if is_on and _is_zero(steps) and _is_zero(ratio) else gr.skip()


def _is_zero(value: Any) -> bool:
    try:
        return float(value or 0) == 0
    except (TypeError, ValueError):
        return False


ROWS = (("partition",), ("num_nodes", "gpu_type"), ("time_limit", "memory_gb"))
# Fields that affect the options of the others.
DECIDING = ("partition", "num_nodes", "gpu_type", "device")


class WhereGroup:
    """The fields by which an engine selects where a run trains, and the events that follow their changes."""

    def __init__(self, form: Form, api: Api, engine_fields: Mapping[str, PlacementField]) -> None:
        self._form, self._api, self._engine_fields = form, api, engine_fields

    def add_controls(self) -> None:
        """Lay out the fields, if the engine has any."""
        if not self._engine_fields:
            return
        gr.HTML('<h2 class="ddp-folds-title">Where</h2>')
        with gr.Group(elem_id="where"):
            for row in ROWS:
                with gr.Row():
                    self._form.add_controls(*(name for name in row if name in self._engine_fields))
        folded = [name for name in FOLDED_WHERE if name in self._engine_fields]
        if folded:
            with (
                gr.Group(elem_classes="ddp-folds"),
                gr.Accordion(_title(folded), open=False, elem_classes="ddp-fold", elem_id="fold-where"),
            ):
                with gr.Row():
                    self._form.add_controls(*(name for name in folded if name != "extra_lines"))
                self._form.add_controls(*(name for name in folded if name == "extra_lines"))

    def connect(self, demo: gr.Blocks) -> None:
        """Connect the events. All controls of the form must have been laid out.

        Args:
            demo: the Blocks that contain the controls.
        """
        if not self._engine_fields:
            return
        fields = self._form.controls
        all_controls = list(fields.values())
        adapted = [fields[name] for name in self._adapted_names()]
        deciding = [fields[name] for name in DECIDING if name in fields]
        change_events = [demo.load, *(field.change for field in deciding)]
        gr.on(change_events, self._adapt, all_controls, adapted, **BESIDE_PREVIEW)
        # Reduce the number of ranks only after user input.
        ranks = fields["nproc_per_node"]
        gr.on([field.input for field in deciding], self._fit_ranks, all_controls, ranks, **QUIET)

    def _adapted_names(self) -> list[str]:
        return [
            name
            for name in ("partition", "gpu_type", "num_nodes", "nproc_per_node")
            if name in self._form.controls
        ]

    def _adapt(self, *values: Any) -> list[Any]:
        """Update the options: free partitions, GPU types, and the maximum number of nodes and ranks."""
        config = self._config(values)
        if config is None:
            return [gr.skip() for _ in self._adapted_names()]
        machine = self._api.machine(config)
        return [self._update(name, machine) for name in self._adapted_names()]

    def _update(self, name: str, machine: Machine) -> Any:
        if name == "nproc_per_node":
            label, info = self._form.ranks_label(machine)
            return gr.update(label=label, info=info)
        if name == "num_nodes":
            limit_text = f"Up to {machine.num_nodes} nodes" if machine.num_nodes > 1 else "1 node"
            return gr.update(info=f"{limit_text} of the partition, each with the same number of ranks.")
        options = [(choice.label, choice.value) for choice in machine.placement_fields[name].choices]
        if name == "gpu_type":
            # Hidden if there is a single type, because the first option means any type.
            info = "The type of the GPUs that the ranks train on."
            return gr.update(choices=options, info=info, visible=len(options) > 2 or "hidden")
        return gr.update(choices=options, info="Nodes that the job may run on, with their free resources.")

    def _fit_ranks(self, *values: Any) -> Any:
        config = self._config(values)
        if config is None:
            return gr.skip()
        max_ranks = self._api.machine(config).max_ranks(config.device)
        return max_ranks if 0 < max_ranks < config.nproc_per_node else gr.skip()

    def _config(self, values: tuple[Any, ...]) -> Config | None:
        """Parse the fields that affect the options; None if one of them is invalid."""
        raw = self._form.to_raw(*values)
        names = {*DECIDING, "nproc_per_node"}
        try:
            return config_module.parse({name: value for name, value in raw.items() if name in names})
        except ConfigError:
            return None


def _title(names: list[str]) -> str:
    first, *other_labels = (config_module.settings()[name].label for name in names)
    return ", ".join([first, *(label if label.isupper() else label.lower() for label in other_labels)])
