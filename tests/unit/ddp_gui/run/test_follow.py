"""Many viewers of one run: all get every update, each update is encoded once, and none delays another."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.auth.rights import EVERYBODY, Person, asked_by, current_user
from ddp_gui.background.workers import Workers
from ddp_gui.events import run_view
from ddp_gui.events.run_view import RunView
from ddp_gui.events.tables import ChartView
from ddp_gui.run import stream as stream_module
from ddp_gui.run.stream import EventStream, Follower
from tests.unit.class_of import ANN, BOB
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


def test_thirty_viewers_see_every_step_and_the_news_is_encoded_once(
    live: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    make = run_view.message_for

    def counted(view: RunView, since: int, *more: Any) -> dict[str, Any]:
        encoded.append(since)
        return make(view, since, *more)

    monkeypatch.setattr(run_view, "message_for", counted)

    async def watch() -> list[list[int]]:
        follower = Follower(RunView(live, 100))
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


def test_nobody_waits_behind_the_other_encodings_of_who_asked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        stream_module, "ENCODERS", Workers("test charts", at_once=2, per_person=1, most_asked=100)
    )
    encode, goes_on, users = Follower._encode, threading.Event(), set[Person]()

    def slow(follower: Follower, since: int, look: ChartView, *more: Any) -> stream_module.Update:
        users.add(current_user())
        if look.axis == "time":
            assert goes_on.wait(60)
        return encode(follower, since, look, *more)

    monkeypatch.setattr(Follower, "_encode", slow)
    follower = Follower(RunView(make_run(tmp_path), 100))

    async def first_of(person: Person, look: ChartView) -> bytes:
        with asked_by(person):
            return (await follower._update(-1, look, None)).encoded

    async def watch() -> None:
        slow, shared = (asyncio.create_task(first_of(ANN, ChartView(axis=axis))) for axis in ("time", "step"))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            of_bob = await first_of(BOB, ChartView(axis="step"))
            assert await shared == of_bob and not slow.done()
        goes_on.set()
        await slow

    try:
        asyncio.run(watch())
    finally:
        goes_on.set()
    assert users == {EVERYBODY}, "what all get is of no person"


def test_before_the_first_sample_the_cores_count_as_free() -> None:
    assert not stream_module.cores_are_full(None, num_cores=2)
    assert not stream_module.cores_are_full({"devices": []}, num_cores=2)
    assert not stream_module.cores_are_full({"devices": [{"kind": "cpu"}]}, num_cores=2), (
        "an older run's event"
    )


def test_the_stream_of_an_ended_run_ends(tmp_path: Path) -> None:
    view = RunView(make_run(tmp_path), 100)

    async def watch() -> list[bytes]:
        async with asyncio.timeout(60):
            return [event async for event in Follower(view).messages(-1, ChartView())]

    *_, snapshot, end = asyncio.run(watch())
    assert parsed(snapshot)["traces"]["loss"]["x"] == list(range(1, 11))
    assert end.startswith(b"event: end")


def test_a_long_file_gives_a_first_impression_and_then_every_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "MUCH_BYTES", 10_000)
    monkeypatch.setattr(stream_module, "VERY_MUCH_BYTES", 10_000)
    view = RunView(make_run(tmp_path, until=5000), 5000)

    async def watch() -> list[dict[str, Any]]:
        async with asyncio.timeout(60):
            return [parsed(event) async for event in Follower(view).messages(-1, ChartView())][:-1]

    first, *_, whole = asyncio.run(watch())
    assert (first["type"], first["cursor"]) == ("snapshot", -1)
    assert first["loading"] < 1 and len(first["traces"]["loss"]["x"]) > 500
    assert whole["type"] == "snapshot" and "loading" not in whole
    assert (whole["traces"]["loss"]["x"][0], whole["traces"]["loss"]["x"][-1]) == (1, 5000)


def test_a_long_last_line_without_its_end_does_not_load_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "MUCH_BYTES", 10_000)
    run = make_run(tmp_path)
    with run.events.open("ab") as file:
        file.write(b"x" * 20_000)

    async def watch() -> list[bytes]:
        async with asyncio.timeout(10):
            return [event async for event in Follower(RunView(run, 100)).messages(-1, ChartView())]

    *_, snapshot, end = found = asyncio.run(watch())
    assert len(found) <= 4 and end.startswith(b"event: end")
    assert parsed(snapshot)["traces"]["loss"]["x"] == list(range(1, 11))


def test_an_unreadable_file_ends_the_stream_with_its_reason(live: RunDirectory) -> None:
    async def watch() -> None:
        stream = Follower(RunView(live, 100)).messages(-1, ChartView())
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
