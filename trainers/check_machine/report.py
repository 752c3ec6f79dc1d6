"""The report of the machine check, without names and paths, for bug reports."""

from __future__ import annotations

import contextlib
import importlib.metadata
import ipaddress
import os
import platform
import pwd
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainers.check_machine.checks.findings import SIGNS, Finding, Value
from trainers.files.plain_files import REPOSITORY
from trainers.machine import host as host_module
from trainers.machine import nvml

_TITLE_WIDTH = 44
_STATE_WIDTH = 21


def line(finding: Finding) -> str:
    """Return the lines of one finding: state, title, duration, texts and values."""
    sign, state_text = SIGNS[finding.state]
    duration = "" if finding.seconds is None else f"{finding.seconds:.1f} s"
    first = f"{sign} {state_text:<{_STATE_WIDTH}}{finding.title:<{_TITLE_WIDTH}}{duration:>8}"
    measured = ", ".join(f"{value.name}: {value_text(value)}" for value in finding.values)
    details = [text for text in (finding.words, measured) if text]
    if finding.compared:
        details.append(f"Compared with the last check: {finding.compared}")
    if finding.hint:
        details.append(f"What to do: {finding.hint}")
    return "\n".join([first, *(f"    {text}" for text in details)])


def value_text(value: Value) -> str:
    """Return a measured number with its unit."""
    if value.unit == "s":
        return f"{value.value * 1e3:.2g} ms" if value.value < 0.1 else f"{value.value:.1f} s"
    if value.unit == "bytes/s":
        large = value.value >= 1e9
        return f"{value.value / 1e9:.1f} GB/s" if large else f"{value.value / 1e6:.0f} MB/s"
    return f"{value.value:.2g}"


# Minimum length of values to remove: shorter values are common words such as "1", "xterm" or "cpu".
SHORTEST_VALUE = 6
SHORTEST_NAME = 2
# Words that identify no one: standard accounts, and common words in logs.
ACCOUNTS = ("admin", "debian", "docker", "ec2-user", "fedora", "nobody", "root", "runner", "ubuntu", "user")
WORDS = ("cpu", "cuda", "gpu", "linux", "localhost", "python", "rank", "torch")
NOBODYS_NAMES = frozenset(ACCOUNTS + WORDS)
LOWEST_PERSON_UID = 1000

# Matches version numbers, which are kept although environment variables may contain them.
_VERSION = re.compile(r"v?\d{1,4}(?:\.\d{1,4}){1,3}(?:\+[a-z]+\d*)?")
_HOMES = re.compile(
    r"(?<![\w.])(?:/[\w.-]+)*/(?:homes?\d*|[Uu]sers)/[^\s/:\"',;)\]]+|(?<![\w.])/root(?![\w.-])"
    r"|(?<![\w/~])~[A-Za-z_][\w.-]*"
)
_GPU_NUMBERS = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_ADDRESSES = re.compile(
    r"\b(?!127\.0\.0\.1\b)(?:\d{1,3}\.){3}\d{1,3}(?![.\d])"
    r"|(?<![\w:-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:-])"
)
# Matches candidates for IPv6 addresses, which Python's parser checks, because they may be times or C++.
_MAYBE_IPV6 = re.compile(
    r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\.\d{1,3}){3})?(?:%\w+)?(?![\w:])"
)
_DOMAINS = re.compile(r"\bNAME(?:\.[a-z][\w-]*)+")
# the lookbehind prevents matches inside a word
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")


@dataclass(frozen=True, kw_only=True)
class PrivateValues:
    """Private data to be removed from a report.

    Attributes:
        folders: Path to placeholder; the longest path is replaced first.
        names: Names of users and of this machine.
        values: Values of environment variables.
    """

    folders: Mapping[str, str]
    names: Sequence[str]
    values: Sequence[str] = field(default=())

    @staticmethod
    def here(runs_dir: Path) -> PrivateValues:
        """Return the data that identifies this user, this machine and this checkout."""
        folders = dict.fromkeys({sys.prefix, sys.base_prefix} - {"/", "/usr"}, "PYTHON")
        placeholders = {runs_dir: "RUNS", REPOSITORY: "PROJECT"}
        with contextlib.suppress(RuntimeError):  # a numeric user in a container has no home
            placeholders[Path.home()] = "HOME"
        for path, placeholder in placeholders.items():
            folders |= {str(path): placeholder, str(path.resolve()): placeholder}
        host = socket.gethostname()
        names = [os.environ.get(name, "") for name in ("USER", "LOGNAME")] + [host, host.partition(".")[0]]
        entries = pwd.getpwall()
        with contextlib.suppress(KeyError):  # a directory service may not list users
            entries.append(pwd.getpwuid(os.getuid()))
        for entry in entries:
            if entry.pw_uid >= LOWEST_PERSON_UID or entry.pw_uid == os.getuid():
                names += [entry.pw_name, entry.pw_gecos.partition(",")[0]]
        values = [part for value in os.environ.values() for part in (value, *value.split(os.pathsep))]
        return PrivateValues(folders=folders, names=names, values=values)


def scrub(text: str, private_data: PrivateValues) -> str:
    """Return external text without the data that identifies users, the machine and this checkout."""
    for folder in sorted(private_data.folders, key=len, reverse=True):
        if len(folder) > 1:
            text = re.sub(rf"{re.escape(folder)}(?![\w.-])", private_data.folders[folder], text)
    text = _HOMES.sub("HOME", text)
    for value in sorted(set(private_data.values), key=len, reverse=True):
        if len(value) >= SHORTEST_VALUE and not _VERSION.fullmatch(value):
            text = text.replace(value, "VALUE")
    for name in sorted(set(private_data.names), key=len, reverse=True):
        if len(name) >= SHORTEST_NAME and name.lower() not in NOBODYS_NAMES:
            text = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", "NAME", text, flags=re.IGNORECASE)
    text = _DOMAINS.sub("NAME", text)
    text = _MAIL.sub("MAIL", text)
    text = _GPU_NUMBERS.sub(r"\1-NUMBER", text)
    text = _MAYBE_IPV6.sub(_without_ipv6, text)
    return _ADDRESSES.sub("ADDRESS", text)


def _without_ipv6(match: re.Match[str]) -> str:
    text = match[0]
    # a colon that belongs to the sentence
    colon = ":" if text.endswith(":") and not text.endswith("::") else ""
    try:
        address = ipaddress.IPv6Address(text.removesuffix(colon))
    except ValueError:
        return text
    return text if address.is_loopback or address.is_unspecified else f"ADDRESS{colon}"


PACKAGES = ("torch", "triton", "numpy", "gradio", "plotly", "nvidia-ml-py", "psutil", "safetensors")
_LEAD = (
    "Check of this machine, for a bug report. Names, home folders and environment values were "
    "removed.\nRead this report before you send it."
)
_LINE = "=" * 78


def versions() -> dict[str, str | None]:
    """Return the versions of all relevant software; None: not installed."""
    driver, cuda = nvml.driver_versions()
    version_by_name: dict[str, str | None] = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            version_by_name[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version_by_name[package] = None
    version_by_name |= {"NVIDIA driver": driver, "CUDA of the driver": cuda, "Kernel": platform.release()}
    return version_by_name | {
        "System": host_module.system_name(),
        "Processor": f"{host_module.cpu_name()}, {host_module.num_cores()} cores",
    }


def write(check: Mapping[str, Any], findings: list[Finding]) -> str:
    """Return the text of the report. External text in it must already be scrubbed."""
    started = datetime.fromtimestamp(check["started_unix_s"], tz=UTC)
    description = f"Checked {started:%Y-%m-%d %H:%M} UTC, {check['took_s']:.0f} s, on {check['device']}"
    version_lines = [f"{name}: {version or 'none'}" for name, version in check["versions"].items()]
    parts = [
        _LEAD,
        f"{description}\n{check['summary']}",
        "\n".join(["VERSIONS", *version_lines]),
        "\n".join(["CHECKS", *(line(finding) for finding in findings)]),
    ]
    parts += [f"LOGS OF: {finding.title}\n{finding.log}" for finding in findings if finding.log]
    return f"\n\n{_LINE}\n".join(parts) + "\n"
