"""What the supervisor says in a run's events, for a rank 0 that cannot or did not live to say it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainers.contract.clock import now_unix_s
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory

# An event's kind and its fields.
Words = tuple[str, Mapping[str, Any]]

LAST_WORDS_S = 4.0
RETRY_S = 0.5


def say(run: RunDirectory, words: Sequence[Words]) -> None:
    """Append events; a full disk is waited for."""
    rest = list(words)
    insist("the last words", lambda: _append(run, rest))


def append(run: RunDirectory, words: Sequence[Words]) -> None:
    """Append events.

    Raises:
        OSError: when the disk does not take all of them.
    """
    _append(run, list(words))


def _append(run: RunDirectory, rest: list[Words]) -> None:
    """Append events and take them from the list; those a full disk does not take stay in it."""
    now = now_unix_s()
    file = EventFile(run.events)
    try:
        while rest:
            del rest[: file.append((now, kind, fields) for kind, fields in rest)]
    finally:
        file.close()


def insist(what: str, write: Callable[[], Any]) -> bool:
    """Write something, again and again for some seconds while the disk does not take it."""
    deadline = time.monotonic() + LAST_WORDS_S
    while True:
        try:
            write()
            return True
        except (FileNotFoundError, NotADirectoryError) as error:
            print(f"{what} could not be written, because the run's folder is gone: {error}", flush=True)
            return False
        except OSError as error:
            print(f"{what} could not be written, trying again: {error}", flush=True)
            if time.monotonic() > deadline:
                return False
            time.sleep(RETRY_S)


def what_is_kept(run: RunDirectory) -> str:
    """Say from which checkpoint the run can go on."""
    newest = max(run.list_checkpoints(), key=lambda item: item.saved_unix_s, default=None)
    if newest is None:
        return "Nothing was saved yet: start it again."
    return f"Resume goes on from the checkpoint of step {newest.step}."
