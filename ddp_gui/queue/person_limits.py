"""Limits per person, set by a teacher; by default there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

MAX_NAME_LENGTH = 100


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one person; None is no limit.

    Attributes:
        num_ranks: GPUs and CPU ranks at once, over all live runs.
        minutes_per_run: after this time a run is stopped, with a save.
        disk_bytes: of all stored runs; above it no new run is started.
        num_waiting: runs in the queue.
    """

    num_ranks: int | None = None
    minutes_per_run: float | None = None
    disk_bytes: int | None = None
    num_waiting: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the limits as JSON values."""
        return asdict(self)


NO_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The limits of everybody, and of people with limits of their own."""

    everybody: Limits = NO_LIMITS
    people: Mapping[str, Limits] = field(default_factory=dict)

    def of(self, person: str) -> Limits:
        """Return the limits of a person."""
        return self.people.get(person, self.everybody)

    @property
    def limit_time(self) -> bool:
        """Whether any run has a time limit."""
        return any(each.minutes_per_run is not None for each in (self.everybody, *self.people.values()))

    def changed(self, person: str | None, limits: Limits | None) -> Rules:
        """Return the rules with other limits for a person, or for everybody; None removes a person's."""
        if person is None:
            return Rules(everybody=limits or NO_LIMITS, people=self.people)
        others = {name: each for name, each in self.people.items() if name != person}
        return Rules(everybody=self.everybody, people=others if limits is None else others | {person: limits})

    def to_json(self) -> dict[str, Any]:
        """Return the rules as JSON values."""
        people = {name: limits.to_json() for name, limits in sorted(self.people.items())}
        return {"everybody": self.everybody.to_json(), "people": people}


def parse(raw: Any) -> Limits:
    """Return limits from a JSON object; fields left out, null and empty are no limit.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    names = [each.name for each in fields(Limits)]
    if not isinstance(raw, Mapping):
        raise ValueError(f"limits is {raw!r:.80}, but allowed is: an object with {', '.join(names)}")
    unknown = sorted(set(raw) - set(names))
    if unknown:
        raise ValueError(f"{unknown[0]!r:.80} is no limit; allowed is: {', '.join(names)}")
    minutes = _number("minutes_per_run", raw.get("minutes_per_run"))
    whole = {name: _number(name, raw.get(name)) for name in names if name != "minutes_per_run"}
    for name, value in whole.items():
        if value is not None and value != int(value):
            raise ValueError(f"{name} is {value}, but allowed is: a whole number above 0, or null")
    return Limits(
        minutes_per_run=minutes,
        **{name: None if value is None else int(value) for name, value in whole.items()},
    )


def parse_rules(raw: Any) -> Rules:
    """Return the rules from their stored form.

    Raises:
        ValueError: when they are invalid.
    """
    if not isinstance(raw, Mapping) or not isinstance(raw.get("people"), Mapping):
        raise ValueError("the limits make no sense")
    people = {str(name): parse(limits) for name, limits in raw["people"].items()}
    return Rules(everybody=parse(raw.get("everybody")), people=people)


def checked_name(name: Any) -> str | None:
    """Return the name of a person whose limits are set; None is everybody.

    Raises:
        ValueError: when it is not a valid account name.
    """
    if name is None or name == "":
        return None
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(
            f"person is {str(name)[:80]!r}, but allowed is: a person's name, or null for everybody"
        )
    return name


def _number(name: str, value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not 0 < number < 1e18:
        raise ValueError(f"{name} is {value!r:.80}, but allowed is: a number above 0, or null for no limit")
    return number
