"""The outcome of one check, before it becomes a finding with duration and comparison."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.check_machine.checks.findings import State, Value

REPORT_HINT = "The file for a bug report holds the logs; docs/hangs-and-stop.md explains their messages."


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a check; the fields are those of a finding.

    Attributes:
        said: External text, shown after the words: an error or a driver's message. Scrubbed, like the log.
    """

    state: State
    words: str
    said: str = ""
    hint: str = ""
    values: tuple[Value, ...] = ()
    log: str = ""

    @staticmethod
    def passed(words: str, *, values: tuple[Value, ...] = (), hint: str = "") -> Outcome:
        """Return a passed check."""
        return Outcome(state="passed", words=words, values=values, hint=hint)

    @staticmethod
    def failed(words: str, hint: str, *, said: str = "", log: str = "") -> Outcome:
        """Return a failed check with a remedy."""
        return Outcome(state="failed", words=words, said=said, hint=hint, log=log)

    @staticmethod
    def not_checked(words: str, hint: str = "") -> Outcome:
        """Return a check that could not be run."""
        return Outcome(state="not_checked", words=words, hint=hint)

    @staticmethod
    def skipped(words: str) -> Outcome:
        """Return a check that does not apply to this machine."""
        return Outcome(state="skipped", words=words)
