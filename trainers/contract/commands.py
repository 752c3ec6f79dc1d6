"""Commands to a run."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trainers.contract import config
from trainers.files.json_files import parse_json, read_lines
from trainers.files.private_files import ForeignFileError, open_own

MAX_RECORDED_STEPS = 20
MAX_RANKS = 2**20
MAX_DELAY_MS = 1000


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command as all ranks know it; only rank 0 knows `id`, `why` and `time_unix_s` (0: unknown).

    Every argument of every command is a field.
    """

    name: str
    save: bool = True
    anyway: bool = False
    learning_rate: float = 0.0
    num_steps: int = 0
    rank: int = 0
    delay_ms: int = 0
    id: str = ""
    why: str = ""
    time_unix_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A boolean argument.

    `read` parses it from a line of `commands.jsonl`; `validate` validates a user's value.
    """

    name: str
    default: bool
    kind: ClassVar[type] = bool

    def read(self, raw: Mapping[str, Any]) -> bool:
        return bool(raw.get(self.name, self.default))

    def validate(self, value: Any) -> bool:
        return bool(value)


@dataclass(frozen=True, kw_only=True)
class PositiveNumber:
    """A required positive number, validated like the configuration field of the same name."""

    name: str
    kind: ClassVar[type] = float
    default: ClassVar[None] = None

    def read(self, raw: Mapping[str, Any]) -> float:
        number = float(raw[self.name])
        if not 0 < number < math.inf:
            raise ValueError(f"{self.name} is {number!r}; allowed: a number above 0")
        return number

    def validate(self, value: Any) -> float:
        return float(getattr(config.parse({self.name: value}), self.name))


@dataclass(frozen=True, kw_only=True)
class WholeNumber:
    """An integer argument from `minimum` to `maximum`; required if it has no default."""

    name: str
    maximum: int
    minimum: int = 1
    default: int | None = None
    kind: ClassVar[type] = int

    def read(self, raw: Mapping[str, Any]) -> int:
        return self.validate(raw.get(self.name, self.default))

    def validate(self, value: Any) -> int:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not self.minimum <= value <= self.maximum or not float(value).is_integer():
            allowed = f"a whole number from {self.minimum:,} to {self.maximum:,}"
            raise ValueError(f"{self.name} is {value!r:.80}; allowed: {allowed}")
        return int(value)


Argument = Switch | PositiveNumber | WholeNumber


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Texts of a command that the page only passes on to the run.

    Attributes:
        help: description for the list of endpoints.
        answer: the page's message after sending; a format string that may use the arguments.
    """

    name: str
    help: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A command. Without an endpoint, a hand-written method of the page sends it."""

    arguments: tuple[Argument, ...] = ()
    endpoint: Endpoint | None = None


COMMANDS: dict[str, Definition] = {
    "stop": Definition(arguments=(Switch(name="save", default=True), Switch(name="anyway", default=False))),
    "checkpoint": Definition(
        endpoint=Endpoint(
            name="checkpoint_run",
            help="Ask a run to save a checkpoint and continue.",
            answer="Saving a checkpoint; training continues.",
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
            help="Change the learning rate of a live run; its schedule continues with this peak rate.",
            answer="Setting the learning rate to {learning_rate:g}.",
        ),
    ),
    "record": Definition(
        arguments=(WholeNumber(name="num_steps", default=3, maximum=MAX_RECORDED_STEPS),),
        endpoint=Endpoint(
            name="record_steps",
            help="Ask a run to record some of its steps on all ranks, part by part.",
            answer="Recording starts at the next step that all ranks agree on; number of steps: {num_steps}.",
        ),
    ),
    "slow_rank": Definition(
        arguments=(
            WholeNumber(name="rank", minimum=0, maximum=MAX_RANKS),
            WholeNumber(name="delay_ms", minimum=0, maximum=MAX_DELAY_MS),
        ),
        endpoint=Endpoint(
            name="slow_rank",
            help="Make a rank of a live run sleep for this time in each step, to see which ranks wait; 0 "
            "ends it.",
            answer="Rank {rank} will sleep {delay_ms} ms in each step.",
        ),
    ),
}
COMMAND_NAMES: tuple[str, ...] = tuple(COMMANDS)
_ARGUMENTS = {argument.name: argument for command in COMMANDS.values() for argument in command.arguments}
NUM_SENT = 1 + len(_ARGUMENTS)


def parse(raw: Any) -> Command:
    """Return the command of a line of `commands.jsonl`.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, OverflowError: if it is not a valid command.
    """
    name = raw["name"]
    if name not in COMMAND_NAMES:
        raise ValueError(f"there is no command {name!r}; the commands are {', '.join(COMMAND_NAMES)}")
    arguments: dict[str, Any] = {argument.name: argument.read(raw) for argument in COMMANDS[name].arguments}
    sent_unix_s = float(raw.get("time_unix_s", 0.0))
    reason = str(raw.get("why", ""))
    return Command(name=name, id=str(raw["id"]), why=reason, time_unix_s=sent_unix_s, **arguments)


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A line that is not a valid command; `id` and `name` are empty if the line has none."""

    message: str
    hint: str = "It was ignored."
    id: str = ""
    name: str = ""


class Incoming:
    """Reads the commands that are appended to a run's file.

    Args:
        offset: those from this byte on; None: those that are sent from now on.

    Attributes:
        offset: those before this byte have been read.
    """

    def __init__(self, path: Path, offset: int | None = None) -> None:
        self._path = path
        self.offset = (path.stat().st_size if path.exists() else 0) if offset is None else offset

    def stops(self) -> list[Command]:
        """Return the new requests to stop, for a process that ends the ranks; rank 0 answers all commands."""
        return [command for command in self.read() if isinstance(command, Command) and command.name == "stop"]

    def read(self) -> Iterator[Command | Unreadable]:
        """Yield the new commands, oldest first.

        Raises:
            OSError: if the file exists and cannot be read.
        """
        try:
            if self._path.stat().st_size <= self.offset:
                return
            with open_own(self._path) as file:
                lines, end = read_lines(file, self.offset)
        except FileNotFoundError:
            return
        except ForeignFileError as error:
            self.offset = sys.maxsize  # report it only once
            message, hint = f"Commands cannot be read: {error}.", "To stop the run, end its processes."
            yield Unreadable(message=message, hint=hint)
            return
        if end > self.offset and not lines:
            yield Unreadable(message="A command could not be read: its line is too long.")
        self.offset = end
        yield from map(_parse_line, lines.splitlines())


def _parse_line(line: bytes) -> Command | Unreadable:
    raw: Any = {}
    try:
        raw = parse_json(line)
        return parse(raw)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        message = f"A command could not be read: {error}"
        if not isinstance(raw, dict) or "id" not in raw:
            return Unreadable(message=message)
        return Unreadable(message=message, id=str(raw["id"]), name=str(raw.get("name")))


def arguments_of(command: Command) -> dict[str, Any]:
    """Return a command's arguments by name."""
    return {argument.name: getattr(command, argument.name) for argument in COMMANDS[command.name].arguments}


def to_numbers(command: Command | None) -> list[float]:
    """Return a command as numbers for a collective: its index (from 1; 0: no command) and all arguments."""
    if command is None:
        return [0.0] * NUM_SENT
    number = 1 + COMMAND_NAMES.index(command.name)
    return [float(number), *(float(getattr(command, name)) for name in _ARGUMENTS)]


def from_numbers(numbers: Sequence[float]) -> Command | None:
    """Return the command that `to_numbers` encoded."""
    number, *values = numbers
    if number == 0:
        return None
    number_by_name = dict(zip(_ARGUMENTS, values, strict=True))
    arguments: dict[str, Any] = {
        name: argument.kind(number_by_name[name]) for name, argument in _ARGUMENTS.items()
    }
    return Command(name=COMMAND_NAMES[int(number) - 1], **arguments)
