"""Combines the notes of all ranks into one recording, on one clock, in seconds from its beginning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainers.contract import recordings
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.recording import profiled
from trainers.recording.profiled import Skew

_DIGITS = 7  # a tenth of a microsecond

Notes = Mapping[str, Any]


def combine(
    parts: Sequence[Notes],
    skews: Mapping[int, Skew],
    strategy: Strategy,
    world: World,
    *,
    ended_early: str | None,
) -> dict[str, Any]:
    """Return the content of the file.

    Args:
        parts: each rank's notes, by rank.
        skews: the clock skew of each machine.
        ended_early: the reason if there are fewer steps than requested.
    Raises:
        ValueError: if no step was recorded.
    """
    if not parts[0]["steps"]:
        raise ValueError(f"no step was recorded. {ended_early or ''}".rstrip())
    origin_ns = min(part["steps"][0]["began"] - skews[part["node"]].ahead_ns for part in parts)
    ranks = [_rank(part, _to_seconds(origin_ns + skews[part["node"]].ahead_ns)) for part in parts]
    is_blocking = strategy.all_reduce == "shared_memory"
    num_checked, contradiction_s = profiled.worst_contradiction_s(ranks)
    return {
        "version": recordings.VERSION,
        "first_step": ranks[0]["steps"][0]["step"],
        "num_steps": len(ranks[0]["steps"]),
        "world_size": world.world_size,
        "strategy": strategy.name,
        "device": world.device.type,
        "all_reduce": strategy.all_reduce,
        "algorithm": _algorithm(parts),
        "is_blocking": is_blocking,
        "ended_early": ended_early,
        "not_measured": _not_measured(parts, ranks, world),
        "clock": {
            "method": "one clock" if len(skews) == 1 else "pings",
            "error_s": max(skew.error_ns for skew in skews.values()) / 1e9,
            "num_checked": num_checked,
            "worst_contradiction_s": round(contradiction_s, _DIGITS),
        },
        "buckets": [_bucket(bucket) for bucket in parts[0]["buckets"]],
        "ranks": ranks,
        "numbers": profiled.recording_numbers(ranks, is_blocking=is_blocking),
    }


def _algorithm(parts: Sequence[Notes]) -> str | None:
    """Return the algorithm that all ranks report; None if unknown or different."""
    algorithms = {algorithm for part in parts for algorithm in part["algorithms"]}
    return algorithms.pop() if len(algorithms) == 1 else None


def _to_seconds(origin_ns: int) -> Callable[[int], float]:
    return lambda moment_ns: round((moment_ns - origin_ns) / 1e9, _DIGITS)


def _bucket(parameters: Iterable[tuple[str, int]]) -> dict[str, Any]:
    entries = [{"name": name, "bytes": size} for name, size in parameters]
    return {"bytes": sum(entry["bytes"] for entry in entries), "parameters": entries}


def _rank(part: Notes, to_seconds: Callable[[int], float]) -> dict[str, Any]:
    return {
        "rank": part["rank"],
        "node": part["node"],
        "host": part["host"],
        "steps": [_step(step, to_seconds) for step in part["steps"]],
    }


def _step(step: Notes, to_seconds: Callable[[int], float]) -> dict[str, Any]:
    return {
        "step": step["step"],
        "began_s": to_seconds(step["began"]),
        "ended_s": to_seconds(step["ended"]),
        "parts": [[name, to_seconds(start), to_seconds(end)] for name, start, end in step["parts"]],
        "all_reduces": [
            {
                "bucket": reduce["bucket"],
                "began_s": to_seconds(reduce["began"]),
                "ended_s": to_seconds(reduce["ended"]),
                "rounds": [[*map(to_seconds, moments), size] for *moments, size in reduce["rounds"]],
            }
            for reduce in step["all_reduces"]
        ],
        "collectives": [
            {"name": name, "began_s": to_seconds(start), "ended_s": to_seconds(end), "bytes": size}
            for name, start, end, size in step["collectives"]
        ],
    }


def _not_measured(parts: Sequence[Notes], ranks: Sequence[Notes], world: World) -> list[str]:
    """Return sentences about the limits of the recording."""
    sentences = [f"Rank {part['rank']}: {part['problem']}." for part in parts if part["problem"] is not None]
    steps = [step for rank in ranks for step in rank["steps"]]
    if world.world_size == 1:
        sentences.append("There is one rank, so nothing is averaged.")
    elif not any(step["all_reduces"] for step in steps):
        sentences.append(
            "With this strategy, the recording does not show which collective carries which gradients; "
            "they are drawn by their names."
        )
    if any(name == "both" for step in steps for name, *_ in step["parts"]):
        sentences.append(
            "Forward and backward are interleaved with this strategy, and are not shown separately."
        )
    if world.device.type == "cuda":
        sentences.append("The recording does not show the individual kernels of the GPU.")
    return sentences
