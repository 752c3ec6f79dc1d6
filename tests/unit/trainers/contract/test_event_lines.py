"""Both serializers write the same line for every event."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.contract import events
from trainers.contract.events import encode_event, encode_plainly

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(), max_size=8), VALUES, max_size=6))
@pytest.mark.slow
def test_both_write_the_same_and_one_line(event: Mapping[str, Any]) -> None:
    fast, plain = encode_event(event), encode_plainly(event)
    assert json.loads(fast) == json.loads(plain)
    assert b"\n" not in fast and b"\n" not in plain


class Odd:
    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize("write", [encode_event, encode_plainly])
@pytest.mark.parametrize(
    ("value", "read"),
    [
        (math.nan, None),
        (-math.inf, None),
        ([math.inf, {"a": math.nan}], [None, {"a": None}]),
        ((1, 2), [1, 2]),
        (Odd(), "odd"),
        (2**70, 2**70),
        ("a\nb\u2028", "a\nb\u2028"),
        ("\ud800", "\ud800"),
        (0.1, 0.1),
        (5e-324, 5e-324),
        (1.7976931348623157e308, 1.7976931348623157e308),
    ],
)
def test_what_json_has_no_word_for(write: Any, value: Any, read: Any) -> None:
    assert json.loads(write({"value": value})) == {"value": read}


def test_it_works_without_orjson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "orjson", None)
    assert encode_event({"seq": 0, "kind": "état"}) == '{"seq":0,"kind":"état"}'.encode()
