"""The named endpoint of the lessons: start one of a lesson's runs."""

from __future__ import annotations

from typing import Any

from ddp_gui.background.workers import CLICKS
from ddp_gui.gradio_routes.endpoints import register
from ddp_gui.launch.user_errors import in_plain_words
from ddp_gui.learn.fit import fit
from ddp_gui.learn.library import Library
from ddp_gui.runs import notes
from ddp_gui.runs.runs import RunStore, status_values
from ddp_gui.train.api import Api
from trainers.files.json_files import read_lines
from trainers.files.plain_files import open_plain

TAG = "lesson"


class LearnApi:
    """The endpoint over the lessons; results are JSON values."""

    def __init__(self, library: Library, api: Api, store: RunStore) -> None:
        self._library = library
        self._api = api
        self._store = store

    async def start_lesson_run(
        self, lesson: str, run: int, question: int | None = None, choice: str | None = None
    ) -> dict[str, Any]:
        """Start one of a lesson's runs, counted from 0, now or when its turn comes; it is tagged.

        With a `question` it is the run of that question, with what was chosen there.
        """
        config = await CLICKS.run(in_plain_words, lambda: self._config(lesson, run, question, choice))
        answer = await self._api.start_run(config)
        await CLICKS.run(self._tag, answer["run_id"], lesson)
        return answer

    def tend(self, lesson: str, run: int, run_id: str) -> None:
        """Send a run the next command that the lesson has for it, as soon as it is far enough.

        Raises:
            ValueError: when it is refused: the run has ended meanwhile, or is not the current user's.
        """
        commands = self._library.find(lesson).runs[run].commands
        view = self._store.view(run_id)
        sent = 0
        if view.run.commands.exists():
            with open_plain(view.run.commands) as file:
                sent = read_lines(file, 0)[0].count(b"\n")
        if sent >= len(commands):
            return
        view.catch_up()
        now = status_values(view)
        if now["state"] == "running" and now["step"] >= commands[sent].at_step:
            self._api.send(run_id, commands[sent].name, commands[sent].values)

    def register(self) -> None:
        """Add the endpoint to the Gradio app under construction."""
        register(self.start_lesson_run)

    def _config(self, name: str, run: int, question: int | None, choice: str | None) -> dict[str, Any]:
        lesson = self._library.find(name)
        fitted = fit(lesson, self._api.plan)
        if question is None:
            made = _nth(lesson.runs, "run", run)
            return {**fitted.of(made.config), "name": f"{lesson.title}: {made.name}"}
        attempt = _nth(lesson.questions, "question", question).attempt
        if attempt is None or choice not in attempt.choices:
            allowed = ", ".join(attempt.choices) if attempt else "none, this question has nothing to run"
            raise ValueError(f"choice is {choice!r}, but allowed is: {allowed}")
        base = lesson.runs[attempt.run]
        return {**fitted.of({**base.config, **attempt.choices[choice]}), "name": f"{lesson.title}: {choice}"}

    def _tag(self, run_id: str, lesson: str) -> None:
        run = self._store.open(run_id)
        notes.write(run, notes.changed(notes.read(run), tags=(TAG, lesson)))
        self._store.read_again([run_id])


def _nth(items: tuple[Any, ...], what: str, number: int) -> Any:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(items):
        raise ValueError(f"{what} is {number!r}, but allowed is: a whole number from 0 to {len(items) - 1}")
    return items[number]
