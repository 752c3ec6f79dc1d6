"""Problems found in a user's data: faults, which prevent training, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_SHOWN = 50
MAX_VALUE = 60
MAX_WHERE = 300


@dataclass(frozen=True, kw_only=True)
class DataProblem:
    """One fault or note.

    Attributes:
        where: the file, folder, class or column.
        line: line number in a text or table, counted from 1.
        hint: advice for the user.
        is_fatal: True if the data cannot be used.
        num_to_leave_out: number of unreadable samples without which the data can be used, or 0.
        suggested: configuration values that may help; for `data_reading`, only the changes.
        action: text of the button that applies `suggested`.
        package: name of a missing package for `/install_data_set`.
    """

    where: str
    message: str
    hint: str = ""
    line: int | None = None
    is_fatal: bool = True
    num_to_leave_out: int = 0
    suggested: Mapping[str, str] = field(default_factory=dict)
    action: str = ""
    package: str = ""

    def __str__(self) -> str:
        line = f", line {self.line:,}" if self.line else ""
        return f"{self.where}{line}: {self.message} {self.hint}".strip()


class DataError(ValueError):
    """The data cannot be used; the message lists the faults."""

    def __init__(self, path: str, problems: Sequence[DataProblem], num_problems: int) -> None:
        self.problems = tuple(problems)
        self.num_problems = num_problems
        count = "a fault" if num_problems == 1 else f"{num_problems:,} faults"
        lines = [f"your data at {path} cannot be used; it has {count}:"]
        lines += [f"- {problem}" for problem in problems]
        if num_problems > len(problems):
            lines.append(f"- and {num_problems - len(problems):,} more")
        super().__init__("\n".join(lines))

    @classmethod
    def of(cls, path: str, location: str, message: str, hint: str) -> DataError:
        """Return an error with one fault."""
        return cls(path, [DataProblem(where=location, message=message, hint=hint)], 1)


class Problems:
    """Collects problems: counts all of them and keeps the first ones, faults before notes."""

    def __init__(self) -> None:
        self._faults: list[DataProblem] = []
        self._notes: list[DataProblem] = []
        self.num_faults = 0
        self.num_notes = 0
        self.num_to_leave_out = 0

    @property
    def num_problems(self) -> int:
        return self.num_faults + self.num_notes

    @property
    def is_full(self) -> bool:
        """True if further problems would not be shown."""
        return min(self.num_faults, self.num_notes) >= MAX_SHOWN

    @property
    def shown(self) -> list[DataProblem]:
        return [*self._faults, *self._notes][:MAX_SHOWN]

    def fault(
        self, location: str, message: str, hint: str, *, num_to_leave_out: int = 0, **more: Any
    ) -> None:
        """Record a fault, which makes the data unusable.

        Args:
            more: other attributes of `DataProblem`; None if one does not apply.
        """
        self.num_faults += 1
        self.num_to_leave_out += num_to_leave_out
        more["num_to_leave_out"] = num_to_leave_out
        _add(self._faults, location, message=message, hint=hint, **more)

    def note(self, location: str, message: str, hint: str = "", **more: Any) -> None:
        """Record something that the user should know but can leave; arguments as for `fault`."""
        self.num_notes += 1
        _add(self._notes, location, message=message, hint=hint, is_fatal=False, **more)

    def unreadable(
        self,
        location: str,
        message: str,
        hint: str,
        *,
        skip: bool,
        line: int | None = None,
        num_samples: int = 1,
        **more: Any,
    ) -> None:
        """Record unreadable samples: a note if they may be left out, else a fault."""
        if skip:
            self.note(location, message, "It is left out.", line=line)
        else:
            hint = f"{hint} Or choose to leave out unreadable samples."
            self.fault(location, message, hint, line=line, num_to_leave_out=num_samples, **more)

    def add(self, others: Problems) -> None:
        """Add the problems of another collection that has fewer than `MAX_SHOWN`."""
        self._faults += others._faults
        self._notes += others._notes
        self.num_faults += others.num_faults
        self.num_notes += others.num_notes
        self.num_to_leave_out += others.num_to_leave_out

    def check(self, path: str) -> None:
        """Raise `DataError` if there are faults.

        Raises:
            DataError: lists the faults.
        """
        if self.num_faults:
            raise DataError(path, self._faults, self.num_faults)


def _add(to: list[DataProblem], location: str, **info: Any) -> None:
    if len(to) < MAX_SHOWN:
        given = {name: value for name, value in info.items() if value is not None}
        to.append(DataProblem(where=_shown(location), **given))


def quoted(value: str) -> str:
    """Return a value of the data for a message: shortened, in quotes, without line breaks."""
    return f"'{_shown(value, MAX_VALUE)}'"


def _shown(value: str, maximum: int = MAX_WHERE) -> str:
    """Return a text of the data as one short line; non-printable characters become dots."""
    short = value if len(value) <= maximum else value[: maximum - 1] + "…"
    # Lone surrogates are bytes of file names that are not UTF-8; `visible` marks them.
    return "".join(x if x.isprintable() or "\ud800" <= x <= "\udfff" else "·" for x in short)


def listed(items: Sequence[object], maximum: int = 5) -> str:
    """Return the first items of a list as text."""
    words = ", ".join(f"{item:,}" if isinstance(item, int) else str(item) for item in items[:maximum])
    return words if len(items) <= maximum else f"{words} and {len(items) - maximum:,} more"
