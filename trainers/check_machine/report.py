"""The file for a bug report: versions, what came of each check, and the logs of what failed."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from trainers.check_machine.checks.findings import SIGNS, Finding
from trainers.check_machine.table import value_in_words
from trainers.machine import hardware, processor

PACKAGES = ("torch", "triton", "numpy", "gradio", "plotly", "nvidia-ml-py", "psutil", "safetensors")
_LEAD = (
    "Check of this machine, for a bug report. Names, homes and values of the environment were taken out.\n"
    "Read it before you send it all the same."
)
_LINE = "=" * 78


def versions() -> dict[str, str | None]:
    """Return the versions of all software in use; None for what is not installed."""
    driver, cuda = hardware.driver_versions()
    found: dict[str, str | None] = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    found |= {"NVIDIA driver": driver, "CUDA of the driver": cuda, "Kernel": platform.release()}
    return found | {
        "System": _system(),
        "Processor": f"{processor.cpu_name()}, {processor.num_cores()} cores",
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform(terse=True)


def write(check: Mapping[str, Any], findings: list[Finding]) -> str:
    """Return the file's text; text from outside was already scrubbed."""
    started = datetime.fromtimestamp(check["started_unix_s"], tz=UTC)
    about = f"Checked {started:%Y-%m-%d %H:%M} UTC, {check['took_s']:.0f} s, on {check['device']}"
    at_work = [f"{name}: {version or 'none'}" for name, version in check["versions"].items()]
    parts = [
        _LEAD,
        f"{about}\n{check['summary']}",
        "\n".join(["VERSIONS", *at_work]),
        "\n".join(["CHECKS", *(_entry(finding) for finding in findings)]),
    ]
    parts += [f"LOGS OF: {finding.title}\n{finding.log}" for finding in findings if finding.log]
    return f"\n\n{_LINE}\n".join(parts) + "\n"


def _entry(finding: Finding) -> str:
    sign, words = SIGNS[finding.state]
    took = "" if finding.seconds is None else f" ({finding.seconds:.1f} s)"
    lines = [f"{sign} {words}: {finding.title}{took}", f"    {finding.words}"]
    lines += [f"    {value.name}: {value_in_words(value)}" for value in finding.values]
    lines += [f"    Compared with last time: {finding.compared}"] if finding.compared else []
    lines += [f"    What to do: {finding.hint}"] if finding.hint else []
    return "\n".join(lines)
