"""Fuzz tests of run files: readers agree, every file can be displayed, and other runs are unaffected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ddp_gui.events import run_view
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.run.summary import summarise
from ddp_gui.runs.runs import status_values
from tests.fuzz import examples, targets
from tests.unit.attacks.test_any_data import damaged
from tests.unit.attacks.test_any_words import values
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from trainers.contract import events
from trainers.contract.events import EventFile

GOOD = [json.loads(line) for line in examples.event_lines().splitlines()]
FIELDS = sorted({*events.COMMON_FIELDS, *(name for names in events.FIELDS.values() for name in names)})
odd = st.one_of(
    values, st.sampled_from(["x", 7, -1, 2**63, 2**70, 1e308, [[]], {"a": {}}, "\ud800", "\u202e", True])
)
whole = st.sampled_from(GOOD)
altered = st.builds(
    lambda event, changes: event | changes, whole, st.dictionaries(st.sampled_from(FIELDS), odd, max_size=2)
)
missing = st.builds(
    lambda event, name: {k: v for k, v in event.items() if k != name}, whole, st.sampled_from(FIELDS)
)
lines = st.lists(st.one_of(whole, altered, missing, values).map(json.dumps), max_size=12)


def numbered(texts: list[str]) -> bytes:
    """Return the lines as the bytes of a file."""
    return "".join(text + "\n" for text in texts).encode()


@settings(max_examples=100)
@given(
    st.one_of(lines.map(numbered), st.binary(max_size=200), damaged([examples.event_lines()])),
    st.integers(0, 255),
)
@example(b"[" * 100_000 + b"\n", 255)
@example(b'{"seq":1,"time_unix_s":1,"kind":"step","step":1}\n' + examples.event_lines(), 255)
@example(examples.event_lines().replace(b'"step":2', b'"step":0'), 255)
@example(b'{"seq":0,"time_unix_s":1,"kind":"newer","inside":{"kind":"eval","step":3}}\n', 255)
@example(b'{"seq":0,"time_unix_s":1,"kind":"devices","devices":[{"rank":0,"kind":"step"}]}\n', 255)
@example(b'{"seq":0,"time_unix_s":1,"kind":"devices","devices":[{"rank":0,"kind":"plan"}]}\n', 255)
@example(b'{"seq":0,"time_unix_s":1,"kind":"step","step":1e400}\n' * 3, 9)
@pytest.mark.slow
def test_any_file_of_events_is_read_alike_and_shown(content: bytes, piece_bytes: int) -> None:
    targets.read_events(bytes([piece_bytes]) + content)


@settings(max_examples=200)
@given(
    st.integers(0, len(targets.CONTRACT_FILES) - 1),
    st.one_of(values.map(json.dumps).map(str.encode), st.binary()),
)
@example(0, b"[" * 100_000)
@example(6, b'{"format_version": 2, "files": {"../x": {}}}')
def test_any_file_of_a_run_is_read_or_refused_in_words(number: int, content: bytes) -> None:
    targets.read_contract(bytes([number]) + content)


@settings(max_examples=200)
@given(damaged(examples.contract_files()))
def test_any_damaged_file_of_a_run_is_read_or_refused_in_words(content: bytes) -> None:
    targets.read_contract(content)


own_fields = st.dictionaries(st.text(), values, max_size=3).map(
    lambda fields: {name: value for name, value in fields.items() if name not in events.COMMON_FIELDS}
)
batches = st.lists(st.tuples(st.floats(0, 1e10), st.just("newer"), own_fields), max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches)
def test_what_is_appended_is_one_line_each_and_comes_back(tmp_path: Path, batch: list[Any]) -> None:
    path = tmp_path / "events.jsonl"
    path.unlink(missing_ok=True)
    file = EventFile(path)
    file.append(batch)
    file.close()
    assert [event["seq"] for event in events.read_all(path)] == list(range(len(batch)))
    assert EventFile(path).next_seq == len(batch)


HOSTILE = {
    "status.json": [
        '{"state": ["running"]}',
        '{"state": "running", "error": "\\ud800"}',
        "[" * 100_000,
        "7",
        "\ufffe",
        '{"state": "finished", "error": {"a": 1}, "pid": "x"}',
    ],
    "config.json": [
        "[" * 100_000,
        "{}x",
        '{"nproc_per_node": 1e400}',
        '{"model": "\\ud800"}',
        '{"x": 1}',
        "null",
        '{"schema_version": [1]}',
    ],
    "notes.json": ["[" * 100_000, '{"name": "\\ud800", "tags": 7}', "null"],
    "owner.json": ["[" * 100_000, '{"owner": "\\ud800"}', "7"],
    "data.json": ["[" * 100_000, '{"dataset": 7}', "null"],
    "events.jsonl": [
        "[" * 100_000 + "\n",
        "\0" * 1000 + "\n",
        '{"seq":0,"time_unix_s":1e999,"kind":"state"}\n',
        '{"seq":0,"time_unix_s":1,"kind":"plan","num_steps":1e30,"num_train":1}\n',
        '{"seq":0,"time_unix_s":1,"kind":"step","step":99999999999999999999,"epoch":0,"loss":"x"}\n',
        '{"seq":0,"time_unix_s":1,"kind":"devices","devices":7}\n',
        "x" * 1_000_000 + "\n",
    ],
}


@pytest.mark.parametrize("file", HOSTILE)
def test_a_damaged_run_says_why_and_the_others_are_listed(
    tmp_path: Path,
    catalogue: Catalogue,  # noqa: F811
    file: str,
) -> None:
    store = store_of(tmp_path / "runs", catalogue)
    good = make_run(store.runs_dir)
    for text in HOSTILE[file]:
        bad = make_run(store.runs_dir)
        (bad.path / file).write_bytes(text.encode("utf-8", errors="surrogatepass"))
    rows = {row["run_id"]: row for row in store.rows()}
    assert len(orjson.dumps(list(rows.values()))) < 50_000
    assert len(rows) == 1 + len(HOSTILE[file]) and rows[good.run_id]["state"] == "stopped"
    for run_id, row in rows.items():
        if row["error"] and row["error"].startswith("This run cannot be read"):
            continue
        view = store.view(run_id)
        view.catch_up()
        assert run_view.encode_message(run_view.message_for(view, -1))
        assert orjson.dumps(summarise(view, store)) and orjson.dumps(status_values(view))
