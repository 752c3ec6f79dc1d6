"""Removes from a text what identifies a person or a machine: home paths, names, values of the environment."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pwd
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainers.files.paths import REPOSITORY

# Shorter values are words such as "1", "xterm" or "cpu", which are everywhere.
SHORTEST_VALUE = 6
SHORTEST_NAME = 2
# They identify no person: standard accounts, and words of every log.
ACCOUNTS = ("admin", "debian", "docker", "ec2-user", "fedora", "nobody", "root", "runner", "ubuntu", "user")
WORDS = ("cpu", "cuda", "gpu", "linux", "localhost", "python", "rank", "torch")
NOBODYS_NAMES = frozenset(ACCOUNTS + WORDS)
LOWEST_PERSON_UID = 1000

# Versions, which occur in environments too.
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
# What looks like IPv6 may be a time or C++: Python's own parser decides.
_MAYBE_IPV6 = re.compile(
    r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\.\d{1,3}){3})?(?:%\w+)?(?![\w:])"
)
_DOMAINS = re.compile(r"\bNAME(?:\.[a-z][\w-]*)+")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")  # not at each letter of a long word


@dataclass(frozen=True, kw_only=True)
class Known:
    """What must not be in a file that is sent to others.

    Attributes:
        folders: each with its placeholder; the longest is replaced first.
        names: of people and of this machine.
        values: of the environment.
    """

    folders: Mapping[str, str]
    names: Sequence[str]
    values: Sequence[str] = field(default=())

    @staticmethod
    def here(runs_dir: Path) -> Known:
        """Return what identifies this user, this machine and this checkout."""
        folders = dict.fromkeys({sys.prefix, sys.base_prefix} - {"/", "/usr"}, "PYTHON")
        places = {runs_dir: "RUNS", REPOSITORY: "PROJECT"}
        with contextlib.suppress(RuntimeError):  # a container with a numeric user has no home
            places[Path.home()] = "HOME"
        for path, stands_for in places.items():
            folders |= {str(path): stands_for, str(path.resolve()): stands_for}
        host = socket.gethostname()
        names = [os.environ.get(name, "") for name in ("USER", "LOGNAME")] + [host, host.partition(".")[0]]
        entries = pwd.getpwall()
        with contextlib.suppress(KeyError):  # a directory service lists no users, but resolves a single one
            entries.append(pwd.getpwuid(os.getuid()))
        for entry in entries:
            if entry.pw_uid >= LOWEST_PERSON_UID or entry.pw_uid == os.getuid():
                names += [entry.pw_name, entry.pw_gecos.partition(",")[0]]
        values = [part for value in os.environ.values() for part in (value, *value.split(os.pathsep))]
        return Known(folders=folders, names=names, values=values)


def scrub(text: str, known: Known) -> str:
    """Return a text from outside without what identifies people and this checkout."""
    for folder in sorted(known.folders, key=len, reverse=True):
        if len(folder) > 1:
            text = re.sub(rf"{re.escape(folder)}(?![\w.-])", known.folders[folder], text)
    text = _HOMES.sub("HOME", text)
    for value in sorted(set(known.values), key=len, reverse=True):
        if len(value) >= SHORTEST_VALUE and not _VERSION.fullmatch(value):
            text = text.replace(value, "VALUE")
    for name in sorted(set(known.names), key=len, reverse=True):
        if len(name) >= SHORTEST_NAME and name.lower() not in NOBODYS_NAMES:
            text = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", "NAME", text, flags=re.IGNORECASE)
    text = _DOMAINS.sub("NAME", text)
    text = _MAIL.sub("MAIL", text)
    text = _GPU_NUMBERS.sub(r"\1-NUMBER", text)
    text = _MAYBE_IPV6.sub(_without_ipv6, text)
    return _ADDRESSES.sub("ADDRESS", text)


def _without_ipv6(found: re.Match[str]) -> str:
    text = found[0]
    colon = ":" if text.endswith(":") and not text.endswith("::") else ""  # of the sentence around it
    try:
        address = ipaddress.IPv6Address(text.removesuffix(colon))
    except ValueError:
        return text
    return text if address.is_loopback or address.is_unspecified else f"ADDRESS{colon}"
