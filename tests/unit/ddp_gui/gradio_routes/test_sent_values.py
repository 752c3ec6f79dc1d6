"""Tests of values sent to Gradio: JSON of bounded depth, and no files except uploaded ones."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import orjson
import pytest

from ddp_gui.auth.rights import DataAccess
from ddp_gui.gradio_routes.sent_values import MAX_DEPTH, MAX_FILES, Functions, checked_body
from ddp_gui.http.front import MAX_BYTES, MAX_PARTS, MAX_VALUES, Refused
from trainers.contract.config import Config, ConfigError

NAMES = {0: "list_runs", 1: False, 7: "stop_run", 9: "delete_runs"}
FIELDS = [gr.Dropdown(render=False), gr.Textbox(render=False), gr.Dropdown(multiselect=True, render=False)]
INPUTS = {1: FIELDS, 7: [gr.UploadButton(render=False)]}
TAKEN = {"fn_index": 1, "data": ["a", None, ["b"]]}


def passed_on(incoming: Path, *pieces: bytes, called: str | None = None, inputs: Any = ()) -> bytes:
    """Return the forwarded body of a request whose body arrives in pieces."""
    waiting = [
        {"type": "http.request", "body": piece, "more_body": at < len(pieces) - 1}
        for at, piece in enumerate(pieces)
    ]

    async def receive() -> Any:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def ask() -> bytes:
        again = await checked_body(
            receive, incoming, Functions(names=NAMES, called=called, inputs=dict(inputs))
        )
        message = await again()
        assert (await again())["type"] == "http.disconnect"
        return bytes(message["body"])

    return asyncio.run(ask())


def test_what_is_fine_is_passed_on_as_it_came(tmp_path: Path) -> None:
    uploaded = tmp_path / "a.csv"
    uploaded.touch()
    body = orjson.dumps({"data": [{"path": str(uploaded)}, {"data_path": "/etc"}, 1.5, None]})
    assert passed_on(tmp_path, body[:9], body[9:]) == body
    assert passed_on(tmp_path, b"") == b""


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "https://example.org/a.csv", "../a", "", "\0", "a" * 5000, 7, None, ["/etc"]]
)
@pytest.mark.parametrize("where", ["{}", '[{"a": {}}]'])
def test_a_file_that_was_not_uploaded_is_refused(tmp_path: Path, path: Any, where: str) -> None:
    value = where.replace("{}", orjson.dumps({"path": path}).decode())
    with pytest.raises(Refused, match="not uploaded"):
        passed_on(tmp_path / "none", b'{"data": [%s]}' % value.encode())


@pytest.mark.parametrize("body", [b"{", b"NaN", b'{"a": Infinity}', b"\xff", b'"\\ud800"', b"[" * 1_500])
def test_what_is_no_json_is_refused(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(Refused, match="not valid JSON"):
        passed_on(tmp_path, body)


def test_depth_is_bounded(tmp_path: Path) -> None:
    passed_on(tmp_path, b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1))
    for deep in (b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900):
        with pytest.raises(Refused, match=f"deeper than {MAX_DEPTH} levels"):
            passed_on(tmp_path, deep)


@pytest.mark.parametrize(
    "value",
    [dict.fromkeys(map(str, range(9_000)), 1), [0] * (MAX_VALUES + 2), [[]] * MAX_PARTS, [{}] * MAX_PARTS],
)
def test_the_number_of_values_is_bounded(tmp_path: Path, value: Any) -> None:
    passed_on(tmp_path, orjson.dumps({"data": [["a"] * (MAX_VALUES - 10)]}))
    with pytest.raises(Refused, match="more than 20,000 values"):
        passed_on(tmp_path, orjson.dumps({"data": [value]}))


def test_what_stands_inside_a_string_does_not_count(tmp_path: Path) -> None:
    note = '[{":,\\"' * (MAX_BYTES // 20)
    body = orjson.dumps({"data": [note]})
    assert passed_on(tmp_path, body) == body


def test_only_lists_of_ids_may_be_long(tmp_path: Path) -> None:
    body = orjson.dumps({"data": [[f"run-{number:036}" for number in range(15_000)]]})
    assert len(body) > MAX_BYTES
    assert passed_on(tmp_path, body, called="delete_runs") == body
    passed_on(tmp_path, body[:-1] + b', "fn_index": 9}')
    with pytest.raises(Refused, match="too large") as refused:
        passed_on(tmp_path, body, called="stop_run")
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "path", ["/usr/.." * 140_000, "x/../" * 900, "/usr/." * 800, "a" * 980_000, "//" * 3_000, "~/" * 2_100]
)
def test_a_long_path_is_refused_before_the_disk_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """980 KB of ../x/../x blocked the page for 5.5 s."""

    def touched(*_: Any) -> None:
        pytest.fail("the disk was touched")

    for name in ("stat", "lstat", "readlink", "open"):
        monkeypatch.setattr(os, name, touched)
    for named in (path, str(tmp_path) + path):
        with pytest.raises(Refused, match=r"not uploaded|too large"):
            passed_on(tmp_path, orjson.dumps({"data": [{"path": named}]}))
        with pytest.raises(ConfigError, match="data_path is"):
            DataAccess(tmp_path).check(replace(Config(), data_path=named))


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    uploaded = tmp_path / "a.csv"
    uploaded.touch()
    passed_on(tmp_path, orjson.dumps({"data": [{"path": str(uploaded)}] * MAX_FILES}))
    with pytest.raises(Refused, match="names 5 files"):
        passed_on(tmp_path, orjson.dumps({"data": [{"path": str(uploaded)}] * (MAX_FILES + 1)}))


@pytest.mark.parametrize("number", [-1, 2, 10**18, True, 1.0, "1", [1], {}])
def test_a_function_that_is_not_there_is_refused(tmp_path: Path, number: Any) -> None:
    passed_on(tmp_path, orjson.dumps({"data": [], "fn_index": 7, "session_hash": "x"}))
    with pytest.raises(Refused, match="No function has this number") as refused:
        passed_on(tmp_path, orjson.dumps({"data": [], "fn_index": number, "session_hash": "x"}))
    assert refused.value.status == 404


def test_a_function_is_called_by_its_name_or_by_its_number(tmp_path: Path) -> None:
    passed_on(tmp_path, b'{"data": []}', called="list_runs")
    # Gradio's own page calls all functions by number, under this name.
    passed_on(tmp_path, b'{"data": [], "fn_index": 1}', called="predict")
    for words in (b'{"data": []}', b'{"data": [], "fn_index": null}'):
        with pytest.raises(Refused, match="No function has this name") as refused:
            passed_on(tmp_path, words, called="predict")
        assert refused.value.status == 404


@pytest.mark.parametrize("session", [5, "", "a" * 65, "a b", "a\n", "\u0663", ["a"], True])
def test_a_session_is_named_plainly(tmp_path: Path, session: Any) -> None:
    with pytest.raises(Refused, match="letters and digits"):
        passed_on(tmp_path, orjson.dumps({"data": [], "session_hash": session}))


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (1, []),
        (1, ["a", "b"]),
        (1, {"a": 1}),
        (1, None),
        (1, [{"a": 1}, "b", []]),
        (1, ["a", [1], []]),
        (1, ["a", "b", [{}]]),
        (1, ["a", "b", "c"]),
        (7, ["a"]),
        (7, [None]),
        (7, [{"path": 1}]),
    ],
)
def test_values_that_a_field_never_has_are_refused(tmp_path: Path, number: int, data: Any) -> None:
    with pytest.raises(Refused) as refused:
        passed_on(tmp_path, orjson.dumps({"fn_index": number, "data": data}), inputs=INPUTS)
    assert refused.value.status == 400
    assert passed_on(tmp_path, orjson.dumps(TAKEN), inputs=INPUTS)
