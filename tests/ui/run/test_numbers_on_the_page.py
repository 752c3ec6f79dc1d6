"""Read the numbers of a finished run's page and recompute them from events.jsonl.

The test does not use the page's own arithmetic, so errors of the page are detected.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.harness import all_events
from tests.ui.conftest import Start, Watched, wait_until_finished
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

BATCH, RANKS, EPOCHS = 48, 2, 5
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
def run(start: Start) -> RunDirectory:
    """Return a finished run of the default data that is long enough for some rank samples."""
    made = start(
        dataset="fashion_mnist", model="cnn", nproc_per_node=RANKS, batch_size=BATCH, num_epochs=EPOCHS
    )
    wait_until_finished(made)
    return made


@pytest.fixture
def page(run: RunDirectory, server: Server, watched: Watched) -> Page:
    watched.page.goto(f"{server.address}/run?id={run.run_id}")
    expect(watched.page.locator(".ddp-pill")).to_have_text("finished")
    return watched.page


def of_kind(run: RunDirectory, kind: str) -> list[dict[str, Any]]:
    return [dict(event) for event in all_events(run) if event["kind"] == kind]


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


def test_progress_loss_speed_and_size(page: Page, run: RunDirectory) -> None:
    plan, steps, states = of_kind(run, "plan")[-1], of_kind(run, "step"), of_kind(run, "state")
    epoch, num_epochs, step, num_steps = numbers_in(page.locator(".ddp-where").inner_text())
    epoch.is_(EPOCHS)
    num_epochs.is_(EPOCHS)
    step.is_(steps[-1]["step"])
    num_steps.is_(EPOCHS * -(-plan["num_train"] // GLOBAL_BATCH))
    (took,) = numbers_in(page.locator(".ddp-elapsed").inner_text())
    took_s = states[-1]["time_unix_s"] - states[0]["time_unix_s"]
    assert abs(took.value - took_s) <= 1.0, (took.text, took_s)

    evaluations = of_kind(run, "eval")
    (loss,), (at,) = tile(page, "training loss")
    loss.is_(steps[-1]["loss"])
    at.is_(steps[-1]["step"])
    (accuracy,), (best, best_step) = tile(page, "validation accuracy")
    accuracy.is_(evaluations[-1]["metrics"]["accuracy"])
    best_one = max(evaluations, key=lambda event: event["metrics"]["accuracy"])
    best.is_(best_one["metrics"]["accuracy"])
    best_step.is_(best_one["step"])

    # Throughput and step time are of the same whole steps.
    times = whole_steps_s(steps, plan["num_train"])
    median_s, mean_s = statistics.median(times), statistics.fmean(times)
    (per_s,), (mean_per_s,) = tile(page, "images per second")
    (step_time,), (num, mean_time) = tile(page, "time of one step")
    step_time.is_(median_s, significant=3)
    mean_time.is_(mean_s, significant=3)
    num.is_(len(times))
    per_s.is_(GLOBAL_BATCH / median_s, significant=3)
    mean_per_s.is_(GLOBAL_BATCH / mean_s, significant=3)
    assert abs(per_s.value * step_time.value / GLOBAL_BATCH - 1) <= 0.02

    subtitle = page.locator(".ddp-subtitle").inner_text()
    (parameters,) = numbers_in(re.findall(r"\((.*?) parameters\)", subtitle)[0])
    parameters.is_(plan["num_parameters"])
    equation = numbers_in(page.locator(".ddp-equation").inner_text())
    per_epoch = -(-plan["num_train"] // GLOBAL_BATCH)
    assert [shown.value for shown in equation] == [BATCH, RANKS, GLOBAL_BATCH, per_epoch]


def test_ranks_confusion_samples_and_checkpoints(page: Page, run: RunDirectory) -> None:
    devices, ranks = of_kind(run, "devices"), of_kind(run, "ranks")
    for rank in range(RANKS):
        see_the_numbers_of(page, rank, devices, ranks)

    confusion = of_kind(run, "eval")[-1]["confusion"]
    cells = page.locator(".ddp-confusion tbody td").all_inner_texts()
    assert [int(text.replace(",", "") or 0) for text in cells] == [
        count for row in confusion for count in row
    ]
    sample = of_kind(run, "sample")[-1]["content"]
    right = sum(image["label"] == image["prediction"] for image in sample)
    words = page.get_by_text(re.compile(r"\d+ of \d+ right")).inner_text()
    assert re.findall(r"(\d+) of (\d+) right", words)[0] == (str(right), str(len(sample)))

    rows = page.locator(".ddp-checkpoints tbody tr")
    on_disk = {
        item.step: sum(file.stat().st_size for file in item.path.iterdir()) for item in run.list_checkpoints()
    }
    expect(rows).to_have_count(len(on_disk))
    for row in rows.all():
        step, size = (numbers_in(row.locator("td").nth(place).text_content() or "")[0] for place in (0, 1))
        size.is_(on_disk[int(step.value)], significant=3)


def see_the_numbers_of(
    page: Page, rank: int, devices: list[dict[str, Any]], ranks: list[dict[str, Any]]
) -> None:
    """Compare what the page says of a rank with the events."""
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
