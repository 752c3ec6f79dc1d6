"""What the first page says of a configuration; every text that becomes HTML is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddp_gui.devices.capacity import Machine
from ddp_gui.http import glossary
from ddp_gui.http.visible import as_html
from ddp_gui.launch import commands
from ddp_gui.plan import package_install, recipe
from ddp_gui.plan import plan as plan_module
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.plan.memory import Prediction
from ddp_gui.plan.plan import Plan
from ddp_gui.train.form import Form
from trainers.engines.base import Engine

SPARK_POINTS = 60
SPARK_WIDTH, SPARK_HEIGHT = 120, 24


def equation(plan: Plan) -> str:
    """Say how the batch and the steps come about."""
    config = plan.config
    word = "GPU" if plan.device_kind == "cuda" else "CPU rank"
    copies = plan.num_replicas
    ranks_each = config.world_size // copies
    if ranks_each == 1:
        terms = [
            (f"{config.batch_size:,}", glossary.term("batch per rank", f"per {word}")),
            (f"{copies}", f"{word}{'' if copies == 1 else 's'}"),
        ]
    else:
        shared = f"model cop{'y' if copies == 1 else 'ies'}, {ranks_each} {word}s each"
        terms = [(f"{config.batch_size:,}", "per copy"), (f"{copies}", shared)]
    if config.gradient_accumulation_steps > 1:
        terms.append((f"{config.gradient_accumulation_steps}", glossary.term("accumulation", "accumulated")))
    product = "<i>×</i>".join(_factor(number, words) for number, words in terms)
    result = _factor(f"{plan.global_batch:,}", glossary.term("global batch"))
    steps = _factor(f"{plan.steps_per_epoch:,}", glossary.term("step", "steps per epoch"))
    needs = f'data-kind="{plan.device_kind}" data-ranks="{config.world_size}"'
    line = f'<div class="ddp-equation" role="status" {needs}>{product}<i>=</i>{result}<i>→</i>{steps}</div>'
    return line + _world_size(plan, word) + _learning_rate(plan)


def expectation(plan: Plan) -> str:
    """State what the run will reach, where that was measured; otherwise the number of its steps."""
    steps = f"{plan.num_steps:,} {glossary.term('step', 'step' if plan.num_steps == 1 else 'steps')}"
    found = recipe.expected(plan.config)
    if found is None:
        return f'<p class="ddp-expectation" id="expectation"><span>{steps} in all</span></p>'
    took = "" if plan.device_kind == "cuda" else f" in about {_seconds(found.seconds)} on idle CPU cores"
    reached = f"{found.metric} of about <b>{found.mean:.2f}</b>"
    return f'<p class="ddp-expectation" id="expectation"><span>{steps}: {reached}{took}</span></p>'


def _seconds(seconds: float) -> str:
    """Return a time to one or two digits: 7 s, 20 s, 2 min."""
    if seconds >= 90:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds < 20 else f"{round(seconds, -1):.0f} s"


def _world_size(plan: Plan, word: str) -> str:
    """Say how the ranks of several machines add up."""
    config = plan.config
    if config.num_nodes == 1:
        return ""
    each = f"{config.nproc_per_node} {word}{'' if config.nproc_per_node == 1 else 's'} each"
    size = glossary.term("world size")
    return (
        f'<p class="ddp-rate"><span>{config.num_nodes} machines × {each} = {size} '
        f"<b>{config.world_size}</b></span></p>"
    )


def _factor(number: str, words: str) -> str:
    return f"<span><b>{number}</b><small>{words}</small></span>"


def _learning_rate(plan: Plan) -> str:
    """Say which rate results, where it is not simply the one that was typed."""
    config = plan.config
    factor = plan.peak_learning_rate / config.learning_rate
    if not config.scale_lr and config.lr_schedule == "constant" and plan.num_warmup_steps == 0:
        return ""
    words = [f"{glossary.term('learning rate')} {config.learning_rate:g}"]
    if config.scale_lr:
        words[0] += f" × {factor:g} = <b>{plan.peak_learning_rate:g}</b>"
    if plan.num_warmup_steps:
        plural = "" if plan.num_warmup_steps == 1 else "s"
        words.append(f"after {plan.num_warmup_steps:,} step{plural} of {glossary.term('warm-up')}")
    elif config.scale_lr:
        words.append(f"without a {glossary.term('warm-up')}")
    if config.lr_schedule != "constant":
        words.append("then " + config.lr_schedule.replace("_", " "))
    return f'<p class="ddp-rate"><span>{", ".join(words)}</span>{_spark(plan)}</p>'


def _spark(plan: Plan) -> str:
    rates = plan.learning_rates(SPARK_POINTS)
    top = max(rates) or 1.0
    points = " ".join(
        f"{SPARK_WIDTH * at / (SPARK_POINTS - 1):.1f},{1 + (SPARK_HEIGHT - 2) * (1 - rate / top):.1f}"
        for at, rate in enumerate(rates)
    )
    return (
        f'<svg class="ddp-spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" role="img" '
        f'aria-label="The learning rate over the run"><polyline points="{points}"/></svg>'
    )


def dataset_groups(form: Form) -> str:
    """Return, for assets/js/train/dataset_groups.js, the group of each data set by its label."""
    groups = {label: group for label, _, group in form.grouped_datasets()}
    return (
        f'<span id="ddp-dataset-groups" data-groups="{html.escape(json.dumps(groups), quote=True)}"></span>'
    )


def unavailable(catalogue: Catalogue, *, may_install: bool) -> str:
    """List the data sets that could be had, and how; assets/js/machine/install.js connects the buttons."""
    entries = "".join(
        f"<li><b>{html.escape(way.label)}</b>: {html.escape(way.words)}"
        f"{install_button(way.data_set) if may_install and way.data_set else ''}"
        f"{f'<pre><code>{html.escape(way.command)}</code></pre>' if way.command else ''}</li>"
        for way in map(package_install.how_to_get, catalogue.unavailable)
    )
    return f'<ul class="ddp-more">{entries}</ul>' if entries else "All data sets are installed."


def install_button(data_set: str) -> str:
    """Return the button that installs the package of a data set; assets/js/machine/install.js connects it."""
    name = html.escape(data_set, quote=True)
    return (
        '<div class="ddp-install"><button type="button" class="ddp-button ddp-button-small" '
        f'data-install="{name}">Install</button> <span role="status"></span></div>'
    )


def warnings(sentences: Sequence[str]) -> str:
    """Say what will probably disappoint; Start works all the same."""
    if not sentences:
        return ""
    lines = "".join(f"<li>{as_html(sentence)}</li>" for sentence in sentences)
    return f'<ul class="ddp-before" role="status">{lines}</ul>'


def memory(plan: Plan, machine: Machine, predicted: Prediction | None) -> str:
    """Draw what one rank's memory will hold, as far as that is known before the start."""
    if predicted is None:
        return ""
    config = plan.config
    available = machine.memory_for_a_rank(config.device, config.nproc_per_node)
    total = predicted.total_bytes
    labels = {
        "parameters": glossary.term("parameters"),
        "gradients": glossary.term("gradient", "gradients"),
        "optimizer": glossary.term("optimizer state"),
        "activations": glossary.term("activations"),
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
    of = ""
    if available is not None:
        whose = "its GPU" if plan.device_kind == "cuda" else f"its share of {machine.place}"
        free = machine.free_for_a_rank(config.device, config.nproc_per_node)
        text = f"of the {in_bytes(available)} of {whose}"
        if free is not None:
            text += f", {in_bytes(free)} of them free now"
        problem = None
        if total > available:
            problem = "it will not fit"
        elif free is not None and total > free:
            problem = "it will not fit beside what uses the GPU now"
        of = f" {text}" if problem is None else f' <span class="ddp-memory-over">{text}: {problem}</span>'
    rest = "" if predicted.process_bytes else ", besides the process itself"
    holds = f"<p>Each {word} will hold at least <b>{in_bytes(total)}</b>{of}{rest}.</p>"
    return (
        f'<div class="ddp-memory-card" role="group" aria-label="Predicted memory">{holds}'
        f'<div class="ddp-memory-track">{bars}</div><p class="ddp-memory-legend">{legend}</p></div>'
    )


def in_bytes(size: int) -> str:
    """Say a size in decimal units, as the rest of the page does."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 10 * unit else f"{size / unit:.0f} {name}"
    return f"{size} bytes"


def machine(machine: Machine) -> str:
    """Say what the machine offers."""
    return f'<p class="ddp-machine">{html.escape(machine.describe())}</p>'


def command(plan: Plan, runs_dir: Path, engine: Engine) -> str:
    """Return the command of the job that Start would begin now, by the page's engine."""
    return commands.train_anew(engine, plan.config, runs_dir)


def script(plan: Plan, runs_dir: Path, engine: Engine) -> str:
    """Return the script of the job that Start would submit now; empty where the engine needs none."""
    try:
        return engine.script(plan.config, runs_dir / "RUN") or ""
    except ValueError as error:
        return f"# no script: {error}"


def pick(
    catalogue: Catalogue, raw: dict[str, Any], num_parameters: int | None = None, offer: str | None = None
) -> str:
    """Return the picked data set and model in Markdown; nothing of a user's own data is in it.

    Args:
        offer: a sentence about what would make the run faster.
    """
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
            said.append(
                f"It needs {packages}: `{plan_module.INSTALL_FINE_TUNING}`, then start the page again."
            )
    if offer:
        said.append(offer)
    return "\n\n".join(said)
