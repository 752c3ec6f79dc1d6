"""Tests of the lab report: its contents, and that none of it can be executed."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from ddp_gui.auth import rights
from ddp_gui.auth.rights import Person, acting_as
from ddp_gui.learn.report import request
from ddp_gui.learn.report.request import ReportSource
from ddp_gui.plan.catalogue import Catalogue
from tests.hostile_words import ACTING, NAME, SEEN_NOWHERE
from tests.unit.ddp_gui.learn.report.made import done, make_run, report, source_of
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import write_json_atomically


@pytest.fixture
def source(tmp_path: Path, catalogue: Catalogue) -> ReportSource:
    make_run(tmp_path, "a-1")
    make_run(tmp_path, "b-1", 80)
    return source_of(tmp_path, catalogue)


def curve_label(page: str) -> str:
    """Return the visible text of a page, without style and script."""
    without = re.sub(r"<(style|script)[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", "", without).split())


def figures_in(page: str) -> list[dict[str, Any]]:
    return [json.loads(html.unescape(text)) for text in re.findall(r'data-figure="([^"]*)"', page)]


class Tags(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_lesson_is_reported_with_prediction_outcome_answers_and_curves(source: ReportSource) -> None:
    page = report(source, name="Ada", lessons=[done("chosen", prediction=0, answers=[0, 0])])
    words = curve_label(page)
    assert "Lab report · Ada" in words and "1 lesson and 2 runs" in words
    assert "The result differs from my prediction. 1 of 2 questions right." in words
    assert "the firstmy answer" in words and "neitherthe right answer" in words
    assert "Both see the same." in words and "The all-reduce averages." in words
    figures = figures_in(page)
    assert [each["curve"] for each in figures] == ["loss"], "the lesson's own chart and no other"
    assert [(line["name"], line["index"]) for line in figures[0]["lines"]] == [
        ("one rank", 0),
        ("two ranks", 1),
    ]
    assert [mark["words"] for mark in figures[0]["marks"]] == ["here they part"]
    assert "The losses." in words
    assert "over samples trained on, all ranks together" in page
    assert figures[0]["guesses"] == []


def test_a_drawn_prediction_lies_over_the_measured_curve(source: ReportSource) -> None:
    drawn = [4, 3.5, 3, 2.5, 2, 1.5, 1, 0.5, 0]
    page = report(source, lessons=[done("drawn", prediction=drawn)])
    assert [guess["y"] for each in figures_in(page) for guess in each["guesses"]] == [drawn]
    assert re.search(r"my curve is [\d.]+ away on average", page)
    assert "4 at 0; 3.5 at 5;" in page
    outside = report(source, lessons=[done("drawn", prediction=[99] * 9)])
    assert "4 at 0; 4 at 5;" in outside, "what cannot be drawn is cut to what can"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"prediction": None}, "No prediction was locked."),
        ({"runs": ["a-1", None]}, "Not all runs of the lesson have ended."),
        ({"runs": []}, "No run of this lesson was started, or the runs were deleted."),
        ({"answers": [0]}, "1 of 2 questions right, 1 not answered"),
        ({"attempts": [{"question": 1, "choice": "seed 1", "run_id": "a-1"}]}, "My experiment: seed 1."),
    ],
)
def test_what_was_not_done_is_said(source: ReportSource, more: dict[str, Any], words: str) -> None:
    found = curve_label(report(source, lessons=[done("chosen", **more)]))
    assert words in found
    if more == {"answers": [0]}:
        assert "It draws others." not in found, "what is right is not told before it was answered"


def test_a_run_has_its_configuration_command_numbers_and_a_true_hash(
    source: ReportSource, tmp_path: Path
) -> None:
    page = report(source, runs=["a-1"])
    words = curve_label(page)
    raw = (tmp_path / "runs" / "a-1" / "events.jsonl").read_bytes()
    line = f"{hashlib.sha256(raw).hexdigest()}  a-1/events.jsonl"
    assert line in page and f"{len(raw):,} bytes of events.jsonl" in words
    for expected in (
        "finished",
        "trainers.worker",
        "Batch per rank 32",
        "Optimizer steps120",
        "PyTorch",
        "commit",
    ):
        assert expected in words
    assert "The training loss fell from" in words, "the verdict"
    assert "<details>" in page and "broken on purpose" not in words


def write_results(run: RunDirectory, kind: str, content: Any) -> None:
    """Append an evaluation with a confusion matrix, an output of the model and a warning."""
    now_s = max(event["time_unix_s"] for event in events.read_all(run.events)) + 1
    evaluation = {"step": 120, "epoch": 0, "loss": 0.5, "metrics": {"accuracy": 0.875}}
    warning = {"code": "slow", "message": "Rank 1 is slow.", "hint": None, "rank": 1, "traceback": None}
    file = events.EventFile(run.events)
    file.append(
        [
            (now_s, "eval", evaluation | {"confusion": [[3, 1], [0, 4]]}),
            (now_s, "sample", {"step": 120, "type": kind, "content": content}),
            (now_s, "warning", warning),
        ]
    )
    file.close()


IMAGE = {"height": 2, "width": 2, "channels": 1, "pixels": base64.b64encode(b"\0\x55\xaa\xff").decode()}
SURFACE = {
    "size": 1, "predictions": "AQ==", "confidence": "/w==", "points": "ChQA", "x_range": [0, 1.5],
    "y_range": [2, 3], "feature_names": ["<i>width", "height"], "class_names": ["a", "b"],
}  # fmt: skip
ANSWER = {"label": "<b>cat", "prediction": "dog", "probability": 0.9}


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("text", "<i>It is", "&lt;i&gt;It is"),
        ("texts", [{"text": "Emma", "label": "b", "prediction": "b"}], "b ✓"),
        ("rows", {"columns": ["x"], "rows": [{"inputs": [0.25], "target": 1.0, "prediction": 2.5}]}, "1, "),
        ("surface", SURFACE, '<circle cx="10" cy="235" r="3" fill="#0072b2"'),
        ("images", [IMAGE | ANSWER | {"height": 2.0}], None),
        ("surface", SURFACE | {"predictions": "/w=="}, None),
    ],
)
def test_each_kind_of_output_is_shown_and_a_damaged_one_left_out(
    source: ReportSource, tmp_path: Path, kind: str, content: Any, words: str | None
) -> None:
    write_results(make_run(tmp_path, "seen-1"), kind, content)
    page = report(source, runs=["seen-1"])
    assert ("Outputs of the model" in page) == (words is not None)
    assert (words or "Confusion matrix") in page


def test_a_report_of_runs_has_confusion_outputs_and_events(source: ReportSource, tmp_path: Path) -> None:
    write_results(make_run(tmp_path, "seen-1"), "images", [IMAGE | ANSWER])
    page = report(source, runs=["seen-1"])
    words = curve_label(page)
    assert "Confusion matrix" in words and 'data-shade="4">3</td><td data-shade="1">1</td>' in page
    assert "&lt;b&gt;cat, predicted dog ✗" in page and "warning: Rank 1 is slow." in words
    sent = re.search(r'<img src="data:image/png;base64,([^"]+)"', page)
    assert sent is not None
    image = Image.open(io.BytesIO(base64.b64decode(sent[1])))
    assert (image.size, image.mode, image.tobytes()) == ((2, 2), "L", b"\0\x55\xaa\xff")
    lesson = report(source, lessons=[done("chosen")], runs=["seen-1"])
    assert "Confusion matrix" not in lesson, "a page of paper holds no more"


def test_a_damaged_run_and_one_that_is_gone_break_nothing(source: ReportSource, tmp_path: Path) -> None:
    run = make_run(tmp_path, "damaged-1")
    lines = run.events.read_bytes().splitlines(keepends=True)
    lines[20] = b'{"seq": 20, "kind": "step", "step": null}\n'
    run.events.write_bytes(b"".join(lines) + b"nonsense\n")
    empty = make_run(tmp_path, "empty-1")
    empty.events.unlink()
    words = curve_label(report(source, runs=["damaged-1", "empty-1", "gone-1", "a-1"]))
    assert "cannot be read (damaged, altered or missing)" in words
    assert "It has no events yet." in words and "and 3 runs" not in words and "3 runs" in words
    with pytest.raises(ValueError, match="none of these runs"):
        report(source, runs=["gone-1"])


def test_hostile_words_are_text_and_the_policy_lets_nothing_in(source: ReportSource, tmp_path: Path) -> None:
    run = make_run(tmp_path, "hostile-1")
    config = json.loads(run.config.read_text())
    run.config.write_text(json.dumps(config | {"name": NAME[:200], "label_column": NAME[:60]}))
    write_json_atomically(run.path / "notes.json", {"name": NAME, "tags": ["<b>tag</b>"], "note": ACTING})
    file = events.EventFile(run.events)
    words = {"message": ACTING, "hint": ACTING, "code": "<b>", "rank": 0, "traceback": ACTING}
    device = dict.fromkeys(events.DEVICE_FIELDS) | {"rank": 0, "node": 0, "kind": "cpu", "index": 0}
    device["name"] = ACTING
    now_s = max(event["time_unix_s"] for event in events.read_all(run.events)) + 1
    file.append(
        [(now_s, "devices", {"devices": [device]}), (now_s, "warning", words), (now_s, "error", words)]
    )
    file.close()
    attempt = {"question": 1, "choice": ACTING[:150], "run_id": "hostile-1"}
    page = report(source, name=ACTING[:100], lessons=[done("chosen", attempts=[attempt])], runs=["hostile-1"])
    tags = Tags(page).found
    names = {tag for tag, _ in tags}
    assert (
        not names & {"img", "iframe", "object", "embed", "link", "b><script"} and page.count("<script") == 2
    )
    assert not any(key.startswith("on") or key == "style" for _, given in tags for key in given)
    assert not any((given.get("href") or "#").startswith("javascript") for _, given in tags)
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert SEEN_NOWHERE.search(page.replace("\n", "")) is None
    policy = next(given["content"] or "" for tag, given in tags if given.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.replace("style-src-attr 'unsafe-inline'", "")
    for part, opening in (("script", "<script type=module>"), ("style", "<style>")):
        held = page.split(opening)[1].split(f"</{part}>")[0]
        digest = base64.b64encode(hashlib.sha256(held.encode()).digest()).decode()
        assert f"{part}-src 'sha256-{digest}'" in policy
        assert "import " not in held or part == "style"
    assert not re.search(r"(?:src|href|url\()=?[\"'(]?(?:https?:)?//", page.split("</style>")[1])


@pytest.fixture
def asking(source: ReportSource) -> TestClient:
    app = FastAPI()
    app.include_router(request.make_router(source.library, source.in_code, source.store))
    return TestClient(app)


PLACE = "/live/learn/report"


def test_the_file_is_a_download_made_by_another_process(asking: TestClient) -> None:
    answer = asking.post(PLACE, json={"name": "Ada", "lessons": [done("chosen")]})
    assert answer.status_code == 200 and answer.text.endswith("</body></html>\n")
    assert re.fullmatch(
        r'attachment; filename="lab-report-[\d-]{10}\.html"', answer.headers["content-disposition"]
    )
    plain = asking.get(PLACE, params={"runs": "a-1,b-1"})
    assert "Runs side by side" in plain.text and "a-1/events.jsonl" in plain.text
    assert asking.get(PLACE, params={"runs": "gone-1"}).status_code == 404


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "a report needs a lesson or a run"),
        ({"lessons": [done("nonsense")]}, "there is no lesson 'nonsense'"),
        ({"lessons": [done("chosen", prediction=[1, 2])]}, "lessons[0].prediction is [1, 2]; allowed"),
        ({"lessons": [done("chosen", runs=["../a"])]}, "runs has '../a'; allowed: ids of runs"),
        ({"lessons": [done("chosen", answers=["<b>"])]}, "answers[0] is '<b>'; allowed:"),
        ({"runs": ["a-1"], "more": 1}, "'more' is not a field; allowed: name, lessons, runs"),
    ],
)
def test_what_cannot_be_is_refused_in_words(asking: TestClient, body: Any, words: str) -> None:
    answer = asking.post(PLACE, json=body)
    assert answer.status_code == 422 and words in answer.json()["detail"]


def test_nobody_gets_a_run_that_they_may_not_see(source: ReportSource, tmp_path: Path) -> None:
    for run_id, owner in (("a-1", "ann"), ("b-1", "bob")):
        (tmp_path / "runs" / run_id / rights.OWNER_FILE).write_text(json.dumps({"owner": owner}))
    source.store.class_settings.change(everyone_sees=False)
    with acting_as(Person(name="ann", role="student")):
        page = report(source, lessons=[done("chosen")], runs=["b-1"])
    assert "a-1/events.jsonl" in page and "b-1/events.jsonl" not in page and "1 lesson and 1 run" in page
