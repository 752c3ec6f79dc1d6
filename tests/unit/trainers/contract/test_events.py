"""Tests of the event file: numbering, damaged lines, values without a JSON form, and full disks."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_gui.events.run_view import RunView
from tests.harness import create_run
from tests.unit.ddp_gui.events.test_digest import evaluation, steps, write_events
from trainers.contract import events
from trainers.contract.events import EventFile, encode_event, encode_plainly
from trainers.contract.rundir import RunDirectory


def note(text: str, time_unix_s: float = 1.0) -> tuple[float, str, dict[str, str]]:
    """Return one small event in the form that writers pass to the file."""
    return time_unix_s, "state", {"state": "running", "reason": text}


def test_fields_come_in_the_order_of_the_contract(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.append([note("a", 12.345678)])
    file.close()
    line = (tmp_path / "events.jsonl").read_text()
    assert line == '{"seq":0,"time_unix_s":12.3457,"kind":"state","state":"running","reason":"a"}\n'


@pytest.mark.parametrize("rest", [b"{", b'{"seq":2', b"\xff" * 200_000, b'{"a":"' + b"x" * 70_000])
def test_reopening_cuts_a_half_line_off_and_numbers_on(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    file.append([note("a"), note("b")])
    file.close()
    with path.open("ab") as damaged:
        damaged.write(rest)
    file = EventFile(path)
    file.append([note("c")])
    file.close()
    found, _ = events.read(path)
    assert [(event["seq"], event["reason"]) for event in found] == [(0, "a"), (1, "b"), (2, "c")]


def test_lone_surrogate_from_a_strange_file_name_does_not_stop_the_writer(tmp_path: Path) -> None:
    text = os.fsdecode(b"/runs/\xff/x")
    file = EventFile(tmp_path / "events.jsonl")
    file.append([note(text)])
    file.close()
    # Other readers reject a lone surrogate, so it is replaced by U+FFFD.
    assert events.read(tmp_path / "events.jsonl")[0][0]["reason"] == "/runs/\ufffd/x"


WRITE_AGAINST_A_LIMIT = """
import resource, sys
from pathlib import Path
from trainers.contract.events import EventFile
path = Path(sys.argv[1])
file = EventFile(path)
def note(text): return (1.0, "state", {"state": "running", "reason": text})
file.append([note("before")])
whole = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 100, resource.RLIM_INFINITY))
try:
    file.append([note("lost " * 10)] * 5)
except OSError:
    assert path.stat().st_size == whole, "a part of the batch is in the file"
else:
    raise SystemExit("the write did not fail")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.append([note("after")])
file.close()
"""


def test_write_that_fails_leaves_all_or_nothing_and_no_gap(tmp_path: Path, repository: Path) -> None:
    """A file size limit truncates the write in the middle of a batch."""
    path = tmp_path / "events.jsonl"
    command = [sys.executable, "-c", WRITE_AGAINST_A_LIMIT, str(path)]
    ended = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found = [(event["seq"], event["reason"]) for event in events.read(path)[0]]
    assert found == [(0, "before"), (1, "after")]


def test_full_disk_leaves_whole_lines_that_are_never_taken_back_and_no_gap(small_disk: Path) -> None:
    """Complete lines stay in the file, because a page may have shown them."""
    file = EventFile(small_disk / "events.jsonl")
    file.append([note("before")])
    ballast = small_disk / "ballast"
    free = os.statvfs(small_disk)
    ballast.write_bytes(b"x" * (free.f_bavail * free.f_frsize))
    long = [note(str(number) * 3000) for number in range(10)]
    kept = file.append(long)
    assert 0 < kept < 10, "what is left of a page of the disk holds one of them"
    shown = (small_disk / "events.jsonl").read_bytes()
    assert shown.endswith(b"\n")
    with pytest.raises(OSError, match="No space left"):
        file.append(long[kept:])
    assert (small_disk / "events.jsonl").read_bytes() == shown
    ballast.unlink()
    assert file.append(long[kept:]) == 10 - kept
    file.close()
    found, _ = events.read(small_disk / "events.jsonl")
    assert [event["seq"] for event in found] == list(range(11))
    assert (small_disk / "events.jsonl").read_bytes().startswith(shown)


def test_only_the_kinds_asked_for_are_read_whatever_words_others_hold(tmp_path: Path) -> None:
    file = events.EventFile(tmp_path / "events.jsonl")
    words = {"message": 'it says "kind":"state" itself', "hint": "", "code": "x", "rank": None}
    state = {"state": "running", "reason": ""}
    file.append([(1.0, "warning", {**words, "traceback": None}), (2.0, "state", state)])
    file.close()
    found, end = events.read(tmp_path / "events.jsonl", 0, ("state", "command"))
    assert [event["kind"] for event in found] == ["state"]
    assert end == (tmp_path / "events.jsonl").stat().st_size


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(), max_size=8), VALUES, max_size=6))
@pytest.mark.slow
def test_both_write_the_same_and_one_line(event: Mapping[str, Any]) -> None:
    fast, plain = encode_event(event), encode_plainly(event)
    assert json.loads(fast) == json.loads(plain)
    assert b"\n" not in fast and b"\n" not in plain


class Odd:
    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize("write", [encode_event, encode_plainly])
@pytest.mark.parametrize(
    ("value", "read"),
    [
        (math.nan, None),
        ([math.inf, {"a": math.nan}], [None, {"a": None}]),
        ((1, 2), [1, 2]),
        (Odd(), "odd"),
        (2**70, 2**70),
        ("a\nb\u2028", "a\nb\u2028"),
        ("\ud800", "\ud800"),
        (1.7976931348623157e308, 1.7976931348623157e308),
    ],
)
def test_what_json_has_no_word_for(write: Any, value: Any, read: Any) -> None:
    assert json.loads(write({"value": value})) == {"value": read}


def test_it_works_without_orjson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "orjson", None)
    assert encode_event({"seq": 0, "kind": "état"}) == '{"seq":0,"kind":"état"}'.encode()


STEP = {
    "seq": 3, "time_unix_s": 1.5, "kind": "step", "step": 1, "epoch": 0, "loss": None, "lr": 0.1,
    "grad_norm": None, "samples_per_s": 1.0, "step_time_s": 1.0, "data_time_s": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"seq": -1}, {"seq": "3"}, {"seq": True}, {"time_unix_s": None}, {"time_unix_s": float("inf")},
        {"kind": 7}, {"step": 1.5}, {"step": 2**80}, {"loss": "low"}, {"loss": float("nan")},
    ],
)  # fmt: skip
def test_event_with_a_value_nobody_can_use_is_not_whole(change: dict[str, Any]) -> None:
    assert events.is_complete_event(STEP)
    assert not events.is_complete_event(STEP | change)
    later = {"seq": 0, "time_unix_s": 1, "kind": "dance"}
    assert events.is_complete_event(later), "a kind still to come"


@pytest.fixture
def damaged(tmp_path: Path) -> RunDirectory:
    """Return a run of 30 steps and an evaluation; line 20 is garbage, line 25 lacks its loss."""
    run = create_run(tmp_path)
    write_events(run, [*steps(1, 30), evaluation(30, 0.5, 31.0)])
    lines = run.events.read_bytes().splitlines(keepends=True)
    lines[19] = b"\x00\x00{garbage\n"
    lines[24] = lines[24].replace(b'"loss":', b'"lofs":')
    run.events.write_bytes(b"".join(lines))
    return run


def test_the_page_shows_the_rest_and_says_what_is_missing(damaged: RunDirectory) -> None:
    view = RunView(damaged, None)
    assert view.catch_up()
    shown = view.series.steps.x("step").tolist()
    assert shown == [step for step in range(1, 31) if step not in (20, 25)]
    (insight,) = [item for item in view.insights() if item.code == "events_damaged"]
    assert insight.message.startswith("2 events cannot be read")


def test_numbering_goes_on_after_the_last_line_that_can_be_read(damaged: RunDirectory) -> None:
    with damaged.events.open("ab") as file:
        file.write(b"{garbage}\n" * 3)
    assert EventFile(damaged.events).next_seq == 31
