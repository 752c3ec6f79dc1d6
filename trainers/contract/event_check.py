"""Tells whole events from damaged ones: what a crash or a hand made of a line is left out, not obeyed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from trainers.files.json_files import is_shallow, parse_json

Check = Callable[[Any], bool]


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the event of one line of the file; None if it is damaged or above the limits of JSON."""
    try:
        value = parse_json(line)
    except ValueError:
        return None
    return value if is_whole(value) else None


def is_whole(value: Any) -> bool:
    """Tell whether a value has what everybody who reads events relies on.

    A kind that is not known here passes (a newer version may have more of them), and so does a field that
    is missing because an earlier version did not write it.
    """
    if not (_has(value, _COMMON) and _has(value, _ESSENTIAL.get(value["kind"], {}))):
        return False
    return all(_FURTHER[name](value[name]) for name in _FURTHER.keys() & value.keys()) and is_shallow(value)


def _has(value: Any, fields: Mapping[str, Check]) -> bool:
    return isinstance(value, dict) and all(
        name in value and is_right(value[name]) for name, is_right in fields.items()
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _is_step(value: Any) -> bool:
    return _is_count(value) and 1 <= value < 2**53  # as far as a browser counts


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_metrics(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number_or_none, value.values()))


def _are_of_ranks(value: Any) -> bool:
    return isinstance(value, list) and all(
        _has(item, {"rank": _is_count}) and all(map(_is_plain, item.values())) for item in value
    )


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | bool) or _is_number_or_none(value)


def _is_dealing(value: Any) -> bool:
    counts = dict.fromkeys(("step", "epoch", "samples_in_epoch"), _is_count)
    return _has(value, counts | dict.fromkeys(("batch_size", "num_accumulated", "num_replicas"), _is_step))


def _is_trivial(value: Any) -> bool:
    texts, numbers = ("predictor", "metric"), ("value", "standard_error", "loss")
    return _has(
        value,
        dict.fromkeys(texts, _is_text)
        | dict.fromkeys(numbers, _is_number)
        | {"answer": _is_plain, "inputs_differ": lambda differ: isinstance(differ, bool)},
    ) and _is_number(value.get("train_loss", 0.0))  # it was added later


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_list_of(is_right: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(is_right, value))


def _or_none(is_right: Check) -> Check:
    return lambda value: value is None or is_right(value)


_COMMON: Mapping[str, Check] = {"seq": _is_count, "time_unix_s": _is_number, "kind": _is_text}
_WORDS: Mapping[str, Check] = {"code": _is_text, "message": _is_text, "hint": _is_text_or_none}
_ESSENTIAL: Mapping[str, Mapping[str, Check]] = {
    "state": {"state": _is_text, "reason": _is_text},
    "plan": {"num_train": _is_count, "num_steps": _is_count},
    "step": {
        "step": _is_step,
        "epoch": _is_count,
        **dict.fromkeys(
            ("loss", "lr", "grad_norm", "samples_per_s", "step_time_s", "data_time_s"), _is_number_or_none
        ),
    },
    "eval": {"step": _is_count, "loss": _is_number_or_none, "metrics": _are_metrics},
    "devices": {"devices": _are_of_ranks},
    "ranks": {"ranks": _are_of_ranks},
    "checkpoint": {"step": _is_count},
    "command": {"id": _is_text, "name": _is_text},
    "warning": _WORDS,
    "error": _WORDS,
    "sample": {"step": _is_count},
    "fingerprints": {
        "step": _is_step,
        "hashes": lambda value: _is_list_of(_is_text)(value) and len(value) > 0,
        "distances": _is_list_of(_is_number_or_none),
    },
    "recording": {"step": _is_step, "num_steps": _is_count},
}
# Not every version writes these; where one is there, it is of this kind, whatever the event's.
_FURTHER: Mapping[str, Check] = {
    **dict.fromkeys(
        ("num_validation", "num_parameters", "global_batch", "steps_per_epoch"), _is_count_or_none
    ),
    **dict.fromkeys(("epoch", "step", "rank"), _is_count_or_none),
    **dict.fromkeys(
        ("size_bytes", "duration_s", "stall_s", "others_cpu_percent", "idle_cpu_percent"), _is_number_or_none
    ),
    **dict.fromkeys(
        ("reason", "message", "path", "hint", "traceback", "type", "all_reduce"), _is_text_or_none
    ),
    "arguments": _or_none(lambda value: isinstance(value, dict) and all(map(_is_plain, value.values()))),
    "dealing": _or_none(_is_dealing),
    "trivial": _or_none(_is_trivial),
    "class_names": _or_none(_is_list_of(_is_text)),
    "confusion": _or_none(_is_list_of(_is_list_of(_is_number))),
    "removed": _or_none(_is_list_of(_is_count)),
    "accepted": lambda value: value is None or isinstance(value, bool),
}
