"""One event as one line of JSON: by orjson, ten times as fast, where it is installed and can say the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

try:
    import orjson
except ImportError:  # training runs without what the page needs
    orjson = None  # type: ignore[assignment]


def encode(event: Mapping[str, Any]) -> bytes:
    """Return the JSON of an event, without the end of the line.

    A number JSON has no word for (NaN, infinity) becomes null; a value it has no type for (a plugin's
    tensor, say) becomes its text, because an event must not be lost over it.
    """
    return _encode(event)


def encode_plainly(event: Mapping[str, Any]) -> bytes:
    """Do the same with what Python brings along."""
    try:
        text = _dump(event)
    except ValueError:
        text = _dump(_finite(event))
    # A lone surrogate (from a file name that is not UTF-8) becomes its JSON escape.
    return text.encode("utf-8", errors="backslashreplace")


def _encode_fast(event: Mapping[str, Any]) -> bytes:
    try:
        # What it would make more of than text is left to `str`, as Python's own does it.
        return orjson.dumps(event, default=str, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError:
        return encode_plainly(event)  # numbers of more than 64 bits, surrogates, keys that are no text


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


_encode: Callable[[Mapping[str, Any]], bytes] = encode_plainly if orjson is None else _encode_fast
