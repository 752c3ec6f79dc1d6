"""Events crafted to cost time or memory: the cost depends on the file size, not on the events' values."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddp_gui.events import fold, run_view
from ddp_gui.events.event_reader import Digest
from ddp_gui.events.run_view import RunView
from ddp_gui.events.tables import STEP_SPANS, thin
from ddp_gui.run.stream import view_from
from ddp_gui.runs.listing import read_notes as read_notes
from tests.unit.ddp_gui.runs.test_runs import make_run
from trainers.contract import events
from trainers.contract.commands import Incoming
from trainers.contract.events import EventFile
from trainers.files.json_files import MAX_JSON_DEPTH, MAX_JSON_LISTS, parse_json

LINE = b'{"seq":%d,"time_unix_s":300,"kind":"%b",%b}\n'


def numbered(kind: bytes, fields: Callable[[int], bytes], count: int) -> bytes:
    """Return `count` events of one kind; `fields` returns the fields of an event by its number."""
    return b"".join(LINE % (13 + number, kind, fields(number)) for number in range(count))


def of_step(step: int) -> bytes:
    return (
        b'"step":%d,"epoch":0,"loss":1,"lr":1,"grad_norm":1,"samples_per_s":1,"step_time_s":1,"data_time_s":1'
        % (step)
    )


def of_ranks(kind: bytes, number: int) -> bytes:
    """Return the entries of 5,000 ranks: 60,000 in twelve events."""
    entries = (b'{"rank":%d,"step":1,"step_time_s":1}' % (5_000 * number + rank) for rank in range(5_000))
    return b'"%b":[%b]' % (kind, b",".join(entries))


ATTACKS: dict[str, Callable[[], bytes]] = {
    "one line of step events": lambda: b'{"kind":"step","step":1,}' * 8_320 + b"\n",
    "one line of state events": lambda: b"[" + b'{"kind":"state"},' * 20_000 + b"\n",
    "state events without a state": lambda: b'{"kind":"state"}\n' * 20_000,
    "lists": lambda: (b"[" + b"[]," * 80_000 + b"1]\n") * 4,
    "deep": lambda: b'{"seq":13,"time_unix_s":1,"kind":"x","y":' + b"[" * 200 + b"]" * 200 + b"}\n",
    "no end of a line": lambda: b"x" * (3 * events.MAX_LINE_BYTES),
    "digits": lambda: numbered(b"x", lambda _: b'"y":' + b"1" * 5_000, 200),
    "steps that go back": lambda: numbered(b"step", lambda n: of_step(10**9 - n), 20_000),
    "steps and evaluations": lambda: b"".join(
        LINE % (13 + n, b"step", of_step(10**9 - n))
        if n % 2
        else LINE % (13 + n, b"eval", b'"step":%d,"loss":1,"metrics":{"accuracy":0.5}' % n)
        for n in range(5_000)
    ),
    "plans": lambda: numbered(b"plan", lambda _: b'"num_train":9,"num_steps":9', 5_000),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_any_file_takes_little_time(tmp_path: Path, attack: str) -> None:
    run = make_run(tmp_path)
    own = run.events.read_bytes()
    run.events.write_bytes(own + ATTACKS[attack]() + b'\n{"seq":9,"time_unix_s":1,"kind":"x"}\n')
    began_s = time.thread_time()
    Digest().catch_up(run.events)
    assert events.last_state(run.events) == "stopped"
    view = RunView(run, 10)
    view.catch_up()
    assert run_view.encode_message(run_view.message_for(view, -1))
    assert time.thread_time() - began_s < 5


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


CLAIMS: dict[str, Callable[[], bytes]] = {
    "60,000 ranks": lambda: b"".join(
        numbered(kind, partial(of_ranks, kind), 12) for kind in (b"devices", b"ranks")
    ),
    "20,000 metrics": lambda: numbered(
        b"eval", lambda n: b'"step":%d,"loss":1,"metrics":{"m%d":1}' % (n, n), 20_000
    ),
    "20,000 warnings": lambda: numbered(
        b"warning", lambda _: b'"code":"a","message":"b","hint":null', 20_000
    ),
    "20,000 kinds": lambda: numbered(b"k", lambda n: b'"kind":"k%d"' % n, 20_000),
    "long texts": lambda: numbered(
        b"warning", lambda _: b'"code":"a","hint":"","message":"%b"' % (b"x" * 10**6), 9
    ),
    "long lists": lambda: numbered(
        b"checkpoint", lambda _: b'"step":1,"removed":[%b0]' % (b"1," * 90_000), 20
    ),
    "long hashes": lambda: numbered(
        b"fingerprints", lambda n: b'"step":%d,"hashes":["%b"],"distances":[0]' % (n + 1, b"a" * 10**5), 40
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS)
def test_a_view_is_as_large_as_its_run(tmp_path: Path, claim: str, traced: None) -> None:
    run = make_run(tmp_path)
    run.events.write_bytes(run.events.read_bytes() + CLAIMS[claim]())
    view = RunView(run, 10)
    before, _ = tracemalloc.get_traced_memory()
    view.catch_up()
    held = tracemalloc.get_traced_memory()[0] - before
    assert held < 20e6
    assert set(view.series.ranks) | set(view.series.devices) <= set(range(view.config.world_size))
    assert len(view.series.evaluation_table.fields) <= 1 + fold.MAX_METRICS
    assert len(run_view.encode_message(run_view.message_for(view, -1))) < 1e6
    assert Digest().catch_up(run.events)


def test_the_main_metric_is_kept_and_long_names_stay_different() -> None:
    common = {"seq": 1, "time_unix_s": 1.0, "kind": "eval", "step": 1, "loss": 1.0}
    many = {f"m{number}": float(number) for number in range(40)} | {"accuracy": 0.5}
    kept = fold.limit_fields({**common, "metrics": many}, 8)["metrics"]
    assert list(kept) == ["accuracy", *(f"m{number}" for number in range(fold.MAX_METRICS - 1))]
    few = {"top": 1.0, "accuracy": 0.5}
    assert fold.limit_fields({**common, "metrics": few}, 8)["metrics"] == few
    long = {"x" * 200 + end: value for end, value in (("a", 1.0), ("b", 2.0), ("\ud800", 3.0))}
    kept = fold.limit_fields({**common, "metrics": long}, 8)["metrics"]
    assert list(kept.values()) == [1.0, 2.0, 3.0] and {len(name) for name in kept} == {fold.MAX_NAME}


def test_the_newest_of_each_kind_is_kept() -> None:
    marks = [{"kind": "command", "seq": -1}, *({"kind": f"k{n}", "seq": n} for n in range(2_000))]
    kept = fold.drop_oldest_marks(marks)
    assert [mark["seq"] for mark in kept] == [-1, *range(1_500, 2_000)]


@pytest.mark.parametrize("x", [np.zeros(5_000), np.arange(5_000) + 2**60, np.full(5_000, np.nan)])
def test_an_axis_that_cannot_be_divided_is_thinned_by_place(x: Any) -> None:
    chosen = thin(x, np.arange(5_000, dtype=np.float32), 2_000)
    assert 1_000 < len(chosen) <= 2_000


def test_json_is_limited_before_it_is_parsed(tmp_path: Path) -> None:
    assert parse_json(b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH)
    for text in (
        b"[" * (MAX_JSON_DEPTH + 1) + b"]" * (MAX_JSON_DEPTH + 1),
        b"[" + b"[]," * MAX_JSON_LISTS + b"1]",
        b'"' + b"x" * events.MAX_LINE_BYTES + b'"',
    ):
        with pytest.raises(ValueError, match=r"too deep|longer than 4 MB"):
            parse_json(text)
    run = make_run(tmp_path)
    (run.path / "notes.json").write_bytes(b'{"name":"x","a":[' + b"[]," * 10**6 + b"1]}")
    began_s = time.thread_time()
    assert read_notes(run).name == "" and time.thread_time() - began_s < 5


def test_a_writer_shortens_what_no_reader_would_take(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    words = {"code": "c", "message": "m" * (events.MAX_LINE_BYTES + 1), "hint": None}
    file.append([(1.0, "warning", words), (2.0, "sample", {"step": 1, "content": [[]] * 30_000})])
    file.close()
    first, second = events.read_all(tmp_path / "events.jsonl")
    assert (first["kind"], first["seq"], len(first["message"])) == ("warning", 0, 2_000)
    assert (second["kind"], second["seq"], second["code"]) == ("warning", 1, "event_too_large")
    assert "kind sample" in second["message"]


def test_a_command_that_is_too_long_does_not_stop_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "commands.jsonl"
    requests = Incoming(path)
    path.write_bytes(b'{"name":"' + b"x" * (2 * events.MAX_LINE_BYTES) + b'"}\n{"id":"a","name":"stop"}\n')
    assert [found.id for _ in range(4) for found in requests.stops()] == ["a"]


def test_viewers_choose_among_few_settings() -> None:
    assert {view_from(smoothing=asked).smoothing for asked in range(-2, 11_000)} == {0, *STEP_SPANS}
    assert view_from(smoothing=11).smoothing == 20 and view_from(smoothing=1) == view_from()
