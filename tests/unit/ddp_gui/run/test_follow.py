"""Many viewers of one run: all get every update, each update is encoded once, and none delays another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.events import run_view
from ddp_gui.events.run_view import RunView
from ddp_gui.events.tables import ChartView
from ddp_gui.run import stream as stream_module
from ddp_gui.run.stream import EventStream, RunFollower
from tests.unit.ddp_gui.events.test_series import step
from tests.unit.ddp_gui.runs.test_runs import make_run
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory, Status


def append(run: RunDirectory, *numbers: int) -> None:
    file = EventFile(run.events)
    fields = [
        {k: v for k, v in step(n, 0).items() if k not in ("seq", "time_unix_s", "kind")} for n in numbers
    ]
    file.append([(300.0 + n, "step", field) for n, field in zip(numbers, fields, strict=True)])
    file.close()


@pytest.fixture
def live(tmp_path: Path) -> RunDirectory:
    """Return a run of ten steps that counts as live because its lock is held."""
    run = make_run(tmp_path, ended="running")
    run.acquire_lock()
    run.write_status(Status(state="running"))
    return run


def parsed(event: bytes) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(event.split(b"data: ", 1)[1])
    return read


async def until_step(stream: AsyncGenerator[bytes], last: int) -> list[int]:
    """Collect the steps of the loss from a stream until the step `last`."""
    seen: list[int] = []
    async with asyncio.timeout(60):
        async for event in stream:
            message = parsed(event)
            if message["type"] == "snapshot":
                seen = []
            seen += message["traces"].get("loss", {"x": []})["x"]
            if seen and seen[-1] >= last:
                return seen
    return seen


def test_thirty_viewers_share_each_encoding(live: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    make = run_view.message_for

    def counted(view: RunView, since: int, *more: Any) -> dict[str, Any]:
        encoded.append(since)
        return make(view, since, *more)

    monkeypatch.setattr(run_view, "message_for", counted)

    async def watch() -> list[list[int]]:
        follower = RunFollower(RunView(live, 100))
        streams = [follower.messages(-1, ChartView()) for _ in range(30)]
        first = [await anext(stream) for stream in streams]
        assert all(parsed(event)["type"] == "snapshot" for event in first)
        snapshots = len(encoded)
        seen = asyncio.gather(*(until_step(stream, 12) for stream in streams))
        await asyncio.sleep(0)
        append(live, 11, 12)
        steps = await seen
        assert len(encoded) - snapshots <= 10, "not once a viewer"
        for stream in streams:
            await stream.aclose()
        assert not follower.is_watched
        return steps

    assert asyncio.run(watch()) == [[11, 12]] * 30


def test_a_long_file_is_shown_in_two_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "LOAD_IN_CHUNKS_BYTES", 10_000)
    monkeypatch.setattr(stream_module, "PREVIEW_FROM_BYTES", 10_000)
    view = RunView(make_run(tmp_path, until=5000), 5000)

    async def watch() -> list[dict[str, Any]]:
        async with asyncio.timeout(60):
            return [parsed(event) async for event in RunFollower(view).messages(-1, ChartView())][:-1]

    first, *_, whole = asyncio.run(watch())
    assert (first["type"], first["cursor"]) == ("snapshot", -1)
    assert first["loading"] < 1 and len(first["traces"]["loss"]["x"]) > 500
    assert whole["type"] == "snapshot" and "loading" not in whole
    assert (whole["traces"]["loss"]["x"][0], whole["traces"]["loss"]["x"][-1]) == (1, 5000)


def test_an_unreadable_file_ends_the_stream_with_its_reason(live: RunDirectory) -> None:
    async def watch() -> None:
        stream = RunFollower(RunView(live, 100)).messages(-1, ChartView())
        await anext(stream)
        live.events.unlink()
        live.events.mkdir()
        async with asyncio.timeout(60):
            async for _ in stream:
                pass

    with pytest.raises(ValueError, match="not a regular file"):
        asyncio.run(watch())


async def _some(count: int) -> AsyncGenerator[bytes]:
    for number in range(count):
        yield b"%d" % number


def test_a_viewer_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "CUT_OFF_AFTER_S", 0.05)
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            if len(sent) == 3:
                await asyncio.Event().wait()

    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    async def serve() -> None:
        async with asyncio.timeout(60):
            await EventStream(_some(100))({}, receive, send)

    asyncio.run(serve())
    assert sent == [b"0", b"1", b"2"]
