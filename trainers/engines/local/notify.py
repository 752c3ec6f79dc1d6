"""Sends a notification when a run has ended, to the services in DDP_NOTIFY_URLS.

    echo TEXT | python -m trainers.engines.local.notify

The addresses are Apprise URLs, which contain tokens: they stay in the environment and must never appear in an
argument, a log, an event or an error. A separate process sends the message, so that an error or a slow
service cannot affect the supervisor. Its exit code is the only result.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainers.contract import events
from trainers.contract.events import State
from trainers.contract.rundir import RunDirectory
from trainers.engines.local.diagnosis import Cause
from trainers.files import installation
from trainers.files.plain_files import REPOSITORY
from trainers.machine import environment

VARIABLE = environment.NOTIFY_URLS
TIME_LIMIT_S = 9.0
NOTIFIED_STATES: frozenset[State] = frozenset({"finished", "failed"})
NOT_INSTALLED, INVALID_ADDRESS, REJECTED = 3, 4, 5
TITLE = "Training run ended"
_NOT_AFFECTED = "The run itself is not affected."
_PROBLEMS = {
    NOT_INSTALLED: (
        "the package apprise is not installed",
        f"Install it with: pip install -r {installation.requirements('requirements-notify.txt')}",
    ),
    INVALID_ADDRESS: (
        f"Apprise does not recognise an address in {VARIABLE}",
        "See docs/notifications.md for their format.",
    ),
}
_NOT_SENT = ("a service did not accept the message", f"Check the addresses in {VARIABLE} and the network.")
_TOO_SLOW = (f"sending took longer than {TIME_LIMIT_S:.0f} seconds", "Check the network.")


def notify_run_ended(run: RunDirectory, state: State, reason: str) -> Cause | None:
    """Send one sentence about a run that ended without a stop request; return the problem, or None."""
    if state not in NOTIFIED_STATES or not os.environ.get(VARIABLE, "").split():
        return None
    try:
        sender = subprocess.run(
            [sys.executable, "-m", "trainers.engines.local.notify"],
            cwd=REPOSITORY,
            env=environment.for_a_child(keep=environment.FOR_NOTIFYING),
            input=sentence(run, state, reason).encode("utf-8", errors="replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        if sender.returncode == 0:
            return None
        reason_text, hint = _PROBLEMS.get(sender.returncode, _NOT_SENT)
    except subprocess.TimeoutExpired:
        reason_text, hint = _TOO_SLOW
    except OSError as error:
        reason_text, hint = f"the process that sends it could not be started ({error.strerror})", ""
    message = f"The notification that the run has ended was not sent: {reason_text}."
    return Cause(code="notify_failed", message=message, hint=f"{hint} {_NOT_AFFECTED}".strip())


def sentence(run: RunDirectory, state: State, reason: str) -> str:
    """Return one sentence with the run's name, final state, reason and best evaluation."""
    best = _best_evaluation(run.events)
    best_text = (
        "" if best is None else f" Best {best[0].replace('_', ' ')}: {best[1]:.4g} at step {best[2]:,}."
    )
    try:
        name = run.read_config().name
    except (OSError, ValueError):
        name = ""
    return f"{name or run.run_id} {state}: {reason}{best_text}"


def _best_evaluation(path: Path) -> tuple[str, float, int] | None:
    """Return name, value and step of the best evaluation; steps repeated by a resume replace earlier ones."""
    evaluations: list[dict[str, Any]] = []
    try:
        with path.open("rb") as file:
            for line in file:
                # Read only these kinds: most lines are steps, and a run may have millions of them.
                if b'"kind":"eval"' in line and line.endswith(b"\n"):
                    event = json.loads(line)
                    evaluations = [earlier for earlier in evaluations if earlier["step"] < event["step"]] + [
                        event
                    ]
    except OSError:
        return None
    best = None
    for event in evaluations:
        name = events.primary_metric(event["metrics"])
        if name is not None and events.is_better(name, event["metrics"][name], best[1] if best else None):
            best = (name, event["metrics"][name], event["step"])
    return best


def send(text: str, addresses: list[str]) -> int:
    """Send a text to all addresses; return the process's exit code."""
    try:
        apprise = importlib.import_module("apprise")
    except ImportError:
        return NOT_INSTALLED
    services = apprise.Apprise()
    are_valid = [services.add(address) for address in addresses]
    was_sent = services.notify(body=text, title=TITLE)
    if not all(are_valid):
        return INVALID_ADDRESS
    return 0 if was_sent else REJECTED


if __name__ == "__main__":
    sys.exit(send(sys.stdin.buffer.read().decode("utf-8"), os.environ.get(VARIABLE, "").split()))
