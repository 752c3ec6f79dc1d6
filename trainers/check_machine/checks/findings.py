"""The outcomes of the checks, and their findings, with duration and comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["waiting", "running", "passed", "failed", "not_checked", "skipped", "cancelled"]
Unit = Literal["s", "bytes/s", "loss"]

# Each state has a sign and a text, so that the meaning does not depend on colour alone.
SIGNS: Mapping[State, tuple[str, str]] = {
    "waiting": (" ", "waits"),
    "running": (" ", "is being checked"),
    "passed": ("✓", "passed"),
    "failed": ("✗", "failed"),
    "not_checked": ("?", "could not be checked"),
    "skipped": ("–", "skipped"),
    "cancelled": ("–", "cancelled"),
}

# Minimum change to report: smaller changes are noise on a machine that also does other work.
NOTEWORTHY_FACTOR = 1.3
# Units, with True if a larger value is faster. Other units have no direction.
MORE_IS_FASTER: Mapping[Unit, bool] = {"bytes/s": True, "s": False}


@dataclass(frozen=True, kw_only=True)
class Value:
    """One measured number. `is_compared`: True if it is compared with the number of the last check."""

    name: str
    value: float
    unit: Unit
    is_compared: bool = True


REPORT_HINT = "The file for a bug report contains the logs; docs/hangs-and-stop.md explains their messages."


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a check.

    Attributes:
        words: The result, as a sentence.
        detail: External text after the words, such as an error or a driver's message. Private data is
            removed, as in the log.
        hint: Remedy; empty if none is needed.
        values: Measured values.
        log: End of the processes' output; only for failures.
    """

    state: State = "waiting"
    words: str = ""
    detail: str = ""
    hint: str = ""
    values: tuple[Value, ...] = ()
    log: str = ""

    @staticmethod
    def passed(message: str, *, values: tuple[Value, ...] = (), hint: str = "") -> Outcome:
        """Return a passed check."""
        return Outcome(state="passed", words=message, values=values, hint=hint)

    @staticmethod
    def failed(message: str, hint: str, *, detail: str = "", log: str = "") -> Outcome:
        """Return a failed check with a remedy."""
        return Outcome(state="failed", words=message, detail=detail, hint=hint, log=log)

    @staticmethod
    def not_checked(message: str, hint: str = "") -> Outcome:
        """Return a check that could not be run."""
        return Outcome(state="not_checked", words=message, hint=hint)

    @staticmethod
    def skipped(message: str) -> Outcome:
        """Return a check that does not apply to this machine."""
        return Outcome(state="skipped", words=message)


@dataclass(frozen=True, kw_only=True)
class Finding(Outcome):
    """One check and its outcome.

    Attributes:
        seconds: Duration; None until the check has ended.
        compared: Comparison with the last check, as text; empty without a last check.
    """

    id: str
    title: str
    seconds: float | None = None
    compared: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON values, with `detail` appended to the words."""
        content = asdict(self)
        del content["detail"]
        return content


def all_passed(findings: Sequence[Finding]) -> bool:
    """True if all checks that apply to this machine passed."""
    return all(finding.state in ("passed", "skipped") for finding in findings)


def summary(findings: Sequence[Finding]) -> str:
    """Summarize all checks in a sentence."""
    count = {state: sum(finding.state == state for finding in findings) for state in ("passed", "failed")}
    num_not_checked = sum(finding.state in ("not_checked", "cancelled") for finding in findings)
    skipped = sum(finding.state == "skipped" for finding in findings)
    parts = [f"{count['passed']} passed"]
    parts += [f"{count['failed']} failed"] if count["failed"] else []
    parts += [f"{num_not_checked} could not be checked"] if num_not_checked else []
    parts += [f"{skipped} skipped because they do not apply"] if skipped else []
    return f"Of {len(findings)} checks {', '.join(parts)}."


def compare(finding: Finding, last: Mapping[str, Any] | None, *, are_times_comparable: bool) -> str:
    """Describe the difference between a finding and that of the last check.

    Args:
        last: The last finding as JSON; None if there was none.
        are_times_comparable: True if no run was active during either check.
    """
    ended = ("passed", "failed")
    if last is None or finding.state not in ended or last.get("state") not in ended:
        return ""
    if finding.state != last["state"]:
        return "passed last time" if last["state"] == "passed" else "failed last time"
    if finding.state == "failed":
        return "also failed last time"
    if not are_times_comparable:
        return "also passed last time"
    return _largest_change(finding.values, last) or "the same"


def _largest_change(values: Sequence[Value], last: Mapping[str, Any]) -> str:
    """Describe the measured value with the largest change; empty if the change is small."""
    last_values = {value.get("name"): value.get("value") for value in last.get("values", [])}
    changes = []
    for value in values:
        last_value = _positive(last_values.get(value.name))
        if value.is_compared and value.unit in MORE_IS_FASTER and last_value is not None and value.value > 0:
            ratio = value.value / last_value
            changes.append((max(ratio, 1 / ratio), (ratio > 1) == MORE_IS_FASTER[value.unit], value.name))
    factor, is_faster, name = max(changes, default=(1.0, True, ""))
    if factor < NOTEWORTHY_FACTOR:
        return ""
    return f"{name}: {factor:.1f} × {'faster' if is_faster else 'slower'}"


def _positive(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else None
