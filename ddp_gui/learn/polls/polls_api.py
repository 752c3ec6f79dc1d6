"""The named endpoints of polls: open one, answer it, close it and start its runs."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ddp_gui.background.workers import CLICKS
from ddp_gui.gradio_routes.endpoints import register
from ddp_gui.launch.user_errors import in_plain_words, waiting_in_plain_words
from ddp_gui.learn.learn_api import LearnApi
from ddp_gui.learn.library import Library
from ddp_gui.learn.polls.rooms import Rooms


class PollsApi:
    """The endpoints over the polls; results are JSON values."""

    def __init__(self, rooms: Rooms, library: Library) -> None:
        self._rooms = rooms
        self._library = library

    async def open_poll(self, lesson: str) -> dict[str, Any]:
        """Open a lesson as a poll; for teachers, and without logins where polls were asked for."""
        found = await CLICKS.run(in_plain_words, lambda: self._library.find(lesson))
        poll = in_plain_words(lambda: self._rooms.open(found))
        return {"poll_id": poll.poll_id, "state": poll.state}

    async def answer_poll(self, poll: str, answer: Any, token: str = "") -> dict[str, Any]:
        """Answer a poll, once: a choice, counted from 0, or the values of a curve.

        Without logins `token` says which browser answers: 32 hexadecimal digits that it makes by chance.
        """
        taken = in_plain_words(lambda: self._rooms.answer(poll, answer, str(token)))
        return {"poll_id": taken.poll_id, "state": taken.state, "num_answers": len(taken.answers)}

    async def change_poll(self, poll: str, action: str) -> dict[str, Any]:
        """Do something to a poll: close, reopen, start (its runs) or end; for teachers."""
        changed = await waiting_in_plain_words(self._rooms.change(poll, action))
        return {"poll_id": changed.poll_id, "state": changed.state, "run_ids": changed.run_ids}

    def register(self) -> None:
        """Add the endpoints to the Gradio app under construction."""
        register(self.open_poll, self.answer_poll, self.change_poll)


class PollRuns:
    """The runs of polls: started as by a click on the lesson's page, and tended as that page does."""

    def __init__(self, api: LearnApi) -> None:
        self._api = api
        self.tend = api.tend

    async def start(self, lesson: str, run: int) -> str:
        """Start one of a lesson's runs, counted from 0, and return its id.

        Raises:
            ValueError: when it cannot be started; says why.
        """
        try:
            answer = await self._api.start_lesson_run(lesson, run)
        except gr.Error as error:
            raise ValueError(error.message) from error
        return str(answer["run_id"])
