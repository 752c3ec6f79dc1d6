"""What a live run can be asked: each command with its arguments, and the page's words for it.

What the ranks do then is a handler in `trainers/control.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trainers.contract import config


@dataclass(frozen=True, kw_only=True)
class Command:
    """What was asked, as all ranks know it; only rank 0 knows the `id` and `why`.

    Every argument of a command is a field here.
    """

    name: str
    save: bool = True
    learning_rate: float = 0.0
    id: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """An argument that is yes or no.

    `read` takes it from a line of `commands.jsonl`, `checked` from a person.
    """

    name: str
    default: bool
    kind: ClassVar[type] = bool

    def read(self, raw: Mapping[str, Any]) -> bool:
        return bool(raw.get(self.name, self.default))

    def checked(self, value: Any) -> bool:
        return bool(value)


@dataclass(frozen=True, kw_only=True)
class PositiveNumber:
    """An argument that must be given; a person's is checked as the field of the configuration of its name."""

    name: str
    kind: ClassVar[type] = float
    default: ClassVar[None] = None

    def read(self, raw: Mapping[str, Any]) -> float:
        number = float(raw[self.name])
        if not 0 < number < math.inf:
            raise ValueError(f"{self.name} is {number!r}, but allowed is: a number above 0")
        return number

    def checked(self, value: Any) -> float:
        return float(getattr(config.parse({self.name: value}), self.name))


Argument = Switch | PositiveNumber


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """How the page offers a command that it only has to send.

    Attributes:
        help: what it does, for whoever lists the endpoints.
        answer: what the page says when it was sent; the arguments are known in it.
    """

    name: str
    help: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A command; without an endpoint, the page does more than send it and has a method of its own."""

    arguments: tuple[Argument, ...] = ()
    endpoint: Endpoint | None = None


COMMANDS: dict[str, Definition] = {
    "stop": Definition(arguments=(Switch(name="save", default=True),)),
    "checkpoint": Definition(
        endpoint=Endpoint(
            name="checkpoint_run",
            help="Ask a run to save a checkpoint and go on.",
            answer="Saving a checkpoint; training goes on.",
        )
    ),
    "pause": Definition(
        endpoint=Endpoint(
            name="pause_run",
            help="Ask a run to wait at the next step.",
            answer="Pausing at the next step that all ranks agree on.",
        )
    ),
    "resume": Definition(),
    "set_lr": Definition(
        arguments=(PositiveNumber(name="learning_rate"),),
        endpoint=Endpoint(
            name="set_learning_rate",
            help="Change the rate of a run that is going on; a schedule goes on from it as its full rate.",
            answer="Setting the learning rate to {learning_rate:g}.",
        ),
    ),
}
COMMAND_NAMES: tuple[str, ...] = tuple(COMMANDS)
_ARGUMENTS = {argument.name: argument for each in COMMANDS.values() for argument in each.arguments}
NUM_SENT = 1 + len(_ARGUMENTS)


def parse(raw: Any) -> Command:
    """Return the command of a line of `commands.jsonl`.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, OverflowError: when it is none.
    """
    name = raw["name"]
    if name not in COMMAND_NAMES:
        raise ValueError(f"no command is called {name!r}; there are {', '.join(COMMAND_NAMES)}")
    arguments: dict[str, Any] = {each.name: each.read(raw) for each in COMMANDS[name].arguments}
    return Command(name=name, id=str(raw["id"]), why=str(raw.get("why", "")), **arguments)


def to_numbers(command: Command | None) -> list[float]:
    """Return what travels between the ranks: which command, and all arguments that there are."""
    if command is None:
        return [0.0] * NUM_SENT
    number = 1 + COMMAND_NAMES.index(command.name)
    return [float(number), *(float(getattr(command, name)) for name in _ARGUMENTS)]


def from_numbers(numbers: Sequence[float]) -> Command | None:
    """Return the command that these numbers are."""
    number, *values = numbers
    if number == 0:
        return None
    given = dict(zip(_ARGUMENTS, values, strict=True))
    switches = {name: bool(given[name]) for name, each in _ARGUMENTS.items() if isinstance(each, Switch)}
    arguments: dict[str, Any] = given | switches
    return Command(name=COMMAND_NAMES[int(number) - 1], **arguments)
