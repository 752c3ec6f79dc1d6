"""How much passes between two hosts: real all-reduces of one rank on each, in words with what to do."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.engines.reports import LinkReport
from trainers.engines.ssh import scripts
from trainers.engines.ssh.client import SshError
from trainers.engines.ssh.hosts import Hosts

# torch is imported on both hosts, which a slow disk takes long for; then at most five seconds of measuring.
LIMIT_S = 90.0
ENDS_BEFORE_S = 10
ASK_LIMIT_S = 20.0
MODULE = "trainers.engines.several_nodes.measure"
_IMPORTS = f"import importlib.util, sys, {MODULE}; importlib.util.find_spec('torch') or sys.exit('no torch')"
MBIT_BYTES = 125_000
# What passes of a link's bits as gradients: the rest is headers, and waiting.
SLOW_MBIT, USUAL_MBIT = 100, 1_000
SLOW_LATENCY_S = 2e-3

# Asked first: a host that lacks something would be waited for by the other.
_CAN_MEASURE = """\
cd {project} || exit 1
exec {command}
"""
_MEASURE = """\
cd {project} || exit 1
timeout --kill-after=5 {limit} {command} 2>&1 || echo "ended with $?"
"""
# So `timeout` ends when it had to end what it was given.
_LATE = "ended with 124"


def pairs(names: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Return which hosts are neighbours in a ring, as in a ring all-reduce: each is in two pairs."""
    if len(names) < 3:
        return [(names[0], names[1])] if len(names) == 2 else []
    return [(name, names[(number + 1) % len(names)]) for number, name in enumerate(names)]


def measure(hosts: Hosts, first: str, second: str, port: int) -> LinkReport:
    """Measure between two hosts of which no run has one; returns after some seconds.

    Args:
        port: of the first one, where they meet.
    """
    both = (first, second)
    hosts.forget()
    users = hosts.users()
    if silent := [str(user) for name in both if isinstance(user := users[name], SshError)]:
        return LinkReport(hosts=both, problem=f"Not measured: {'; '.join(silent)}.")
    if taken := [f"{name} trains {users[name]}" for name in both if users[name]]:
        return LinkReport(
            hosts=both, problem=f"Not measured: {'; '.join(taken)}. Measure when that has ended."
        )
    try:
        head = hosts.address_of(first)
    except SshError as error:
        return LinkReport(hosts=both, problem=f"Not measured: {error}.")
    can_measure = {name: _script(hosts, name, _CAN_MEASURE, "-c", _IMPORTS) for name in both}
    answers = hosts.on_each(can_measure, ASK_LIMIT_S).values()
    if lacking := [str(each) for each in answers if isinstance(each, SshError)]:
        return LinkReport(hosts=both, problem=f"Not measured: {'; '.join(lacking)}.")
    where = ("--head", head, "--port", str(port))
    wanted = {
        name: _script(hosts, name, _MEASURE, "-m", MODULE, "--node-rank", str(node), *where)
        for node, name in enumerate(both)
    }
    return read(both, hosts.on_each(wanted, LIMIT_S))


def read(both: tuple[str, str], said: Mapping[str, str | SshError]) -> LinkReport:
    """Return what the two hosts have printed, of which the first one says what it measured, as a report."""
    sizes = [line for line in _json_lines(said[both[0]]) if "error" not in line]
    failed = [words for name in both if (words := _failure(name, said[name]))]
    if failed or not sizes:
        return LinkReport(hosts=both, problem=_why(both, failed or [f"{both[0]} said nothing"]))
    bytes_per_s, latency_s = sizes[-1]["bus_bytes_per_s"], sizes[0]["time_s"]
    return LinkReport(
        hosts=both,
        backend=sizes[-1]["backend"],
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
        problem=_judgement(bytes_per_s, latency_s),
    )


def _json_lines(said: str | SshError) -> list[dict[str, Any]]:
    if isinstance(said, SshError):
        return []
    return [json.loads(line) for line in said.splitlines() if line.startswith("{") and line.endswith("}")]


def _failure(name: str, said: str | SshError) -> str:
    """Say why a host did not come to the end; empty: it did."""
    if isinstance(said, SshError):
        return str(said)
    lines = said.strip().splitlines()
    if not lines or not lines[-1].startswith("ended with "):
        return ""
    if errors := [line["error"] for line in _json_lines(said) if "error" in line]:
        return f"{name}: {errors[0]}"
    if lines[-1] == _LATE:
        return f"{name} was not done after {LIMIT_S - ENDS_BEFORE_S:.0f} s"
    return f"{name}: {lines[-2] if len(lines) > 1 else lines[-1]}"


def _script(hosts: Hosts, name: str, script: str, *arguments: str) -> str:
    """Return a script that runs the host's Python with these arguments."""
    host = hosts.by_name[name]
    return scripts.filled(
        script,
        project=shlex.quote(host.project_there),
        limit=str(int(LIMIT_S) - ENDS_BEFORE_S),
        command=shlex.join([host.python_there, *arguments]),
    )


def _judgement(bytes_per_s: float, latency_s: float) -> str:
    """Say what is slow for training, and what to do; empty: nothing."""
    mbit = bytes_per_s / MBIT_BYTES
    if mbit <= SLOW_MBIT:
        return (
            f"That is what a link of {SLOW_MBIT} Mbit/s or a wireless one carries. Use a cable and a switch "
            f"for {USUAL_MBIT:,} Mbit/s, and look at what both hosts say: ethtool INTERFACE, Speed."
        )
    if latency_s > SLOW_LATENCY_S:
        return (
            f"A small message takes more than {SLOW_LATENCY_S * 1e3:.0f} ms: is the link wireless, or full? "
            "Use a cable, and stop other transfers."
        )
    return ""


def _why(both: tuple[str, str], failed: Sequence[str]) -> str:
    """Say why nothing was measured; where neither came to the end they may not hear each other."""
    words = f"Not measured: {'; '.join(failed)}."
    if len(failed) < len(both):
        return words
    return (
        f"{words} If they do not reach each other: allow TCP on all ports between {both[0]} and {both[1]}, "
        "or give the address by which others reach a host as address in the site file."
    )
