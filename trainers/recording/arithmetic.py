"""The numbers of a recording: how long each part took, what overlapped, and whether the clocks agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the same time as spans that do not overlap, in order."""
    merged: list[Span] = []
    for began, ended in sorted(spans):
        if merged and began <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((began, ended))
    return merged


def length(spans: Iterable[Span]) -> float:
    """Return how long at least one of the spans lasted."""
    return sum(ended - began for began, ended in union(spans))


def overlap(some: Iterable[Span], others: Iterable[Span]) -> float:
    """Return how long one of the first and one of the second lasted at the same time."""
    first, second = union(some), union(others)
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in first for b in second)


def numbers_of_step(step: Mapping[str, Any], *, is_blocking: bool) -> dict[str, float | None]:
    """Return the seconds of a step's parts, and what of its all-reduces was hidden behind backward.

    Backward computes until the last bucket is ready; what all-reduces take until then is hidden. Where the
    thread that computes averages the gradients itself (`is_blocking`), nothing is.
    """
    found: dict[str, float | None] = {"step_s": step["ended_s"] - step["began_s"]}
    for part in ("data", "forward", "backward", "both", "optimizer", "other"):
        spans = [(began, ended) for name, began, ended in step["parts"] if name == part]
        found[f"{part}_s"] = length(spans) if spans else None
    reduces = [(each["began_s"], each["ended_s"]) for each in step["all_reduces"]]
    backward = [(began, ended) for name, began, ended in step["parts"] if name == "backward"]
    if not reduces:
        return found | {"all_reduce_s": None, "hidden_s": None, "waited_s": None}
    last_ready = max(began for began, _ in reduces)
    computing = [(began, min(ended, last_ready)) for began, ended in backward if began < last_ready]
    rounds = [each for reduced in step["all_reduces"] for each in reduced["rounds"]]
    return found | {
        "all_reduce_s": length(reduces),
        "hidden_s": 0.0 if is_blocking else overlap(reduces, computing),
        "waited_s": sum(met - written for _, written, met, *_ in rounds) if rounds else None,
    }


def numbers_of(ranks: Sequence[Mapping[str, Any]], *, is_blocking: bool) -> dict[str, Any]:
    """Return the mean of a step's numbers for each rank, and the share of all all-reduces that was hidden."""
    found = []
    for rank in ranks:
        steps = [numbers_of_step(step, is_blocking=is_blocking) for step in rank["steps"]]
        means = {name: _mean([step[name] for step in steps]) for name in (steps[0] if steps else ())}
        found.append({"rank": rank["rank"], **means})
    spent = sum(each.get("all_reduce_s") or 0.0 for each in found)
    hidden = sum(each.get("hidden_s") or 0.0 for each in found)
    return {"overlap": round(hidden / spent, 4) if spent > 0 else None, "ranks": found}


def worst_contradiction_s(ranks: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Return how many all-reduces all ranks have in common, and by how much one contradicts the clocks.

    None can end on a rank before it has begun on all of them: where it seems so, the clocks differ by at
    least that much.
    """
    num_checked, worst_s = 0, 0.0
    for same_step in zip(*(rank["steps"] for rank in ranks), strict=True):
        reduces = [step["all_reduces"] for step in same_step]
        if len({len(each) for each in reduces}) != 1:
            continue
        for same in zip(*reduces, strict=True):
            num_checked += 1
            began_s = max(each["began_s"] for each in same)
            worst_s = max(worst_s, began_s - min(each["ended_s"] for each in same))
    return num_checked, worst_s


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(values), 9) if known else None
