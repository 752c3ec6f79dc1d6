"""What one check came to, before it is written down with its time and compared."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.machine_check.findings import State, Value


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a check; the fields are those of a finding."""

    state: State
    words: str
    hint: str = ""
    values: tuple[Value, ...] = ()
    log: str = ""

    @staticmethod
    def passed(words: str, *, values: tuple[Value, ...] = (), hint: str = "") -> Outcome:
        """Return that it is as it should be."""
        return Outcome(state="passed", words=words, values=values, hint=hint)

    @staticmethod
    def failed(words: str, hint: str, *, values: tuple[Value, ...] = (), log: str = "") -> Outcome:
        """Return that it is not as it should be, and what to do."""
        return Outcome(state="failed", words=words, hint=hint, values=values, log=log)

    @staticmethod
    def not_checked(words: str, hint: str = "") -> Outcome:
        """Return that it could not be found out."""
        return Outcome(state="not_checked", words=words, hint=hint)

    @staticmethod
    def skipped(words: str) -> Outcome:
        """Return that there is nothing to check on this machine."""
        return Outcome(state="skipped", words=words)
