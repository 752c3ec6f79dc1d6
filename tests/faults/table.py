"""The table of the fault suite: outcomes as JSON Lines, a Markdown row per fault, a total."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.faults.trial import Outcome

HEAD = (
    "| fault | times | lost events | bad checkpoints | processes left | longest s to a true state "
    "| not as said |\n"
    "|---|---|---|---|---|---|---|"
)


def load(path: Path) -> list[Outcome]:
    """Return the recorded outcomes, without an incomplete last line."""
    if not path.exists():
        return []
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [Outcome(**json.loads(line)) for line in whole.splitlines() if line]


def keep(path: Path, outcome: Outcome) -> None:
    """Append an outcome."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(outcome.to_json()) + "\n")


def row(name: str, outcomes: Iterable[Outcome]) -> str:
    """Return the Markdown row of a fault, or of all of them."""
    played = list(outcomes)
    seconds = [outcome.true_after_s for outcome in played if outcome.true_after_s is not None]
    cells: list[Any] = [
        name,
        len(played),
        sum(outcome.lost_events for outcome in played),
        sum(outcome.bad_checkpoints for outcome in played),
        sum(outcome.processes_left for outcome in played),
        f"{max(seconds):.1f}" if seconds else "–",
        sum(bool(outcome.complaints) for outcome in played),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def is_good(outcome: Outcome, limit_s: float) -> bool:
    """True if every check of the trial passed."""
    nothing_wrong = outcome.lost_events == outcome.bad_checkpoints == outcome.processes_left == 0
    in_time = outcome.true_after_s is None or outcome.true_after_s <= limit_s
    return nothing_wrong and in_time and not outcome.complaints
