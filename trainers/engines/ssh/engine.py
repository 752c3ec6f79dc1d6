"""The SSH engine for hosts with a shared folder, and the measurement of links between hosts."""

from __future__ import annotations

import json
import math
import os
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trainers.contract import events, tickets
from trainers.contract import status as status_file
from trainers.contract.config import Config, Problem
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status, StatusError
from trainers.contract.tickets import Grant
from trainers.engines.base import (
    Capacity,
    Description,
    Engine,
    HostChecks,
    HostReport,
    Launch,
    LinkReport,
    StartError,
    last_log_line,
    script_problems,
    status_on,
)
from trainers.engines.local import stopping
from trainers.engines.several_nodes import restarts
from trainers.engines.several_nodes.peers import FIRST_PORT, NUM_PORTS
from trainers.engines.ssh import hosts as hosts_module
from trainers.engines.ssh import scripts
from trainers.engines.ssh.client import SshError, UnreachableError
from trainers.engines.ssh.hosts import Hosts, SshStart
from trainers.engines.ssh.lost_hosts import LostHosts
from trainers.machine import environment
from trainers.machine.environment import now_unix_s

# Time limit: both hosts import torch, perhaps from a slow disk, and measure for at most 5 s.
MEASURE_LIMIT_S = 90.0
MARGIN_S = 10
ASK_LIMIT_S = 20.0
MODULE = "trainers.engines.several_nodes.measure"
_IMPORTS = f"import importlib.util, sys, {MODULE}; importlib.util.find_spec('torch') or sys.exit('no torch')"
MBIT_BYTES = 125_000
# Thresholds for gradient throughput, below the nominal rate of a link because of headers and waiting.
SLOW_MBIT, USUAL_MBIT = 100, 1_000
SLOW_LATENCY_S = 2e-3

# Check first that a host can measure: otherwise the other host would wait for it.
_CAN_MEASURE = """\
cd {project} || exit 1
exec {command}
"""
_MEASURE = """\
cd {project} || exit 1
timeout --kill-after=5 {limit} {command} 2>&1 || echo "ended with $?"
"""
# Output after `timeout` has killed the command.
_TIMED_OUT = "ended with 124"


def measure_links(hosts: Hosts, first: str, second: str, port: int) -> LinkReport:
    """Measure the link between two free hosts. Takes seconds.

    Args:
        port: For the rendezvous, on the first host.
    """
    pair = (first, second)
    hosts.forget()
    run_ids = hosts.users()
    if errors := [str(run_id) for name in pair if isinstance(run_id := run_ids[name], SshError)]:
        return LinkReport(hosts=pair, problem=f"Not measured: {'; '.join(errors)}.")
    if busy := [f"{name} trains {run_ids[name]}" for name in pair if run_ids[name]]:
        return LinkReport(
            hosts=pair, problem=f"Not measured: {'; '.join(busy)}. Measure again when this run has ended."
        )
    try:
        head = hosts.address_of(first)
    except SshError as error:
        return LinkReport(hosts=pair, problem=f"Not measured: {error}.")
    can_measure = {name: _script(hosts, name, _CAN_MEASURE, "-c", _IMPORTS) for name in pair}
    answers = hosts.run_scripts(can_measure, ASK_LIMIT_S).values()
    if check_errors := [str(answer) for answer in answers if isinstance(answer, SshError)]:
        return LinkReport(hosts=pair, problem=f"Not measured: {'; '.join(check_errors)}.")
    rendezvous = ("--head", head, "--port", str(port))
    scripts_by_host = {
        name: _script(hosts, name, _MEASURE, "-m", MODULE, "--node-rank", str(node), *rendezvous)
        for node, name in enumerate(pair)
    }
    return read_links(pair, hosts.run_scripts(scripts_by_host, MEASURE_LIMIT_S))


def read_links(pair: tuple[str, str], outputs: Mapping[str, str | SshError]) -> LinkReport:
    """Return the report from the output of the two hosts; only the first host prints the measurement."""
    sizes = [line for line in _json_lines(outputs[pair[0]]) if "error" not in line]
    failures = [failure for name in pair if (failure := _failure(name, outputs[name]))]
    if failures or not sizes:
        return LinkReport(hosts=pair, problem=_failure_text(pair, failures or [f"{pair[0]} said nothing"]))
    bytes_per_s, latency_s = sizes[-1]["bus_bytes_per_s"], sizes[0]["time_s"]
    return LinkReport(
        hosts=pair,
        backend=sizes[-1]["backend"],
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
        problem=_slowness(bytes_per_s, latency_s),
    )


def _json_lines(output: str | SshError) -> list[dict[str, Any]]:
    if isinstance(output, SshError):
        return []
    return [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]


def _failure(name: str, output: str | SshError) -> str:
    """Return why a host's measurement failed; empty if it succeeded."""
    if isinstance(output, SshError):
        return str(output)
    lines = output.strip().splitlines()
    if not lines or not lines[-1].startswith("ended with "):
        return ""
    if errors := [line["error"] for line in _json_lines(output) if "error" in line]:
        return f"{name}: {errors[0]}"
    if lines[-1] == _TIMED_OUT:
        return f"{name} did not finish within {MEASURE_LIMIT_S - MARGIN_S:.0f} s"
    return f"{name}: {lines[-2] if len(lines) > 1 else lines[-1]}"


def _script(hosts: Hosts, name: str, script: str, *arguments: str) -> str:
    """Return a script that runs the host's Python with these arguments."""
    host = hosts.by_name[name]
    return scripts.fill_script(
        script,
        project=shlex.quote(host.remote_project),
        limit=str(int(MEASURE_LIMIT_S) - MARGIN_S),
        command=shlex.join([host.remote_python, *arguments]),
    )


def _slowness(bytes_per_s: float, latency_s: float) -> str:
    """Return which property of the link slows training, with a remedy; empty if none does."""
    mbit = bytes_per_s / MBIT_BYTES
    if mbit <= SLOW_MBIT:
        return (
            f"This is the bandwidth of a wireless link or a link of {SLOW_MBIT} Mbit/s. Use a cable and a "
            f"switch for {USUAL_MBIT:,} Mbit/s, and check the line Speed of ethtool INTERFACE on both hosts."
        )
    if latency_s > SLOW_LATENCY_S:
        return (
            f"A small message takes more than {SLOW_LATENCY_S * 1e3:.0f} ms. The link may be wireless or "
            "busy: use a cable, and stop other transfers."
        )
    return ""


def _failure_text(pair: tuple[str, str], failures: Sequence[str]) -> str:
    """Return why nothing was measured. If both hosts failed, they may not reach each other."""
    text = f"Not measured: {'; '.join(failures)}."
    if len(failures) < len(pair):
        return text
    return (
        f"{text} If the hosts cannot reach each other, allow TCP on all ports between {pair[0]} and "
        f"{pair[1]}, or set address of a host in the site file to the address at which the other reaches it."
    )


NAME = "ssh"
POLL_S = 0.2
START_LIMIT_S = 20.0
OWNED_LIMIT_S = 60.0
EXIT_LIMIT_S = 20.0
REAP_LIMIT_S = 20.0
UNRESPONSIVE_MESSAGE = "The first host of this run did not react to Stop, so all its processes were killed."


class SshLaunch(Launch):
    """The launchers of one start."""

    def __init__(self, engine: SshEngine, run: RunDirectory, start: SshStart) -> None:
        self._engine = engine
        self._run = run
        self.start = start
        self.location = " ".join(start.hosts)

    def wait_until_owned(self) -> None:
        """Wait until the first host's launcher has written its first status."""
        deadline = time.monotonic() + OWNED_LIMIT_S
        while not _is_owned(self._run):
            is_gone = self._engine.hosts.has_start(self.start.hosts[0], self.start.tag) is False
            if is_gone and _is_owned(self._run):
                return
            if is_gone or time.monotonic() > deadline:
                last_line = last_log_line(self._run) or "its launcher said nothing"
                reasons = "; ".join([last_line, *self._engine.clean_up(self.start).values()])
                raise StartError(
                    f"run {self._run.run_id} could not be started on {self.start.hosts[0]}: {reasons}"
                )
            time.sleep(POLL_S)

    def wait_for_end(self) -> None:
        """Wait until no host has a launcher of this start; hosts that do not answer are asked again.

        Processes that remain long after the run's end, such as a suspended launcher, are killed.
        """
        ended_at = math.inf
        while self._engine.is_running(self.start):
            now = time.monotonic()
            ended_at = min(ended_at, now) if _has_ended(self._run, self.start) else math.inf
            if now - ended_at > EXIT_LIMIT_S:
                self._engine.reap(self.start)
                ended_at = now
            time.sleep(POLL_S)


class SshEngine(Engine, HostChecks):
    """The hosts of one site file, reached with the SSH configuration of the current user.

    Args:
        site_file: Used in the equivalent shell command.
    """

    # This engine has no queue: it rejects a run if too few hosts are free.
    name = NAME

    def __init__(self, site_file: Path, hosts: Hosts) -> None:
        self._site_file = site_file
        self.hosts = hosts
        self._lost_hosts = LostHosts(self.hosts, partial(status_on, self), self.reap)

    def capacity(self, config: Config | None = None) -> Capacity:
        """Return the minimum of the resources of all hosts that answer.

        Raises:
            SshError: If no host answers.
        """
        del config  # a configuration names no hosts
        answers = self.hosts.capacities()
        capacities = [
            host_capacity for host_capacity in answers.values() if not isinstance(host_capacity, SshError)
        ]
        if not capacities:
            raise SshError("; ".join(str(host_capacity) for host_capacity in answers.values()))
        num_gpus = min(len(host_capacity.gpus) for host_capacity in capacities)
        gpus = [gpu for host_capacity in capacities for gpu in host_capacity.gpus[:num_gpus]]
        return Capacity(
            num_nodes=self._max_hosts(),
            num_gpus=num_gpus,
            num_cores=min(host_capacity.num_cores for host_capacity in capacities),
            gpu_names=tuple(gpu.name for gpu in gpus),
            gpu_memory_bytes=min((gpu.memory_bytes for gpu in gpus), default=None),
            memory_bytes=min(host_capacity.memory_bytes for host_capacity in capacities),
            place="each host",
        )

    def check(self, config: Config) -> list[Problem]:
        """Return the problems of a configuration on the hosts that are free now."""
        if problems := script_problems(config, no_paths_reason=self._no_paths_reason):
            return problems
        max_hosts = self._max_hosts()
        if config.num_nodes > max_hosts:
            allowed = f"{'1 to ' if max_hosts > 1 else ''}{max_hosts}: {self._host_limit_reason}"
            return [Problem(field="num_nodes", value=config.num_nodes, allowed=allowed)]
        self.hosts.forget()
        users = self._users()
        free = hosts_module.find_free_hosts(users)
        if config.num_nodes <= len(free):
            return []
        allowed = (
            f"{'1 to ' if len(free) > 1 else ''}{len(free)} now: {hosts_module.describe_busy_hosts(users)}"
        )
        return [Problem(field="num_nodes", value=config.num_nodes, allowed=allowed)]

    def start(self, run: RunDirectory, resume_step: int | None = None, grant: Grant | None = None) -> Launch:
        """Start a run on the first free hosts."""
        with run.owned():
            tickets.claim_ticket(run, None if grant is None else grant.token)
            hosts = self._choose_hosts(run.read_config().num_nodes)
            run.logs.mkdir(exist_ok=True)
            start = SshStart(tag=f"{run.run_id[:40]}-{secrets.token_hex(6)}", hosts=tuple(hosts))
            return self._start_run(run, start, resume_step)

    def describe(self, run: RunDirectory, status: Status, *, is_queued: bool = False) -> Description:
        """Return whether the first host has the launcher of a live run; None if it does not answer."""
        del is_queued  # no request takes longer for a queued run
        start = SshStart.from_handle(status.handle)
        if status.state not in events.LIVE_STATES or start is None or start.run_dir:
            return Description()  # a start with `run_dir` belongs to a site file without a shared folder
        is_alive = self.hosts.has_start(start.hosts[0], start.tag)
        if is_alive is None:
            self._lost_hosts.watch(run, start)
        return Description(is_alive=is_alive)

    def is_running(self, start: SshStart) -> bool:
        """True if a host has a launcher of a start, or does not answer."""
        return any(self.hosts.has_start(name, start.tag) is not False for name in start.hosts)

    def stop(self, run: RunDirectory, status: Status, *, save: bool, reason: str = "") -> str:
        """End a run by a command in its folder."""
        command_id = super().stop(run, status, save=save, reason=reason)
        restarts.watch_for_stop(self, run, lambda status: self._end(run, status, UNRESPONSIVE_MESSAGE))
        return command_id

    def kill(self, run: RunDirectory, status: Status) -> None:
        """Kill all processes of a run on all its hosts, then write the final events in their place."""
        if status.state in events.LIVE_STATES:
            self._end(run, status, stopping.KILLED_MESSAGE)

    def clean_up(self, start: SshStart) -> Mapping[str, str]:
        """Kill all processes of a start, also those on hosts that answer only later.

        Returns:
            For each host that did not answer or failed, its name and a message.
        """
        errors = self.reap(start)
        if errors:
            self._lost_hosts.reap_when_back(start, list(errors))
        outlook = "the page keeps trying to kill the processes there"
        return {name: f"{error}: {outlook}" for name, error in errors.items()}

    def reap(self, start: SshStart) -> Mapping[str, SshError]:
        """Kill all processes of a start; return the errors of the hosts that did not answer or failed."""
        scripts_by_host = {
            name: scripts.reap_script(self.hosts.by_name[name], start.tag, node)
            for node, name in enumerate(start.hosts)
            if name in self.hosts.by_name
        }
        answers = self.hosts.run_scripts(scripts_by_host, REAP_LIMIT_S)
        self.hosts.forget()
        return {name: answer for name, answer in answers.items() if isinstance(answer, SshError)}

    def report(self, runs_dir: Path) -> Sequence[HostReport]:
        """Return the reports of all hosts, which are asked in parallel."""
        return self.hosts.report(runs_dir)

    def links(self) -> Sequence[tuple[str, str]]:
        """Return the pairs of neighbours in a ring, as in a ring all-reduce."""
        names = list(self.hosts.by_name)
        if len(names) < 3:
            return [(names[0], names[1])] if len(names) == 2 else []
        return [(name, names[(number + 1) % len(names)]) for number, name in enumerate(names)]

    def measure_link(self, first: str, second: str) -> LinkReport:
        """Measure the link between two free hosts."""
        return measure_links(self.hosts, first, second, _random_port())

    # Overridden by the engine for hosts without a shared folder.

    _host_limit_reason = "the number of hosts"
    _no_paths_reason = ""

    def _max_hosts(self) -> int:
        """Return the maximum number of hosts per run."""
        return len(self.hosts.by_name)

    def _users(self) -> Mapping[str, str | SshError]:
        """Return the active run of each host, or an error. Launchers of ended runs do not count."""
        return hosts_module.read_users(self.hosts)

    def _start_run(self, run: RunDirectory, start: SshStart, resume_step: int | None) -> Launch:
        """Start a run on its hosts and record that. The caller holds the run's lock."""
        self._start_on_all(run, start, resume_step)
        status = Status(state="starting", engine=NAME, handle=start.handle)
        run.write_status(replace(status, last_seen_unix_s=now_unix_s()))
        tickets.close_ticket(run)
        return SshLaunch(self, run, start)

    def _end(self, run: RunDirectory, status: Status, message: str) -> None:
        """Kill a run's processes; write its final events and status."""
        start = SshStart.from_handle(status.handle)
        assert start is not None, "a live run of this engine has a start"
        message += "".join(f" {problem}." for problem in self.clean_up(start).values())
        stopping.write_forced_end(run, status, message)

    def _choose_hosts(self, num_hosts: int) -> list[str]:
        self.hosts.forget()
        users = self._users()
        free = hosts_module.find_free_hosts(users)
        if len(free) < num_hosts:
            raise SshError(
                f"the run needs {num_hosts} hosts, but {len(free)} are free: "
                f"{hosts_module.describe_busy_hosts(users)}"
            )
        hosts_module.wait_until_free(self.hosts, free[:num_hosts])
        return free[:num_hosts]

    def _start_on_all(self, run: RunDirectory, start: SshStart, resume_step: int | None) -> None:
        """Start a launcher on each host; if one start fails, end all launchers.

        Raises:
            SshError: If a start fails; the message names the hosts.
        """
        head, port = self.hosts.address_of(start.hosts[0]), _random_port()
        run_dir = Path(start.run_dir) if start.run_dir else run.path.resolve()
        scripts_by_host = {}
        for node, name in enumerate(start.hosts):
            command = [
                *("-m", "trainers.engines.several_nodes.node", str(run_dir)),
                *("--engine", NAME, "--handle", json.dumps(start.handle), "--start", start.tag),
                *("--node-rank", str(node), "--num-nodes", str(len(start.hosts))),
                *("--head", head, "--port", str(port)),
                *([] if resume_step is None else ["--resume", str(resume_step)]),
            ]
            variables = _notification_variables() if node == 0 else {}
            host = self.hosts.by_name[name]
            scripts_by_host[name] = scripts.start_script(host, run_dir, start.tag, node, command, variables)
        answers = self.hosts.run_scripts(scripts_by_host, START_LIMIT_S)
        self.hosts.forget()
        if errors := {name: error for name, error in answers.items() if isinstance(error, SshError)}:
            # A host that does not answer may have started its launcher; a host whose script failed has not.
            failed_hosts = [name for name, error in errors.items() if not isinstance(error, UnreachableError)]
            remaining = {
                name: message for name, message in self.clean_up(start).items() if name not in failed_hosts
            }
            messages = {name: str(error) for name, error in errors.items()} | remaining
            raise SshError("; ".join(messages.values()))


def _random_port() -> int:
    return FIRST_PORT + secrets.randbelow(NUM_PORTS)


def _notification_variables() -> Mapping[str, str]:
    return {name: os.environ[name] for name in sorted(environment.FOR_NOTIFYING) if name in os.environ}


def _is_owned(run: RunDirectory) -> bool:
    recorded = status_file.read(run.status)
    return recorded is not None and recorded.started_unix_s is not None


def _has_ended(run: RunDirectory, start: SshStart) -> bool:
    try:
        recorded = status_file.read(run.status)
    except (StatusError, OSError):
        return False
    return recorded is not None and recorded.handle == start.handle and recorded.ended_unix_s is not None
