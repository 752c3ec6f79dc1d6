"""What the supervisor says in a run's events, for a rank 0 that cannot or did not live to say it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainers.contract import manifests
from trainers.contract.events import EventFile, State
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import NOTHING_SAVED_HINT
from trainers.engines.local.diagnosis.autopsy import Cause
from trainers.machine.clock import now_unix_s
from trainers.machine.os_errors import explain

# An event's kind and its fields.
Words = tuple[str, Mapping[str, Any]]

# Ends that are no failure.
GOOD_ENDS = ("stopped", "finished")
GOES_ON = "It goes on when there is room."
LAST_WORDS_S = 4.0
RETRY_S = 0.5


def say(run: RunDirectory, words: Sequence[Words]) -> None:
    """Append events; a full disk is waited for."""
    rest = list(words)
    insist("the final events", lambda: _append(run, rest))


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


def insist(what: str, write: Callable[[], Any], *, within_s: float = LAST_WORDS_S) -> bool:
    """Write something, again and again for some seconds while the disk does not take it."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            write()
            return True
        except (FileNotFoundError, NotADirectoryError) as error:
            print(
                f"{what} could not be written, because the run directory is gone: {explain(error)}",
                flush=True,
            )
            return False
        except OSError as error:
            print(f"{what} could not be written, trying again: {explain(error)}", flush=True)
            if time.monotonic() > deadline:
                return False
            time.sleep(RETRY_S)


def left_over(pids: Sequence[int]) -> Cause:
    """Say that processes could not be ended."""
    message = f"Processes of this run could not be ended: {', '.join(map(str, pids))}."
    hint = "They hang in the kernel (a driver or a network disk); the machine may need a restart."
    return Cause(code="processes_left", message=message, hint=hint)


def fell_after_its_end(cause: Cause) -> Cause:
    """Say what befell a run that had done and saved all of its steps."""
    message = f"All steps were done and saved. Then, while its processes ended: {cause.message}"
    return replace(cause, code="fell_after_its_end", message=message, hint="Nothing is lost.")


def forced_stop(*, by_system: bool) -> Cause:
    """Say that a run was ended by force."""
    why = (
        "A signal (SIGTERM) asked the run to end"
        if by_system
        else "The run did not stop in time and was killed"
    )
    hint = "Steps after the newest checkpoint were not saved."
    return Cause(code="stop_forced", message=f"{why}.", hint=hint)


def stop_waits() -> Cause:
    """Say that a stop request has not been heard, because the ranks are at work."""
    message = "The ranks are still computing a step, so Stop waits for them, at most two minutes."
    hint = "Stop without saving ends the run at once."
    return Cause(code="stop_waits", message=message, hint=hint)


def of_an_end(
    state: State, reason: str, cause: Cause | None, unanswered: Sequence[str], *, is_said: bool
) -> list[Words]:
    """Return what is left to say when a run has ended: answers to stop requests, the cause, the state.

    Args:
        unanswered: ids of the stop requests that no rank could answer any more.
        is_said: whether rank 0 has said the state itself; then it is not said twice.
    """
    accepted = state == "stopped"
    answer = {"name": "stop", "step": 0, "accepted": accepted, "message": reason, "arguments": None}
    words: list[Words] = [("command", {"id": request, **answer}) for request in unanswered]
    if cause is not None:
        words.append(("warning" if state in GOOD_ENDS else "error", cause.fields()))
    if cause is not None or not is_said:
        words.append(("state", {"state": state, "reason": reason}))
    return words


def what_is_kept(run: RunDirectory, num_steps: int | None) -> str:
    """Say from which checkpoint the run can go on: the newest whole one, which is the one that Resume takes.

    Args:
        num_steps: the last step of the run, where it is known.
    """
    there = sorted(run.list_checkpoints(), key=lambda item: (item.saved_unix_s, item.step))
    if not there:
        return NOTHING_SAVED_HINT
    whole = manifests.newest_whole(run, sum_bytes=manifests.QUICK_BYTES)
    if whole is None:
        return "None of its checkpoints is whole: start it again."
    damaged = "" if whole == there[-1] else f"The checkpoint of step {there[-1].step:,} is damaged. "
    if num_steps is not None and whole.step >= num_steps:
        return f"{damaged}All {num_steps:,} steps are done and saved: Resume finishes the run."
    return f"{damaged}Resume continues from the checkpoint of step {whole.step:,}."
