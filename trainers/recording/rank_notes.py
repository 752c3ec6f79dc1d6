"""What one rank noted of the recorded steps, as JSON that travels to rank 0; moments in nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from trainers.parallel.gradient_buckets import Averaged, Bucket, Round
from trainers.recording.moments import Moments
from trainers.recording.observer import NotedStep
from trainers.recording.profiled import Collective

Part = tuple[str, int, int]


def of(
    steps: Sequence[NotedStep],
    moments: Moments,
    *,
    averaged: Sequence[Averaged],
    collectives: Sequence[Collective],
    buckets: Sequence[Bucket],
) -> dict[str, Any]:
    """Return `steps`, each with its parts, all-reduces of buckets and other collectives, and `buckets`.

    Args:
        averaged: the all-reduces of a strategy that notes them itself.
        collectives, buckets: where it does not: what the profiler says, and what DDP averages in one step.
    """
    known = list(dict.fromkeys(each.bucket for each in averaged)) or list(buckets)
    return {
        "steps": [_step(step, moments, averaged, collectives, known) for step in steps],
        "algorithms": sorted(
            {each.algorithm for each in collectives if each.is_all_reduce and each.algorithm}
        ),
        "buckets": [[list(parameter) for parameter in bucket.parameters] for bucket in known],
    }


def _step(
    noted: NotedStep,
    moments: Moments,
    averaged: Iterable[Averaged],
    collectives: Iterable[Collective],
    buckets: Sequence[Bucket],
) -> dict[str, Any]:
    when = [moments.when_ns(noted.began), *(moments.when_ns(moment) for _, moment in noted.marks)]
    names = [part for part, _ in noted.marks]
    parts = [(name, began, ended) for name, (began, ended) in zip(names, pairwise(when), strict=True)]
    began, ended = when[0], when[-1]
    reduces = [
        _reduced(buckets.index(each.bucket), each.began_ns, each.ended_ns, each.rounds)
        for each in averaged
        if began <= each.began_ns < ended
    ]
    inside = [each for each in collectives if began <= each.began_ns < ended]
    if not reduces and (matched := _matched(inside, parts, buckets)):
        # Backward waits for all of them; gloo's thread may say a moment later that one is over.
        over_ns = max(ended for name, _, ended in parts if name == "backward")
        reduces = [
            _reduced(place, each.began_ns, min(each.ended_ns, over_ns), ())
            for place, each in enumerate(matched)
        ]
        inside = [each for each in inside if each not in matched]
    return {
        "step": noted.step,
        "began": began,
        "ended": ended,
        "parts": [list(part) for part in parts],
        "all_reduces": reduces,
        "collectives": [[each.name, each.began_ns, each.ended_ns, each.num_bytes] for each in inside],
    }


def _matched(
    collectives: Iterable[Collective], parts: Iterable[Part], buckets: Sequence[Bucket]
) -> list[Collective]:
    """Return the all-reduce of each bucket; none where what began in backward is not one for each.

    DDP begins them in the order of its buckets, and nothing else is averaged while it goes backward.
    """
    spans = [(began, ended) for name, began, ended in parts if name == "backward"]
    found = [
        each
        for each in collectives
        if each.is_all_reduce and any(began <= each.began_ns < ended for began, ended in spans)
    ]
    return found if len(found) == len(buckets) else []


def _reduced(bucket: int, began_ns: int, ended_ns: int, rounds: Sequence[Round]) -> Mapping[str, Any]:
    return {
        "bucket": bucket,
        "began": began_ns,
        "ended": ended_ns,
        "rounds": [
            [each.began_ns, each.written_ns, each.met_ns, each.ended_ns, each.num_bytes] for each in rounds
        ],
    }
