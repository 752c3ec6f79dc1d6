"""The first page: pick, see what Start would do, press Start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from ddp_gui import plan
from ddp_gui.api import Api
from ddp_gui.catalogue import Catalogue
from ddp_gui.form import TOPIC_TITLES, Form
from ddp_gui.machine import Machine
from ddp_gui.plan import Plan
from trainers.contract import rundir
from trainers.contract.config import ConfigError
from trainers.contract.rundir import torchrun_command

HERO = """<header class="ddp-hero"><h1>Train a network on several GPUs at once</h1>
<p>Pick, press Start, and watch what every process of a real <code>torchrun</code> job does.</p></header>"""
NO_COMMAND = "# nothing to run yet: see the message above"
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
            about = gr.Markdown(elem_classes="ddp-note")
            with gr.Group(), gr.Row():
                form.add_controls("nproc_per_node", "batch_size")
            with gr.Group(), gr.Row():
                form.add_controls("learning_rate", "num_epochs", "seed")
            for topic, title in TOPIC_TITLES.items():
                with gr.Accordion(title, open=False), gr.Row():
                    form.add_controls(*form.fields_of_topic(topic))
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
        words = describe_pick(catalogue, str(raw["dataset"]), str(raw["model"]))
        try:
            planned = api.plan(raw)
        except ConfigError as error:
            return "", gr.update(value=as_lines(error, form), visible=True), NO_COMMAND, words
        return (
            equation_html(planned),
            gr.update(value="", visible=False),
            command_for(planned, runs_dir),
            words,
        )

    def fit_model(dataset: str, model: str) -> Any:
        choices = form.model_choices(dataset)
        names = [name for _, name in choices]
        return gr.update(choices=choices, value=model if model in names else names[0] if names else None)

    def press_start(*values: Any) -> str:
        return str(api.start_run(form.to_raw(*values))["run_id"])

    outputs = [equation, problem, command, about]
    settings: dict[str, Any] = {
        "queue": False,
        "show_progress": "hidden",
        "api_visibility": "private",
    }
    dataset_control, model_control = form.controls["dataset"], form.controls["model"]
    dataset_control.change(fit_model, [dataset_control, model_control], model_control, **settings)
    gr.on(
        [control.change for control in controls],
        preview,
        controls,
        outputs,
        trigger_mode="always_last",
        **settings,
    )
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


def machine_words(machine: Machine) -> str:
    """Return what the machine offers, safe to put into HTML."""
    return machine.describe().replace("&", "&amp;").replace("<", "&lt;")


def equation_html(planned: Plan) -> str:
    """Say how the batch and the steps come about; numbers only, so nothing of a user's text gets in."""
    config = planned.config
    word = "GPU" if planned.device_kind == "cuda" else "CPU rank"
    plural = "" if config.nproc_per_node == 1 else "s"
    return f"""<div class="ddp-equation" role="status">
<span><b>{config.batch_size:,}</b><small>per {word}</small></span><i>×</i>
<span><b>{config.nproc_per_node}</b><small>{word}{plural}</small></span><i>=</i>
<span><b>{planned.global_batch:,}</b><small>global batch</small></span><i>→</i>
<span><b>{planned.steps_per_epoch:,}</b><small>steps per epoch</small></span></div>"""


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


def describe_pick(catalogue: Catalogue, dataset_name: str, model_name: str) -> str:
    """Say what the picked data set and model are."""
    dataset, model = catalogue.datasets.get(dataset_name), catalogue.models.get(model_name)
    words = []
    if dataset is not None:
        words.append(f"{dataset.description} ({dataset.source})")
    if model is not None:
        size = model.num_parameters.get(dataset_name)
        count = f" {size:,} parameters." if size else ""
        words.append(f"**{model.label}**: {model.description}{count}")
    return "\n\n".join(words)
