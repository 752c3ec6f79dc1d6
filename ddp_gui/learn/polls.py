"""Classroom polls: poll state, storage and the sessions that serve them."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from ddp_gui.auth import rights
from ddp_gui.auth.rights import FOLDER as CLASS_FOLDER
from ddp_gui.auth.rights import Person
from ddp_gui.learn import outcome
from ddp_gui.learn.learn_routes import LearnApi
from ddp_gui.learn.lesson import NUM_POINTS, ChoiceQuestion, Lesson
from ddp_gui.learn.measures import RunName, RunNumbers
from ddp_gui.operations import USER_ERRORS, error_text
from ddp_gui.runs.runs import RunStore
from trainers.contract import events
from trainers.files import private_files, typed
from trainers.files.json_files import read_json, write_json_atomically
from trainers.machine.os_errors import explain

State = Literal["open", "closed", "running", "revealed"]
STATES: tuple[State, ...] = ("open", "closed", "running", "revealed")
# A teacher's actions, each with the states in which it is allowed and the resulting state. A closed poll can
# be reopened, because nothing is revealed before the runs; an ended poll is deleted.
ACTIONS: Mapping[str, tuple[tuple[State, ...], State | None]] = {
    "close": (("open",), "closed"),
    "reopen": (("closed",), "open"),
    "start": (("closed",), "running"),
    "end": (STATES, None),
}
# Maximum number of answers: more than any class has, so more answers come from a program.
MAX_ANSWERS = 500
TOKEN = re.compile(r"[0-9a-f]{32}", re.ASCII)

Value = int | list[float]


@dataclass(frozen=True, kw_only=True)
class PollAnswer:
    """One participant's prediction: the index of a choice (from 0) or the values of a curve."""

    value: Value
    answered_unix_s: float


@dataclass(kw_only=True)
class Poll:
    """A poll about one lesson. Answers are keyed by account name, or by a random browser token.

    Its states are "open", "closed", "running" and "revealed", in this order; a closed poll can be reopened.
    """

    poll_id: str
    lesson: str
    title: str
    opened_by: str
    opened_unix_s: float
    # Copy of the lesson's prediction, because the lesson's file may change while the poll is open.
    question: dict[str, Any]
    num_runs: int
    state: State = "open"
    run_ids: list[str] = field(default_factory=list)
    answers: dict[str, PollAnswer] = field(default_factory=dict)

    def act(self, action: str) -> None:
        """Change the state by one of the actions.

        Raises:
            ValueError: naming the action and the state in which it is allowed.
        """
        if action not in ACTIONS:
            raise ValueError(f"action is {action!r}; allowed: {', '.join(ACTIONS)}")
        states, next_state = ACTIONS[action]
        if self.state not in states:
            raise ValueError(
                f"the poll is {self.state}: the action {action} needs a poll that is {states[0]}"
            )
        self.state = next_state or self.state

    def answer(self, key: str, value: Any, now_unix_s: float) -> None:
        """Record a participant's prediction. Repeating the same answer has no effect, so retries are safe.

        Raises:
            ValueError: if the poll is not open, the participant has already given another answer, or the
                value is not a valid answer to the question.
        """
        checked = checked_value(self.question, value)
        previous = self.answers.get(key)
        if previous is not None and previous.value == checked:
            return
        if self.state != "open":
            raise ValueError("the poll is closed: it accepts no more predictions")
        if previous is not None:
            raise ValueError("you have already answered: a prediction cannot be changed")
        if len(self.answers) >= MAX_ANSWERS:
            raise ValueError(f"the poll has {MAX_ANSWERS} answers, which is the maximum")
        self.answers[key] = PollAnswer(value=checked, answered_unix_s=now_unix_s)

    def results(self) -> dict[str, Any]:
        """Return the predictions without names: counts per choice, or all curves."""
        values = [answer.value for answer in self.answers.values()]
        if self.question["kind"] == "curve":
            # Sorted, so that the order does not reveal who answered first.
            return {"curves": sorted(value for value in values if isinstance(value, list))}
        return {"counts": [values.count(index) for index in range(len(self.question["choices"]))]}


def checked_value(question: Mapping[str, Any], value: Any) -> Value:
    """Validate an answer to a question and return it.

    Raises:
        ValueError: naming the value and the allowed range.
    """
    if question["kind"] == "choice":
        num_choices = len(question["choices"])
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < num_choices:
            value_text = repr(value)[:40]
            raise ValueError(f"answer is {value_text}; allowed: a whole number from 0 to {num_choices - 1}")
        return value
    low, high = question["low"], question["high"]
    is_list = isinstance(value, list) and len(value) == NUM_POINTS
    if not is_list or not all(_is_between(number, low, high) for number in value):
        raise ValueError(f"answer must be {NUM_POINTS} numbers from {low:g} to {high:g}")
    return [float(f"{number:.6g}") for number in value]


def _is_between(value: Any, low: float, high: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and low <= value <= high


def poll_from_json(raw: Any) -> Poll:
    """Parse the content of a poll's file.

    Raises:
        ValueError: if it is not a valid poll.
    """
    poll = typed.read(Poll, raw)
    try:
        for answer in poll.answers.values():
            checked_value(poll.question, answer.value)
    except (LookupError, TypeError) as error:
        raise ValueError(f"the poll's question is damaged ({error!r})") from error
    return poll


FOLDER = "polls"
MAX_POLLS = 20
MAX_TITLE = 200
SAVE_AFTER_S = 0.5
# Interval that coalesces updates: the projector redraws once even if thirty answers arrive within a second.
UPDATE_INTERVAL_S = 0.15
KEEPALIVE_INTERVAL_S = 15.0
RUN_POLL_INTERVAL_S = 0.3
# Without logins, clients cannot be distinguished, so the rate limit (answers, seconds) applies to all of them
# together.
MAX_ANONYMOUS_ANSWERS, RATE_WINDOW_S = 60, 10.0
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


class NoSuchPollError(ValueError):
    """The poll does not exist, or it has ended."""

    http_status = 404


@dataclass
class PollSession:
    """A poll and the state needed to serve it."""

    poll: Poll
    # Reason why the runs do not continue; empty without a problem.
    trouble: str = ""
    version: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    answer_times: deque[float] = field(default_factory=deque)
    running: asyncio.Task[None] | None = None
    saving: asyncio.Task[None] | None = None
    is_over: bool = False
    # Measured result of the runs; None until they have ended and a client requested it.
    outcome: dict[str, Any] | None = None

    def notify(self) -> None:
        """Wake all clients that follow the poll."""
        self.version += 1
        self.changed, previous = asyncio.Event(), self.changed
        previous.set()


class PollSessions:
    """All polls of this page.

    Args:
        has_login: True if answers are recorded under account names.
        is_anonymous: True if polls are enabled without a login (`--polls`).
    """

    def __init__(self, store: RunStore, runs: LearnApi, *, has_login: bool, is_anonymous: bool) -> None:
        self.has_login = has_login
        self.is_on = has_login or is_anonymous
        self._store = store
        self._runs = runs
        self._folder = store.runs_dir / CLASS_FOLDER / FOLDER
        self._sessions: dict[str, PollSession] = {}
        if self.is_on:
            self._read_all()

    def may_open(self) -> bool:
        """Return True if the current user can open a poll."""
        return self.is_on and rights.current_user().is_teacher

    def find(self, poll_id: str) -> PollSession:
        """Return a poll's session. Starts a task that watches the runs if there is none.

        Raises:
            NoSuchPollError: if it does not exist.
        """
        session = self._sessions.get(poll_id)
        if session is None:
            raise NoSuchPollError(f"there is no poll {poll_id[:40]!r}, or it has ended")
        self._resume_runs(session)
        return session

    def listed(self) -> list[dict[str, Any]]:
        """Return a summary of each poll, most recent first."""
        return [
            {
                name: getattr(session.poll, name)
                for name in ("poll_id", "lesson", "title", "state", "opened_by")
            }
            for session in reversed(self._sessions.values())
        ]

    def open(self, lesson: Lesson) -> Poll:
        """Open a poll on a lesson. Ends the oldest polls if there are too many.

        Raises:
            ValueError: if the user is not a teacher, or polls are disabled.
        """
        rights.require_teacher("open a poll")
        if not self.is_on:
            raise ValueError("polls without logins are off: start the page with --polls (docs/class.md)")
        poll = Poll(
            poll_id="".join(secrets.choice(_LETTERS) for _ in range(8)),
            lesson=lesson.name,
            title=lesson.title[:MAX_TITLE],
            opened_by=rights.current_user().name,
            opened_unix_s=time.time(),
            question=lesson.prediction_values(),
            num_runs=len(lesson.runs),
        )
        while len(self._sessions) >= MAX_POLLS:
            self._end(next(iter(self._sessions.values())))
        session = self._sessions[poll.poll_id] = PollSession(poll)
        self._notify_and_save(session)
        return poll

    async def change(self, poll_id: str, action: str) -> Poll:
        """Close, reopen, start or end a poll.

        Raises:
            ValueError: if the user is not a teacher, or the poll's state does not allow the action.
        """
        rights.require_teacher("change a poll")
        session = self.find(poll_id)
        if action == "start" and session.trouble:
            session.trouble = ""
            self._resume_runs(session)
            self._notify_and_save(session)
            return session.poll
        session.poll.act(action)
        if action == "start":
            await self._begin_runs(session)
        elif action == "end":
            self._end(session)
        self._notify_and_save(session)
        return session.poll

    def answer(self, poll_id: str, value: Any, token: str) -> Poll:
        """Record the prediction of the current user, or of a browser without an account.

        Raises:
            ValueError: if the answer is refused; the message gives the reason.
        """
        session = self.find(poll_id)
        key = rights.current_user().name
        if not self.has_login:
            key = self._check_rate(session, token)
        elif not key:
            raise ValueError("log in to answer")
        session.poll.answer(key, value, time.time())
        self._notify_and_save(session)
        return session.poll

    def describe(self, session: PollSession, *, shows_early: bool) -> dict[str, Any]:
        """Return a poll for its followers. Results are hidden while the poll is open.

        Args:
            shows_early: True to include results while the poll is open; for teachers.
        """
        poll = session.poll
        is_shown = poll.state != "open" or shows_early
        return {
            "poll_id": poll.poll_id,
            "lesson": poll.lesson,
            "state": "ended" if session.is_over else poll.state,
            "num_answers": len(poll.answers),
            "num_runs": poll.num_runs,
            "run_ids": poll.run_ids,
            "trouble": session.trouble,
            "results": poll.results() if is_shown else None,
        }

    async def outcome(self, session: PollSession) -> dict[str, Any] | None:
        """Return the measured result of a poll's runs; None before their end, and for drawn curves."""
        question = session.poll.question
        if session.poll.state == "revealed" and question["kind"] == "choice" and session.outcome is None:
            run_ids = session.poll.run_ids
            measured = await asyncio.gather(
                *(asyncio.to_thread(outcome.numbers_of, self._store, run_id, run_id) for run_id in run_ids)
            )
            runs: dict[RunName, RunNumbers] = {
                number: numbers for number, numbers in enumerate(measured) if numbers is not None
            }
            session.outcome = vars(outcome.of_choice(ChoiceQuestion.of(question), runs))
        return session.outcome

    async def messages(self, session: PollSession, *, shows_early: bool) -> AsyncGenerator[bytes]:
        """Yield the poll as Server-Sent Events: now and after each change, until it has ended."""
        while True:
            version, changed, is_over = session.version, session.changed, session.is_over
            body = orjson.dumps(self.describe(session, shows_early=shows_early))
            yield b"id: %d\ndata: %b\n\n" % (version, body)
            if is_over:
                return
            while not changed.is_set():
                try:
                    await asyncio.wait_for(changed.wait(), KEEPALIVE_INTERVAL_S)
                except TimeoutError:
                    yield b": nothing new\n\n"
            await asyncio.sleep(UPDATE_INTERVAL_S)

    def people(self, session: PollSession) -> list[dict[str, Any]]:
        """Return the predictions of all participants, in the order of arrival.

        Raises:
            NotAllowedError: if the user is not a teacher.
        """
        rights.require_teacher("see who predicted what")
        if not self.has_login:
            return []
        return [
            {"person": name, "answer": answer.value, "answered_unix_s": answer.answered_unix_s}
            for name, answer in session.poll.answers.items()
        ]

    def _check_rate(self, session: PollSession, token: str) -> str:
        if not TOKEN.fullmatch(token):
            raise ValueError("token must be 32 hexadecimal digits, which the page creates")
        now, answer_times = time.monotonic(), session.answer_times
        while answer_times and now - answer_times[0] > RATE_WINDOW_S:
            answer_times.popleft()
        if len(answer_times) >= MAX_ANONYMOUS_ANSWERS:
            raise ValueError(
                f"more than {MAX_ANONYMOUS_ANSWERS} answers arrived within {RATE_WINDOW_S:g} seconds: "
                "try again"
            )
        answer_times.append(now)
        return token

    async def _begin_runs(self, session: PollSession) -> None:
        session.trouble = ""
        try:
            await self._start_next(session)
        finally:
            if not session.poll.run_ids:
                session.poll.state = "closed"
        self._resume_runs(session)

    async def _start_next(self, session: PollSession) -> None:
        run_id = await self._runs.start(session.poll.lesson, len(session.poll.run_ids))
        session.poll.run_ids.append(run_id)
        self._store.shown_to_all.add(run_id)

    def _resume_runs(self, session: PollSession) -> None:
        """Start the task that starts and watches the runs, unless it exists; also after a page restart."""
        if (
            session.poll.state == "running"
            and session.poll.run_ids
            and session.running is None
            and not session.trouble
        ):
            session.running = asyncio.create_task(self._run_all(session))

    async def _run_all(self, session: PollSession) -> None:
        """Start each run after the previous one has ended, so that runs do not disturb each other."""
        name = session.poll.opened_by
        teacher = Person(name=name, role="teacher") if self.has_login else rights.EVERYBODY
        try:
            with rights.acting_as(teacher):
                while not await asyncio.to_thread(self._has_ended, session.poll.run_ids[-1]):
                    await asyncio.to_thread(self._send_due_command, session.poll)
                    await asyncio.sleep(RUN_POLL_INTERVAL_S)
                if len(session.poll.run_ids) < session.poll.num_runs:
                    await self._start_next(session)
                else:
                    session.poll.state = "revealed"
        except USER_ERRORS as error:
            session.trouble = error_text(error)
        session.running = None
        self._notify_and_save(session)
        self._resume_runs(session)

    def _has_ended(self, run_id: str) -> bool:
        try:
            return self._store.view(run_id).status().state not in events.LIVE_STATES
        except (OSError, ValueError):
            return True  # deleted

    def _send_due_command(self, poll: Poll) -> None:
        run_id = poll.run_ids[-1]
        try:
            self._runs.tend(poll.lesson, len(poll.run_ids) - 1, run_id)
        except USER_ERRORS:
            if not self._has_ended(run_id):
                raise

    def _end(self, session: PollSession) -> None:
        del self._sessions[session.poll.poll_id]
        self._store.shown_to_all.difference_update(session.poll.run_ids)
        session.is_over = True
        if session.running is not None:
            session.running.cancel()
        session.notify()

    def _notify_and_save(self, session: PollSession) -> None:
        session.notify()
        if session.saving is None or session.saving.done():
            session.saving = asyncio.create_task(self._save(session))

    async def _save(self, session: PollSession) -> None:
        """Write the poll's file, at most once per `SAVE_AFTER_S`, until the latest version is saved."""
        path, version = self._folder / f"{session.poll.poll_id}.json", -1
        while version != session.version:
            await asyncio.sleep(SAVE_AFTER_S)
            version = session.version
            try:
                if session.is_over:
                    await asyncio.to_thread(path.unlink, missing_ok=True)
                else:
                    await asyncio.to_thread(self._write, path, asdict(session.poll))
            except (OSError, ValueError) as error:
                print(
                    f"The poll {session.poll.poll_id} could not be saved ({explain(error)}).",
                    flush=True,
                )

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        private_files.make_folder(self._folder.parent)
        private_files.make_folder(self._folder)
        write_json_atomically(path, content, mode=0o600)

    def _read_all(self) -> None:
        sessions = []
        for path in self._folder.glob("*.json") if self._folder.is_dir() else []:
            try:
                poll = poll_from_json(read_json(path, must_be_ours=True))
                if poll.poll_id != path.stem:
                    raise ValueError(f"the file contains the poll {poll.poll_id!r}")
            except (OSError, ValueError) as error:
                print(f"The poll in {path.name} cannot be read: {explain(error)}.", flush=True)
                continue
            sessions.append(PollSession(poll))
            self._store.shown_to_all.update(poll.run_ids)
        sessions.sort(key=lambda session: session.poll.opened_unix_s)
        self._sessions = {session.poll.poll_id: session for session in sessions}
