"""Tests of a poll's runs, each started once, after the previous one; and of the poll data that users see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.auth.rights import NOBODY, NotAllowedError, asked_by
from ddp_gui.learn import lesson_file, polls
from ddp_gui.learn.polls import PollSession, PollSessions
from tests.unit.class_of import ANN, EVE
from tests.unit.ddp_gui.learn.lessons import LESSON

pytestmark = pytest.mark.unit


class Runs:
    """Fake of the store's runs; `refusal` is the reason why no run can be started or tended."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.shown_to_all: set[str] = set()
        self.states: dict[str, str] = {}
        self.refusal = ""
        self.tended: list[tuple[str, int, str]] = []

    def view(self, run_id: str) -> Any:
        return SimpleNamespace(status=lambda: SimpleNamespace(state=self.states[run_id]))

    async def start(self, lesson: str, run: int) -> str:
        if self.refusal:
            raise ValueError(self.refusal)
        run_id = f"{lesson}-{run}"
        assert run_id not in self.states, "each is started once"
        self.states[run_id] = "running"
        return run_id

    def tend(self, lesson: str, run: int, run_id: str) -> None:
        if self.refusal:
            raise ValueError(self.refusal)
        self.tended.append((lesson, run, run_id))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    for name in ("SAVE_AFTER_S", "TELL_EVERY_S", "LOOK_AT_RUN_EVERY_S"):
        monkeypatch.setattr(polls, name, 0.001)
    return Runs(tmp_path)


def school(runs: Runs) -> PollSessions:
    return PollSessions(runs, runs, has_login=True, is_anonymous=False)  # type: ignore[arg-type]


def asynchronously(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            with asked_by(EVE):
                await scenario()

    asyncio.run(bounded())


async def until(is_so: Callable[[], object]) -> None:
    while not is_so():
        await asyncio.sleep(0.002)


def opened(made: PollSessions) -> PollSession:
    return made.find(made.open(lesson_file.parse("batch", LESSON)).poll_id)


def test_a_run_that_cannot_be_started_is_told_and_tried_again(runs: Runs) -> None:
    async def scenario() -> None:
        made = school(runs)
        session = opened(made)
        await made.change(session.poll.poll_id, "close")
        runs.refusal = "there is no room"
        with pytest.raises(ValueError, match="there is no room"):
            await made.change(session.poll.poll_id, "start")
        assert session.poll.state == "closed"
        runs.refusal = ""
        await made.change(session.poll.poll_id, "start")
        # The lesson's commands to a run may be refused as well; the next start request resumes the poll.
        runs.refusal = "the run is not yours"
        await until(lambda: session.trouble == "the run is not yours")
        runs.refusal = ""
        await made.change(session.poll.poll_id, "start")
        assert session.trouble == "" and session.poll.run_ids == ["batch-0"]
        runs.states["batch-0"] = "finished"
        runs.refusal = "the disk is full"
        await until(lambda: session.trouble)
        assert made.describe(session, shows_early=False)["trouble"] == "the disk is full"
        runs.refusal = ""
        await made.change(session.poll.poll_id, "start")
        await until(lambda: session.poll.run_ids == ["batch-0", "batch-1"])
        assert session.trouble == ""

    asynchronously(scenario)


def test_a_page_that_was_started_again_goes_on_with_the_runs(runs: Runs) -> None:
    async def before() -> None:
        made = school(runs)
        session = opened(made)
        await made.change(session.poll.poll_id, "close")
        await made.change(session.poll.poll_id, "start")
        file = runs.runs_dir / ".class" / "polls" / f"{session.poll.poll_id}.json"
        await until(lambda: file.exists() and json.loads(file.read_text())["run_ids"])

    async def after() -> None:
        made = school(runs)
        assert runs.shown_to_all == {"batch-0"}
        session = made.find(made.listed()[0]["poll_id"])
        runs.states["batch-0"] = "finished"
        await until(lambda: session.poll.run_ids == ["batch-0", "batch-1"])

    asynchronously(before)
    runs.shown_to_all.clear()
    asynchronously(after)


def test_followers_are_told_what_they_may_know(runs: Runs) -> None:
    async def scenario() -> None:
        made = school(runs)
        session = opened(made)
        everybody, teacher = (made.messages(session, shows_early=each) for each in (False, True))

        async def next_of(stream: Any) -> dict[str, Any]:
            return json.loads((await anext(stream)).partition(b"data: ")[2])

        assert (await next_of(everybody))["results"] is None, "nor does a teacher who did not ask for it"
        assert (await next_of(teacher))["results"] == {"counts": [0, 0]}
        with asked_by(ANN):
            made.answer(session.poll.poll_id, 1, "")
            with pytest.raises(NotAllowedError):
                made.people(session)
        told = await next_of(everybody)
        assert (told["num_answers"], told["results"]) == (1, None)
        assert (await next_of(teacher))["results"] == {"counts": [0, 1]}
        await made.change(session.poll.poll_id, "close")
        assert (await next_of(everybody))["results"] == {"counts": [0, 1]}
        await made.change(session.poll.poll_id, "end")
        assert (await next_of(everybody))["state"] == "ended"
        with pytest.raises(StopAsyncIteration):
            await anext(everybody)
        with asked_by(NOBODY), pytest.raises(ValueError, match="only a teacher can open a poll"):
            opened(made)

    asynchronously(scenario)
