"""The pictures of a report show the numbers of the measured runs."""

from __future__ import annotations

import html
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.events.series import Series
from ddp_gui.learn.report import charts, instruments, markup, measured
from ddp_gui.learn.report.charts import ShownRun
from ddp_gui.learn.report.markup import Html
from ddp_gui.learn.report.measured import Measured
from tests.harness import REPOSITORY
from tests.unit.ddp_gui.learn.report.made import make_run
from trainers.contract import events
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory

NOTHING = {"caption": ["What it shows."], "bars": "", "waterfall": None, "instrument": "", "run": None}


def read(run: RunDirectory, num_ranks: int = 2) -> Measured:
    about = {"path": str(run.path), "state": "finished", "num_ranks": num_ranks, "num_replicas": num_ranks}
    return measured.read(about)


def drawn(run: Measured, **picture: Any) -> str:
    figure = instruments.draw_picture(NOTHING | picture, [ShownRun(name="one <b>rank</b>", index=0, run=run)])
    assert figure is not None and "one &lt;b&gt;rank&lt;/b&gt;" in figure and "What it shows." in figure
    return re.sub(r"<[^>]+>", " ", figure)


def test_replicas_that_differ_are_shown_with_their_step_and_distance(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a-1")
    file = EventFile(run.events)
    for step, hashes, distances in (
        (10, ["9900"], [0.0]),  # before a resume with two ranks
        (20, ["aa11", "aa11"], [0.0, 0.0]),
        (40, ["bb22", "cc33"], [0.0, 0.125]),
    ):
        file.append([(1e9 + step, "fingerprints", {"step": step, "hashes": hashes, "distances": distances})])
    file.close()
    words = drawn(read(run), instrument="fingerprints")
    assert "have differed since step 40" in words and "12.50%" in words
    assert re.search(r"rank 1 .*a\s+aa11.*b\s+cc33", words, re.DOTALL)


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        ({"instrument": "step-theatre"}, "No step of this run was recorded."),
        ({"instrument": "fingerprints"}, "not compared"),
        ({"instrument": "who-saw-what"}, "training samples"),
    ],
)
def test_each_picture_is_drawn_or_says_why_not(tmp_path: Path, picture: Any, expected: str) -> None:
    assert expected in drawn(read(make_run(tmp_path, "a-1")), **picture)


def test_a_recorded_step_is_drawn_from_its_file(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a-1")
    run.recordings.mkdir()
    golden = json.loads((REPOSITORY / "tests/golden/recording_digits_mlp.json").read_text())
    (run.recordings / f"step_{golden['first_step']}.json").write_text(json.dumps(golden))
    words = drawn(read(run), instrument="step-theatre")
    assert "rank 0" in words and "rank 1" in words and f"step {golden['first_step']}" in words
    (run.recordings / f"step_{golden['first_step']}.json").write_text("{}")
    assert "another version or is damaged" in drawn(read(run), instrument="step-theatre")


def figure_of(values: list[float], **more: Any) -> Html | None:
    """Return the chart of a run with these losses, one per step."""
    series = Series(1)
    rest = dict.fromkeys(events.FIELDS["step"], 1.0)
    series.feed(
        {**rest, "seq": at, "kind": "step", "step": at, "time_unix_s": 1e9 + at, "loss": value}
        for at, value in enumerate(values, 1)
    )
    run: Any = SimpleNamespace(series=series, samples_at=series.samples_at)
    return charts.chart_of_curve([ShownRun(name="<b>", index=8, run=run)], "loss", "step", 500, **more)


def test_a_chart_without_a_point_is_none_and_a_peak_survives_thinning() -> None:
    assert figure_of([math.nan] * 10) is None
    values = [1.0] * 20_000
    values[7_777] = 9.0
    made = figure_of(values)
    assert made is not None and len(made) < 12_000
    assert "&lt;b&gt;: from 1 to 1" in made
    (line,) = json.loads(html.unescape(re.findall(r'data-figure="([^"]*)"', made)[0]))["lines"]
    assert line["index"] == 8 and len(line["x"]) <= 500
    assert line["y"][line["x"].index(7_778)] == 9, "the peak is drawn"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (markup.number(0.123456), "0.1235"),
        (markup.number(12345.6), "12,346"),
        (markup.number(1e-7), "1.00e-07"),
        (markup.number(None), "–"),
        (markup.metric("accuracy", 0.9583), "95.8%"),
        (markup.short_time(0.00324), "3.24 ms"),
        (markup.short_time(7265), "2 h 01 min"),
        (markup.moment(1e300), "–"),
    ],
)
def test_numbers_are_written_as_on_the_page(made: str, words: str) -> None:
    assert made == words
