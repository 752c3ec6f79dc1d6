"""Tests of typed reading: values of every kind, and errors that name field, value and allowed values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from trainers.files import typed
from trainers.files.typed import Count, FieldError, Limit, Parse


@dataclass(frozen=True, kw_only=True)
class Part:
    """An object inside of another."""

    name: Annotated[str, Limit(least=1, most=5)]
    share: float = 0.0

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ValueError("name must not be bad")


@dataclass(frozen=True, kw_only=True)
class Everything:
    """A field of each kind."""

    count: Count
    state: Literal["on", "off"] = "on"
    limit: Annotated[int, Limit(low=1, high=20)] | None = None
    is_on: bool = False
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part] = field(default_factory=dict)
    by_rank: dict[int, str] = field(default_factory=dict)
    point: tuple[str, float] = ("", 0.0)
    handle: str | Mapping[str, Any] | None = None
    numbers: Annotated[list[float | None], Limit(most=3)] = field(default_factory=list)


def test_values_of_each_kind_are_read() -> None:
    found = typed.read(
        Everything,
        {
            "count": 2**53 - 1,
            "state": "off",
            "limit": None,
            "parts": [{"name": "a", "share": 1}],
            "by_name": {"x": {"name": "b"}},
            "by_rank": {"7": "seven"},
            "point": ["p", 2],
            "handle": {"pid": 1},
            "numbers": [1, None, 0.5],
        },
    )
    assert found.parts == (Part(name="a", share=1.0),) and found.by_name == {"x": Part(name="b")}
    assert found.by_rank == {7: "seven"} and found.point == ("p", 2.0) and found.numbers == [1.0, None, 0.5]
    assert typed.read(Everything, {"count": 0, "later": 1}, ignores_unknown=True) == Everything(count=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": True}, "count is True; allowed: a whole number from 0 to 9,007,199,254,740,991"),
        ({"count": 1.0}, "count is 1.0; allowed: a whole number from 0"),
        ({"state": "auto"}, "state is 'auto'; allowed: one of on, off"),
        ({"state": ["on"]}, "state is ['on']; allowed: one of on, off"),
        ({"limit": 21}, "limit is 21; allowed: a whole number from 1 to 20 or null"),
        ({"parts": [{"name": "a"}, {"name": ""}]}, "parts[1].name is ''; allowed: a text of 1 to 5"),
        ({"parts": [{}]}, "parts[0].name is missing; allowed: a text of 1 to 5"),
        ({"parts": [{"name": "bad"}]}, "parts[0]: name must not be bad"),
        ({"parts": [{"name": "a", "x": 1}]}, "'parts[0].x' is not a field; allowed: name, share"),
        ({"by_name": {"k": 3}}, "by_name.k is 3; allowed: an object"),
        ({"by_rank": {"first": "x"}}, "by_rank is {'first': 'x'}; allowed: an object"),
        ({"point": ["p"]}, "point is ['p']; allowed: a list"),
        ({"handle": 3}, "handle is 3; allowed: a text or an object or null"),
        ({"numbers": [0, math.nan]}, "numbers[1] is nan; allowed: a number or null"),
        ({"numbers": [0] * 4}, "numbers is [0, 0, 0, 0]; allowed: a list of at most 3, each a number"),
    ],
)
def test_errors_name_field_value_and_allowed_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError) as refused:
        typed.read(Everything, {"count": 1} | values)
    assert str(refused.value).startswith(message) and len(str(refused.value)) < 250


def test_a_value_that_is_no_object_is_refused() -> None:
    for value in (None, [], "x", 3):
        assert not typed.fits(Everything, value)
    with pytest.raises(FieldError, match="the value is None; allowed: an object"):
        typed.read(Everything, None)


def test_a_hostile_value_costs_no_long_message() -> None:
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    for value in (deep, "\ud800" * 10**6, {"x": deep}, 10**4_000):
        with pytest.raises(FieldError) as refused:
            typed.read(Everything, {"count": value})
        assert len(str(refused.value)) < 250 and str(refused.value).isprintable()


def test_a_value_is_made_of_another_one_and_the_reason_why_not_has_its_path() -> None:
    def half(value: int) -> float:
        if value % 2:
            raise ValueError("it is odd")
        return value / 2

    reader = typed.reader_of(list[Annotated[float, Parse(int, half)]])
    assert reader([2, 4]) == [1.0, 2.0]
    with pytest.raises(FieldError, match=r"^\[1\]: it is odd$"):
        reader([2, 3])
    with pytest.raises(FieldError, match=r"^\[0\] is 'a'; allowed: a whole number$"):
        reader(["a"])
