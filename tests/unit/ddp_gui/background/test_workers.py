"""Tests of worker threads: limits per user, no thread held by a waiting request, errors for refused work."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.auth import rights
from ddp_gui.background import workers as workers_module
from ddp_gui.background.workers import GeneratedFile, Router, TooManyError, Workers
from tests.harness import wait_until
from tests.unit.class_of import ANN, BOB


class Gate:
    """Work that blocks until the gate opens, with a count of concurrent calls."""

    def __init__(self) -> None:
        self.going_on, self._lock, self.is_open = 0, threading.Lock(), threading.Event()

    def work(self) -> str:
        with self._lock:
            self.going_on += 1
        self.is_open.wait(60)
        return rights.current_user().name


def test_one_person_has_only_a_share_and_another_gets_the_next_thread() -> None:
    workers, rude, ann = Workers("jobs", num_threads=3, per_person=2, max_requests=10), Gate(), Gate()
    with rights.acting_as(BOB):
        bobs = [workers.submit(rude.work) for _ in range(8)]
    wait_until("two of Bob's", lambda: rude.going_on == 2, 60)
    with rights.acting_as(ANN):
        anns = workers.submit(ann.work)
    wait_until("Ann's", lambda: ann.going_on == 1, 60)
    assert rude.going_on == 2
    ann.is_open.set()
    rude.is_open.set()
    assert anns.result(60) == "ann" and [each.result(60) for each in bobs] == ["bob"] * 8


def _is_taken(workers: Workers) -> bool:
    try:
        return workers.submit(lambda: True).result(60)
    except TooManyError:
        return False


def test_whoever_goes_away_gives_back_what_was_counted() -> None:
    workers, gate = Workers("jobs", num_threads=1, per_person=1, max_requests=2), Gate()

    async def leave() -> None:
        asked = [asyncio.create_task(workers.run(gate.work)) for _ in range(2)]
        await asyncio.sleep(0)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    with rights.acting_as(BOB):
        asyncio.run(leave())
        gate.is_open.set()
        wait_until("room again", lambda: _is_taken(workers), 60)


class Reader:
    """A client that downloads a file, blocking until `goes_on` is set, and records the response."""

    def __init__(self, person: rights.Person, workers: Workers) -> None:
        self.person, self.goes_on, self.status, self.words = person, asyncio.Event(), 0, b""
        self._workers = workers

    async def take(self) -> None:
        with rights.acting_as(self.person):
            await GeneratedFile(self._workers, iter([b"a", b"b"]), "a.csv", "text/csv")(
                SCOPE, self.stay, self.get
            )

    async def stay(self) -> Any:
        await asyncio.Event().wait()

    async def get(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.words += message.get("body", b"")
        if self.status == 200:
            await self.goes_on.wait()


SCOPE = {"type": "http", "method": "GET", "asgi": {"spec_version": "2.3"}}


def test_open_files_are_limited_for_one_person_and_for_all_together() -> None:
    workers = Workers("exports", num_threads=2, per_person=1, max_requests=8, max_open_files=8)

    async def ask() -> None:
        crowd = [rights.Person(name=f"p{number}", role="student") for number in range(4)]
        readers = [Reader(person, workers) for person in crowd for _ in range(2)]
        taking = [asyncio.create_task(each.take()) for each in readers[:2]]
        await asyncio.sleep(0)
        more = Reader(crowd[0], workers)
        await more.take()
        assert more.status == 429 and b"you are downloading 2 files at the same time" in more.words
        taking += [asyncio.create_task(each.take()) for each in readers[2:]]
        await asyncio.sleep(0)
        others = Reader(ANN, workers)
        await others.take()
        assert others.status == 429 and b"many files are being downloaded" in others.words
        for each in readers:
            each.goes_on.set()
        await asyncio.gather(*taking)
        assert {each.words for each in readers} == {b"ab"}
        others.goes_on.set()
        await others.take()
        assert others.status == 200, "there is room again"

    asyncio.run(ask())


def test_who_does_not_read_a_file_gives_back_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "CHUNK_TIMEOUT_S", 0.05)
    workers = Workers("exports", num_threads=1, per_person=1, max_requests=1, max_open_files=4)

    async def ask() -> None:
        rude = Reader(BOB, workers)
        await asyncio.wait_for(rude.take(), 30)
        assert rude.words == b""
        next_one = Reader(BOB, workers)
        next_one.goes_on.set()
        await next_one.take()
        assert next_one.words == b"ab"

    asyncio.run(ask())


def test_a_route_answers_429_where_somebody_asks_too_much() -> None:
    workers, gate = Workers("jobs", num_threads=1, per_person=1, max_requests=1), Gate()
    router = Router()

    @router.get("/slow")
    @workers.handler
    def slow(words: str) -> str:
        return words + gate.work()

    app = FastAPI()
    app.include_router(router)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        with rights.acting_as(BOB):
            await app(scope, receive, send)

    client = TestClient(served)
    with rights.acting_as(BOB):
        first = workers.submit(gate.work)
    answer = client.get("/slow?words=hi")
    assert answer.status_code == 429
    assert "you have requested jobs 1 times at once: wait until a request" in answer.json()["detail"]
    gate.is_open.set()
    first.result(60)
    wait_until("room again", lambda: client.get("/slow?words=hi").text == '"hibob"', 60)
