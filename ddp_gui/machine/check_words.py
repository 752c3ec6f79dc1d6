"""Why a communication check failed, in plain words."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.engines.local.torchrun import rank_exit_codes

MAX_SHOWN = 300


def explain_failure(
    errors: Sequence[Mapping[str, Any]], output: str, exit_code: int, late_after_s: float | None
) -> str:
    """Explain what ended a check and what to do.

    Args:
        errors: the final errors of the ranks, the first to fail first.
        output: what torchrun printed.
        exit_code: torchrun's.
        late_after_s: the time limit after which it was killed; None if it ended by itself.
    """
    if late_after_s is not None:
        return (
            f"The check was not done after {late_after_s:.0f} s and was stopped. The ranks did not reach "
            "each "
            "other, or the machine is very busy: try fewer ranks, or try again when no run is live."
        )
    killed = {rank: code for rank, code in rank_exit_codes(output).items() if _is_cause(code)}
    if killed:
        rank, code = next(iter(killed.items()))
        return f"Rank {rank} was killed by {_name(code)} while it measured. {_hint(code)}"
    if errors:
        first = errors[0]
        return f"Rank {first['rank']} failed: {_short(str(first['error']))}"
    if exit_code < 0:
        return f"torchrun, the parent of the ranks, was killed by {_name(exit_code)}: try again."
    last_words = output.strip().splitlines()[-1:] or ["it wrote nothing"]
    return f"torchrun ended with exit code {exit_code}: {_short(last_words[0])}"


def _is_cause(exit_code: int) -> bool:
    """Tell whether a signal is a cause: torchrun itself ends the other ranks by SIGTERM."""
    return exit_code < 0 and exit_code != -signal.SIGTERM


def _name(exit_code: int) -> str:
    try:
        return f"a signal ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"signal {-exit_code}"


def _hint(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "The system often does this when memory runs out: try fewer ranks, or close other programs."
    return "That is a crash in compiled code: the driver and torch may not match."


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} …"
