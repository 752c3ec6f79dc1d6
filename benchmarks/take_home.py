"""What a user gets of a trained model, for each model of the catalogue: its files, and answers in time.

    python -m benchmarks.take_home [--answers 30]

For each model: the largest difference of the ONNX file from torch, the seconds of an export, the sizes of
the ONNX file and of try.html; the largest difference of try.html from torch, opened from its file in an
offline Chromium, and the seconds until its first answer; then from a served page the first answer of
`/predict` (a new process) and further ones. The weights are random: they change none of these figures.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser

from benchmarks.machine import Conditions, percentile
from ddp_gui.run import try_page
from ddp_gui.run.take_home import TRY_PAGE
from tests.unit.trained_runs import leave_trained_run
from tools.page_driver import NO_STANDBY, open_browser, serve
from trainers.contract.rundir import RunDirectory
from trainers.predict import take_home
from trainers.predict.trained_model import TrainedModel, find_checkpoint, load

CASES = [
    ("digits", "linear"), ("digits", "mlp"), ("digits", "cnn"), ("digits", "resnet"), ("digits", "vit"),
    ("wine", "tabular_mlp"), ("austen_novels", "bag_of_words"), ("austen_novels", "gru"),
    ("austen_novels", "bert"), ("austen", "gpt"), ("austen", "gpt_moe"),
]  # fmt: skip
HEADINGS = (
    "model (data)", "ONNX difference", "export, s", "ONNX, MB", "try.html, MB",
    "its difference", "its first answer, s", "first answer, s", "further: median, ms", "95%, ms",
)  # fmt: skip

# Runs the model of try.html; returns its output, and the time since the page was opened.
RUNS = """async ([values, shape]) => {
    const { data } = await window.ddpTry.model.run(values, shape);
    return [Array.from(data, Number), performance.now()];
}"""


def main() -> None:
    """Measure all models and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=int, default=30, help="answers of each model after the first")
    options = parser.parse_args()
    print(f"{Conditions.note()}\n\n| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        runs = Path(folder) / "runs"
        for dataset, name in CASES:
            run = leave_trained_run(runs, dataset, name)[0]
            cells = [f"`{name}` ({dataset})", *exported(run, Path(folder) / name)]
            cells += offline(browser, run, Path(folder) / name / TRY_PAGE)
            with serve(runs, NO_STANDBY) as server:  # no model process of another model
                cells += answered(server.address, run, options.answers)
            print(f"| {' | '.join(cells)} |", flush=True)


def exported(run: RunDirectory, folder: Path) -> list[str]:
    """Return the difference, the seconds and the sizes of an export."""
    folder.mkdir()
    began = time.perf_counter()
    facts = take_home.fill(run, None, folder, lambda _: None)
    took_s = time.perf_counter() - began
    page = try_page.try_page(run.run_id, facts["about"], folder / take_home.ONNX)
    (folder / TRY_PAGE).write_bytes(page)
    onnx_bytes = (folder / take_home.ONNX).stat().st_size
    difference = f"{facts['differences'][take_home.ONNX]:.1e}"
    return [difference, f"{took_s:.1f}", f"{onnx_bytes / 1e6:.2f}", f"{len(page) / 1e6:.2f}"]


@torch.no_grad()
def offline(browser: Browser, run: RunDirectory, path: Path) -> list[str]:
    """Return the difference of try.html from torch, and the seconds until its first answer."""
    model = load(run, find_checkpoint(run, None))
    inputs = take_home.example_input(model, num=1)
    expected = model.network(inputs).flatten()
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_function("() => window.ddpTry")
    found, after_ms = page.evaluate(RUNS, [inputs.flatten().tolist(), list(inputs.shape)])
    context.close()
    difference = float((torch.tensor(found) - expected).abs().max())
    return [f"{difference:.1e}", f"{after_ms / 1000:.2f}"]


def answered(address: str, run: RunDirectory, num_answers: int) -> list[str]:
    """Return the seconds of the first answer, and the milliseconds of further ones."""
    inputs = input_of(load(run, find_checkpoint(run, None)))
    times_s = []
    for _ in range(1 + num_answers):
        began = time.perf_counter()
        ask(address, run, inputs)
        times_s.append(time.perf_counter() - began)
    first_s, *further_s = times_s
    shares = (f"{1000 * percentile(further_s, share):.0f}" for share in (0.5, 0.95))
    return [f"{first_s:.2f}", *shares]


def input_of(model: TrainedModel) -> dict[str, Any]:
    """Return an input as the page sends it."""
    about = model.about["input"]
    if about["kind"] == "text":
        return {"text": "It is a truth universally acknowledged"}
    if about["kind"] == "table":
        return {"row": {column.name: 1.0 for column in model.spec.columns}}
    channels, height, width = about["shape"]
    pixels = torch.arange(channels * height * width).reshape(channels, height, width) % 17
    return {"pixels": pixels[0].tolist() if channels == 1 else pixels.permute(1, 2, 0).tolist()}


def ask(address: str, run: RunDirectory, inputs: dict[str, Any]) -> None:
    """Ask for an answer, of a language model for 20 tokens; read all of it."""
    writes = json.loads((run.path / "config.json").read_text())["dataset"] == "austen"
    body = {"prompt": inputs["text"], "num_tokens": 20} if writes else {"inputs": inputs}
    what = "generate" if writes else "predict"
    url = f"{address}/live/runs/{run.run_id}/model/{what}"
    headers = {"Content-Type": "application/json", "Origin": address}
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode(), headers),
        timeout=120,
    ) as response:
        response.read()


if __name__ == "__main__":
    main()
