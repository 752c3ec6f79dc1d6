"""The pictures of a report that are not curves show the numbers of the measured runs."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.events.analysis import pace
from ddp_gui.events.series import RANK_PARTS
from ddp_gui.learn.report import instruments, measured
from ddp_gui.learn.report.charts import ShownRun
from ddp_gui.learn.report.measured import Measured
from tests.harness import REPOSITORY
from tests.unit.ddp_gui.learn.report.made import make_run
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory

NOTHING = {"caption": ["What it shows."], "bars": "", "waterfall": None, "instrument": "", "run": None}


def read(run: RunDirectory, num_ranks: int = 2) -> Measured:
    about = {"path": str(run.path), "state": "finished", "num_ranks": num_ranks, "num_replicas": num_ranks}
    return measured.read(about)


def with_ranks(run: RunDirectory, num_ranks: int) -> RunDirectory:
    """Add samples of each rank's step breakdown."""
    parts = {
        name: 0.001 * (place + 1) for place, name in enumerate(RANK_PARTS.values()) if name != "step_time_s"
    }
    events = []
    for number in range(12):
        ranks = [
            {"rank": rank, "step": number + 1, "step_time_s": 0.03 + 0.001 * (number + rank)}
            | {name: value * (1 + rank + number / 10) for name, value in parts.items()}
            for rank in range(num_ranks)
        ]
        events.append((1e9 + number, "ranks", {"ranks": ranks}))
    file = EventFile(run.events)
    file.append(events)
    file.close()
    return run


def drawn(run: Measured, **picture: Any) -> str:
    figure = instruments.draw_picture(NOTHING | picture, [ShownRun(name="one <b>rank</b>", index=0, run=run)])
    assert figure is not None and "one &lt;b&gt;rank&lt;/b&gt;" in figure and "What it shows." in figure
    return re.sub(r"<[^>]+>", " ", figure)


def test_the_waterfall_and_the_bars_have_the_values_that_the_page_reads(tmp_path: Path) -> None:
    run = read(with_ranks(make_run(tmp_path, "two-1"), 2), 2)
    gone, last = 0, ShownRun(name="two <b>", index=1, run=run)
    figure = str(instruments.draw_picture(NOTHING | {"waterfall": 1}, [last]))
    sent = json.loads(html.unescape(re.findall(r'data-bars="([^"]*)"', figure)[0]))
    assert sent["runs"][gone] == {"head": None} and sent["picture"]["waterfall"] == 1
    measured_run = sent["runs"][1]
    assert measured_run["name"] == "two <b>" and measured_run["head"]["num_ranks"] == 2
    assert measured_run["head"]["pace"]["samples_per_s"] > 0
    assert measured_run["history"] == json.loads(json.dumps(pace.rank_history_of_run(run.series)))


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
    assert "rank 0" in words and "rank 1" in words and f"Step {golden['first_step']}" in words
    (run.recordings / f"step_{golden['first_step']}.json").write_text("{}")
    assert "another version or is damaged" in drawn(read(run), instrument="step-theatre")
