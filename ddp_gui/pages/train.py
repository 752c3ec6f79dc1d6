"""The first page: pick, see what Start would do, press Start."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from ddp_gui import plan
from ddp_gui.api import Api
from ddp_gui.catalogue import Catalogue
from ddp_gui.form import FINE_TUNING_FIELDS, TOPIC_TITLES, Form, means_something
from ddp_gui.machine import Machine
from ddp_gui.pages import own_data, words
from ddp_gui.plan import Plan
from trainers.contract import rundir
from trainers.contract.config import ConfigError
from trainers.contract.rundir import torchrun_command

HERO = """<header class="ddp-hero"><h1>Train a network on several GPUs at once</h1>
<p>Pick, press Start, and watch what every process of a real <code>torchrun</code> job does.</p></header>"""
NO_COMMAND = "# nothing to run yet: see the message above"
FIELDS_A_ROW = 3
# The share of the run that is offered as warm-up when the rate is scaled up.
OFFERED_WARM_UP = 0.05
OPEN_RUN = "(run_id) => { if (run_id) window.location.assign('./run?id=' + encodeURIComponent(run_id)); }"


def build(api: Api, catalogue: Catalogue, machine: Machine, runs_dir: Path) -> None:
    """Lay the page out inside the Blocks under construction."""
    gr.Navbar(main_page_name="Train")
    gr.HTML(HERO)
    gr.HTML('<div id="ddp-live"></div>')
    form = Form(catalogue, machine)
    with gr.Row(equal_height=False):
        with gr.Column(scale=5, min_width=320):
            with gr.Group(), gr.Row():
                form.add_controls("dataset", "model")
            own = own_data.add_controls(form)
            with gr.Group(visible=False) as fine_tuning, gr.Row():
                form.add_controls(*FINE_TUNING_FIELDS)
            about = gr.Markdown(elem_classes="ddp-note")
            with gr.Group(), gr.Row():
                form.add_controls("nproc_per_node", "batch_size")
            with gr.Group(), gr.Row():
                form.add_controls("learning_rate", "num_epochs", "seed")
            for topic, title in TOPIC_TITLES.items():
                _add_topic(form, topic, title)
            if more := words.unavailable(catalogue):
                with gr.Accordion("More data sets", open=False):
                    gr.HTML(more)
        with gr.Column(scale=4, min_width=320):
            start = gr.Button("Start", variant="primary", size="lg", elem_id="start-button")
            gr.HTML(f'<p class="ddp-machine">{machine_words(machine)}</p>')
            equation = gr.HTML(elem_id="equation")
            problem = gr.Textbox(
                visible=False, interactive=False, show_label=False, lines=2, elem_classes="ddp-problem"
            )
            command = gr.Code(
                label="The command Start runs",
                language="shell",
                interactive=False,
                lines=2,
                max_lines=4,
                show_line_numbers=False,
                elem_id="command",
                elem_classes="ddp-command",
                wrap_lines=True,
            )
            for error in catalogue.errors:
                gr.Textbox(
                    value=f"{error['module']} cannot be used: {error['message']}",
                    show_label=False,
                    interactive=False,
                    elem_classes="ddp-problem",
                )
    started_run = gr.Textbox(visible=False)

    controls = [form.controls[name] for name in form.names]

    def preview(*values: Any) -> tuple[Any, Any, Any, str]:
        raw = form.to_raw(*values)
        try:
            planned = api.plan(raw, may_look=False)
        except ConfigError as error:
            described = describe_pick(catalogue, raw)
            return "", gr.update(value=as_lines(error, form), visible=True), NO_COMMAND, described
        return (
            words.equation(planned),
            gr.update(value="", visible=False),
            command_for(planned, runs_dir),
            describe_pick(catalogue, raw, planned.num_parameters),
        )

    def fit_dataset(dataset: str, model: str) -> tuple[Any, Any]:
        is_own = dataset in catalogue.own_data
        choices = form.model_choices(dataset)
        names = [name for _, name in choices]
        fitting = model if model in names else names[0] if names else None
        return gr.update(choices=choices, value=fitting), gr.update(visible=is_own)

    def fit_model(model: str, dataset: str, size: str, strategy: str) -> tuple[Any, Any, Any]:
        sizes, strategies = form.size_choices(model, dataset), form.strategy_choices(model)
        picked = catalogue.models.get(model)
        is_size = size in [name for _, name in sizes]
        is_strategy = strategy in [name for _, name in strategies]
        return (
            gr.update(choices=sizes, value=size if is_size else ""),
            gr.update(choices=strategies, value=strategy if is_strategy else "ddp"),
            gr.update(visible=bool(picked and picked.may_have_path)),
        )

    def offer_warm_up(*, is_on: bool, steps: Any, ratio: Any) -> Any:
        return f"{OFFERED_WARM_UP:g}" if is_on and _is_zero(steps) and _is_zero(ratio) else gr.skip()

    def press_start(*values: Any) -> str:
        return str(api.start_run(form.to_raw(*values))["run_id"])

    outputs = [equation, problem, command, about]
    settings: dict[str, Any] = {
        "queue": False,
        "show_progress": "hidden",
        "api_visibility": "private",
    }
    fields = form.controls
    dataset_control, model_control = fields["dataset"], fields["model"]
    dataset_control.change(
        fit_dataset, [dataset_control, model_control], [model_control, own.group], **settings
    )
    gr.on(
        [dataset_control.change, model_control.change],
        fit_model,
        [model_control, dataset_control, fields["model_size"], fields["strategy"]],
        [fields["model_size"], fields["strategy"], fine_tuning],
        **settings,
    )
    _show_what_means_something(form, settings)
    fields["scale_lr"].change(
        lambda is_on, steps, ratio: offer_warm_up(is_on=is_on, steps=steps, ratio=ratio),
        [fields["scale_lr"], fields["warmup_steps"], fields["warmup_ratio"]],
        fields["warmup_ratio"],
        **settings,
    )
    looks = own_data.connect(own, form, api, runs_dir, controls)
    gr.on(
        [control.change for control in controls],
        preview,
        controls,
        outputs,
        trigger_mode="always_last",
        **settings,
    )
    for looked in looks:
        looked.then(preview, controls, outputs, **settings)
    gr.on(None, preview, controls, outputs, **settings)
    # Queued, other than the rest: only then does Gradio show an error as a message.
    start.click(
        press_start,
        controls,
        started_run,
        trigger_mode="once",
        concurrency_limit=None,
        show_progress="hidden",
        api_visibility="private",
    ).success(None, started_run, None, js=OPEN_RUN)


def _show_what_means_something(form: Form, settings: dict[str, Any]) -> None:
    """Hide fields, such as momentum, while the choice they belong to is not made."""

    def fit(names: list[str], value: str) -> list[Any]:
        # "hidden" and not False: the control stays in the document and keeps its value.
        return [gr.update(visible=means_something(name, value) or "hidden") for name in names]

    for other, names in form.depending().items():
        outputs = [form.controls[name] for name in names]
        form.controls[other].change(partial(fit, names), form.controls[other], outputs, **settings)


def _add_topic(form: Form, topic: str, title: str) -> None:
    """Fold a topic's fields away, two in a row."""
    names = form.fields_of_topic(topic)
    with gr.Accordion(title, open=False, elem_classes="ddp-fold"):
        for first in range(0, len(names), FIELDS_A_ROW):
            with gr.Row():
                form.add_controls(*names[first : first + FIELDS_A_ROW])


def _is_zero(value: Any) -> bool:
    try:
        return float(value or 0) == 0
    except (TypeError, ValueError):
        return False


def machine_words(machine: Machine) -> str:
    """Return what the machine offers, safe to put into HTML."""
    return machine.describe().replace("&", "&amp;").replace("<", "&lt;")


def command_for(planned: Plan, runs_dir: Path) -> str:
    """Return the torchrun command that Start would run now."""
    run_dir = runs_dir / rundir.next_run_id(runs_dir, planned.config)
    return rundir.shell_words(torchrun_command(planned.config, plan.shown_run_dir(run_dir)))


def as_lines(error: ConfigError, form: Form) -> str:
    """Return one line a problem, with the label people see before the field's name."""
    lines = []
    for problem in error.problems:
        control = form.controls.get(problem.field)
        label = getattr(control, "label", None)
        lines.append(f"{label}: {problem}" if label else str(problem))
    return "\n".join(lines)


def describe_pick(catalogue: Catalogue, raw: dict[str, Any], num_parameters: int | None = None) -> str:
    """Say what the picked data set and model are; nothing of a person's own data is in it."""
    dataset = catalogue.datasets.get(str(raw["dataset"]))
    model = catalogue.models.get(str(raw["model"]))
    said = []
    if dataset is not None:
        said.append(f"{dataset.description} ({dataset.source})")
    if model is not None:
        counted = f" {num_parameters:,} parameters." if num_parameters else ""
        said.append(f"**{model.label}**: {model.description}{counted}")
        if model.missing_packages:
            packages = " and ".join(model.missing_packages)
            said.append(f"It needs {packages}: `{plan.INSTALL_FINE_TUNING}`, then start the page again.")
    return "\n\n".join(said)
