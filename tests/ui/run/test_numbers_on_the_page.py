"""Read the numbers of a finished run's page and recompute them from events.jsonl.

The test does not use the page's own arithmetic, so errors of the page are detected.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.harness import END_TIMEOUT_S, all_events, wait_until
from tests.ui.conftest import Watched
from tools.page_driver import Server
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

BATCH, RANKS, EPOCHS = 48, 2, 5
CONFIG = {
    "dataset": "fashion_mnist",
    "model": "cnn",
    "device": "cpu",
    "nproc_per_node": RANKS,
    "batch_size": BATCH,
    "num_epochs": EPOCHS,
}
GLOBAL_BATCH = BATCH * RANKS
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "%": 0.01, "kB": 1e3, "MB": 1e6, "GB": 1e9, "": 1.0}
NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s*(µs|ms|s\b|%|kB|MB|GB)?")


class Shown:
    """A number as shown on the page. It matches every value that is rounded to the same text."""

    def __init__(self, text: str, unit: str) -> None:
        digits = text.replace(",", "")
        places = len(digits.partition(".")[2])
        self.text = f"{text} {unit}"
        self.value = float(digits) * UNITS[unit]
        # Half of the last digit, plus a tolerance for floating point.
        self._half = 0.501 * 10**-places * UNITS[unit]

    def is_(self, value: float, significant: int | None = None) -> None:
        """Fail unless `value` is rounded to the shown text, with the given number of significant digits."""
        half = self._half
        if significant is not None and value:
            half = max(half, 0.501 * abs(value) * 10 ** (1 - significant))
        assert abs(self.value - value) <= half, f"the page says {self.text}, the events {value}"


def numbers_in(text: str) -> list[Shown]:
    return [Shown(number, unit) for number, unit in NUMBER.findall(text)]


@pytest.fixture(scope="module")
def ended(client: Client, runs_dir: Path) -> RunDirectory:
    """Return a finished run of the default data that is long enough for some rank samples."""
    run = RunDirectory(runs_dir / client.predict(CONFIG, api_name="/start_run")["run_id"])
    wait_until("the end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    assert liveness.read_status(run).state == "finished", liveness.read_status(run).error
    return run


@pytest.fixture
def page(ended: RunDirectory, server: Server, watched: Watched) -> Page:
    """Return the run's page."""
    watched.page.goto(f"{server.address}/run?id={ended.run_id}")
    expect(watched.page.locator(".ddp-pill")).to_have_text("finished")
    return watched.page


@pytest.fixture
def of_kind(ended: RunDirectory) -> Callable[[str], list[dict[str, Any]]]:
    """Return a function that returns the events of a kind."""
    written = all_events(ended)
    return lambda kind: [dict(event) for event in written if event["kind"] == kind]


Events = Callable[[str], list[dict[str, Any]]]


def whole_steps_s(steps: Sequence[dict[str, Any]], num_train: int) -> list[float]:
    """Return the times of steps with a full batch: the last batch of an epoch is smaller."""
    per_epoch = -(-num_train // GLOBAL_BATCH)
    assert num_train % GLOBAL_BATCH, "this data does not divide evenly, so the last step is cut"
    return [step["step_time_s"] for step in steps if step["step"] % per_epoch and step["step_time_s"]]


def tile(page: Page, label: str) -> tuple[list[Shown], list[Shown]]:
    card = page.locator(".ddp-tile").filter(has_text=label)
    expect(card).to_have_count(1)
    value, note = card.locator(".ddp-tile-value"), card.locator(".ddp-tile-note")
    return numbers_in(value.inner_text()), numbers_in(note.inner_text())


def test_how_far_it_came_and_how_long_it_took(page: Page, of_kind: Events) -> None:
    plan, last, states = of_kind("plan")[-1], of_kind("step")[-1], of_kind("state")
    epoch, num_epochs, step, num_steps = numbers_in(page.locator(".ddp-where").inner_text())
    epoch.is_(EPOCHS)
    num_epochs.is_(EPOCHS)
    step.is_(last["step"])
    num_steps.is_(EPOCHS * -(-plan["num_train"] // GLOBAL_BATCH))
    (took,) = numbers_in(page.locator(".ddp-elapsed").inner_text())
    took_s = states[-1]["time_unix_s"] - states[0]["time_unix_s"]
    assert abs(took.value - took_s) <= 1.0, (took.text, took_s)


def test_loss_and_accuracy(page: Page, of_kind: Events) -> None:
    steps, evaluations = of_kind("step"), of_kind("eval")
    (loss,), (at,) = tile(page, "training loss")
    loss.is_(steps[-1]["loss"])
    at.is_(steps[-1]["step"])
    (accuracy,), (best, best_step) = tile(page, "validation accuracy")
    accuracy.is_(evaluations[-1]["metrics"]["accuracy"])
    best_one = max(evaluations, key=lambda event: event["metrics"]["accuracy"])
    best.is_(best_one["metrics"]["accuracy"])
    best_step.is_(best_one["step"])


def test_throughput_and_step_time_are_of_the_same_whole_steps(page: Page, of_kind: Events) -> None:
    times = whole_steps_s(of_kind("step"), of_kind("plan")[-1]["num_train"])
    median_s, mean_s = statistics.median(times), statistics.fmean(times)
    (per_s,), (mean_per_s,) = tile(page, "images per second")
    (step_time,), (num, mean_time) = tile(page, "time of one step")
    step_time.is_(median_s, significant=3)
    mean_time.is_(mean_s, significant=3)
    num.is_(len(times))
    per_s.is_(GLOBAL_BATCH / median_s, significant=3)
    mean_per_s.is_(GLOBAL_BATCH / mean_s, significant=3)
    assert abs(per_s.value * step_time.value / GLOBAL_BATCH - 1) <= 0.02


def test_model_and_batch(page: Page, of_kind: Events) -> None:
    plan = of_kind("plan")[-1]
    (parameters,) = numbers_in(
        re.findall(r"\((.*?) parameters\)", page.locator(".ddp-subtitle").inner_text())[0]
    )
    parameters.is_(plan["num_parameters"])
    equation = numbers_in(page.locator(".ddp-equation").inner_text())
    per_epoch = -(-plan["num_train"] // GLOBAL_BATCH)
    assert [shown.value for shown in equation] == [BATCH, RANKS, GLOBAL_BATCH, per_epoch]


def test_every_rank(page: Page, of_kind: Events) -> None:
    devices, ranks = of_kind("devices"), of_kind("ranks")
    for rank in range(RANKS):
        card = page.locator(".ddp-device").nth(rank)
        busy, memory = numbers_in(" ".join(card.locator("dd:not(.ddp-curve-picture)").all_inner_texts()))
        newest = next(entry for entry in devices[-1]["devices"] if entry["rank"] == rank)
        busy.is_(newest["utilization_percent"] / 100)
        memory.is_(newest["memory_used_bytes"], significant=3)

        row = page.locator(".ddp-ranks-list > li").nth(rank).inner_text()
        entry = next(entry for entry in ranks[-1]["ranks"] if entry["rank"] == rank)
        (at,) = numbers_in(re.findall(r"step ([\d,]+)", row)[0])
        at.is_(entry["step"])
        (peak,) = numbers_in(re.findall(r"peak memory (.*)", row)[0])
        peak.is_(entry["peak_memory_bytes"], significant=3)
        total, *parts = numbers_in(re.findall(r".* = .*", row)[0])
        total.is_(entry["step_time_s"], significant=3)
        assert abs(sum(part.value for part in parts) / total.value - 1) <= 0.02, row
        own = {
            found["step"]: found["step_time_s"]
            for event in ranks
            for found in event["ranks"]
            if found["rank"] == rank and found["step_time_s"] is not None
        }
        if len(own) > 2:
            said = re.findall(r"median .* of .*", row)[0].replace("95th", "")
            median, num, first, last = numbers_in(said)[:4]
            median.is_(statistics.median(own.values()), significant=3)
            num.is_(len(own))
            first.is_(min(own))
            last.is_(max(own))
            assert ("too few for a 95th percentile" in row) == (len(own) < 20), row


def test_what_the_model_mixes_up_and_predicts(page: Page, of_kind: Events) -> None:
    confusion = of_kind("eval")[-1]["confusion"]
    shown = [
        int(text.replace(",", "") or 0) for text in page.locator(".ddp-confusion tbody td").all_inner_texts()
    ]
    assert shown == [count for row in confusion for count in row]
    sample = of_kind("sample")[-1]
    right = sum(image["label"] == image["prediction"] for image in sample["content"])
    words = page.get_by_text(re.compile(r"\d+ of \d+ right")).inner_text()
    num_right, num_images = (int(number) for number in re.findall(r"(\d+) of (\d+) right", words)[0])
    assert (num_right, num_images) == (right, len(sample["content"]))


def test_checkpoints_are_those_on_the_disk(page: Page, ended: RunDirectory) -> None:
    rows = page.locator(".ddp-checkpoints tbody tr")
    on_disk = {
        item.step: sum(file.stat().st_size for file in item.path.iterdir())
        for item in ended.list_checkpoints()
    }
    expect(rows).to_have_count(len(on_disk))
    for row in rows.all():
        step, size = (numbers_in(row.locator("td").nth(place).text_content() or "")[0] for place in (0, 1))
        size.is_(on_disk[int(step.value)], significant=3)
