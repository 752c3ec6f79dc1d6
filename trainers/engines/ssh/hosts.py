"""Hosts: their resources, their users, and whether they match each other."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Handle, StatusError
from trainers.engines.base import HostReport
from trainers.engines.remembered import CachedAnswer
from trainers.engines.ssh import scripts
from trainers.engines.ssh.client import Ssh, SshError
from trainers.engines.ssh.scripts import HostCapacity
from trainers.engines.ssh.site import SshHost
from trainers.files import typed
from trainers.files.typed import FieldError, Limit

LIMIT_S = 20.0
# Maximum clock difference, which shifts a host's telemetry on the common time axis.
MAX_CLOCK_DIFFERENCE_S = 1.0
CHECKSUM_DIGITS = 12

_FACTS = """\
echo "clock $(date +%s.%N)"
{capacity}
if command -v nvidia-smi >/dev/null; then
  for pid in $(nvidia-smi --query-compute-apps=pid --format=csv,noheader); do
    echo "user $(ps -o user= -p "$pid")"
  done
fi
echo "sees $(cat {token} 2>/dev/null)"
command -v rsync >/dev/null && echo "rsync yes"
echo "torch $({python} -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null)"
cd {project} 2>/dev/null || exit 0
echo "code $(find trainers -name '*.py' | LC_ALL=C sort | xargs cat | sha256sum | cut -c 1-{code_shown})"
"""


def ask_facts(
    ssh: Ssh, host: SshHost, user: str | SshError, token_file: Path, token: str, *, is_shared: bool
) -> HostReport:
    """Return the report of one host.

    Args:
        user: The run that trains on the host, or the error of that request.
        token_file: File in the runs directory; a host that can read it prints the token.
        is_shared: True if the host must have the runs directory and this project; otherwise both are copied.
    """
    script = scripts.fill_script(
        _FACTS,
        capacity=scripts.CAPACITY,
        token=shlex.quote(str(token_file)),
        project=shlex.quote(host.remote_project),
        python=shlex.quote(host.remote_python),
        code_shown=str(CHECKSUM_DIGITS),
    )
    requested_at = time.time()
    try:
        output = ssh.ask(host, script, limit_s=LIMIT_S)
        capacity = scripts.read_capacity(output)
    except (SshError, ValueError) as error:
        return HostReport(name=host.name, is_reachable=False, problems=(str(error),))
    rows = [line.partition(" ") for line in output.splitlines()]
    values = {key: value.strip() for key, _, value in rows}
    report = HostReport(
        name=host.name,
        is_reachable=True,
        run_id=user if isinstance(user, str) else "",
        num_cores=capacity.num_cores,
        memory_bytes=capacity.memory_bytes,
        gpu_names=tuple(gpu.name for gpu in capacity.gpus),
        gpu_users=tuple(sorted({value.strip() for key, _, value in rows if key == "user" and value.strip()})),
        torch=values.get("torch") or None,
        code=values.get("code") or None,
        clock_off_s=_clock_off_s(values.get("clock", ""), requested_at, time.time()),
        sees_runs=values.get("sees") == token if is_shared else None,
    )
    clock_problems = _clock_problems(host, report)
    if is_shared:
        return report.with_problems([*_shared_host_problems(host, report), *clock_problems])
    return report.with_problems(
        [*_unshared_host_problems(host, report, has_rsync="rsync" in values), *clock_problems]
    )


def compare_facts(reports: list[HostReport]) -> list[HostReport]:
    """Add differences to the first reachable host to the reports of the others."""
    first = next((report for report in reports if report.is_reachable), None)
    if first is None:
        return reports
    return [report.with_problems(_differences(first, report)) for report in reports]


def make_token(runs_dir: Path) -> tuple[Path, str]:
    """Write a file with a random token, by which a host proves that it can read this folder; return path and
    token.

    Raises:
        OSError: If the folder is not writable.
    """
    token = secrets.token_hex(8)
    path = runs_dir / f".seen-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    return path, token


def _clock_off_s(output: str, requested_at: float, answered_at: float) -> float | None:
    """Return the minimum offset of a host's clock that was read between two local times; positive: ahead."""
    try:
        clock = float(output)
    except ValueError:
        return None
    if requested_at <= clock <= answered_at:
        return 0.0
    return round(clock - (requested_at if clock < requested_at else answered_at), 3)


def _shared_host_problems(host: SshHost, report: HostReport) -> list[str]:
    problems = []
    if report.code is None:
        problems.append(
            f"{host.name} has no folder {host.remote_project}: copy this project to that folder, or set "
            "project in the site file to its path."
        )
    elif report.torch is None:
        problems.append(f"{host.name}: {host.remote_python} has no torch: run ./run.sh once on this host.")
    if report.sees_runs is False:
        problems.append(
            f"{host.name} cannot access the folder of the runs: mount the shared folder on this host, at "
            "the same path."
        )
    return problems


def _unshared_host_problems(host: SshHost, report: HostReport, *, has_rsync: bool) -> list[str]:
    problems = []
    if report.torch is None:
        problems.append(
            f"{host.name}: {host.remote_python} has no torch: set python in the site file to a Python with "
            "torch, psutil and nvidia-ml-py."
        )
    if not has_rsync:
        problems.append(f"{host.name} has no rsync: install rsync on this host.")
    return problems


def _clock_problems(host: SshHost, report: HostReport) -> list[str]:
    problems = []
    if report.clock_off_s is not None and abs(report.clock_off_s) > MAX_CLOCK_DIFFERENCE_S:
        side = "ahead of" if report.clock_off_s > 0 else "behind"
        problems.append(
            f"The clock of {host.name} is {abs(report.clock_off_s):.1f} s {side} this machine's clock: "
            "install chrony."
        )
    return problems


def _differences(first: HostReport, report: HostReport) -> list[str]:
    pairs: Mapping[str, tuple[str | None, str | None]] = {
        "torch": (first.torch, report.torch),
        "this project's code": (first.code, report.code),
    }
    return [
        f"{report.name} has {subject} {value}, but {first.name} has {first_value}: a run on both hosts may "
        "fail or give other results. Install the same version on both."
        for subject, (first_value, value) in pairs.items()
        if first_value and value and first_value != value
    ]


@dataclass(frozen=True, kw_only=True)
class SshStart:
    """One start of a run. The first host is node 0, whose launcher writes the status.

    Attributes:
        run_dir: Folder of the run's copy on its host; empty: the hosts share the folder of the runs.
    """

    tag: Annotated[str, Limit(least=1)]
    hosts: Annotated[tuple[str, ...], Limit(least=1)]
    run_dir: str = ""

    @property
    def handle(self) -> Handle:
        run_dir_field = {"run_dir": self.run_dir} if self.run_dir else {}
        return {"tag": self.tag, "hosts": list(self.hosts), **run_dir_field}

    @classmethod
    def from_handle(cls, handle: Handle) -> SshStart | None:
        """Return the start in a handle, or None."""
        try:
            return typed.read(cls, handle, ignores_unknown=True)
        except FieldError:
            return None


POLL_S = 0.2
EXIT_LIMIT_S = 15.0


def read_users(hosts: Hosts) -> Mapping[str, str | SshError]:
    """Return the active run of each host (empty: none), or the error that occurred when asking."""
    return {
        name: launcher if isinstance(launcher, SshError) else _active_run(*launcher)
        for name, launcher in hosts.launchers().items()
    }


def find_free_hosts(users: Mapping[str, str | SshError]) -> list[str]:
    """Return the hosts without a run."""
    return [name for name, run_id in users.items() if run_id == ""]


def describe_busy_hosts(users: Mapping[str, str | SshError]) -> str:
    """Return why the other hosts are not free."""
    reasons = [
        str(user) if isinstance(user, SshError) else f"{name} trains {user}"
        for name, user in users.items()
        if user != ""
    ]
    return "; ".join(reasons) or "another run has just taken the other hosts"


def wait_until_free(hosts: Hosts, names: Sequence[str]) -> None:
    """Wait until the launchers of ended runs have exited on some hosts.

    Raises:
        SshError: If a launcher does not exit in time.
    """
    deadline = time.monotonic() + EXIT_LIMIT_S
    while not set(names) <= set(find_free_hosts(users := hosts.users())):
        if time.monotonic() > deadline:
            raise SshError(f"a run has ended, but its launcher has not exited: {describe_busy_hosts(users)}")
        time.sleep(POLL_S)
        hosts.forget()


def _active_run(tag: str, run_dir: str) -> str:
    """Return the run of a host's launcher; empty if this start of the run has ended."""
    path = Path(run_dir)
    with contextlib.suppress(StatusError):
        recorded = status_file.read(RunDirectory(path).status) if run_dir else None
        start = None if recorded is None else SshStart.from_handle(recorded.handle)
        if recorded is not None and recorded.state not in events.LIVE_STATES and start and start.tag == tag:
            return ""
    return path.name


STATE_FRESH_S = 2.0
CAPACITY_FRESH_S = 120.0

Answer = TypeVar("Answer")


class _HostAnswer(CachedAnswer[Answer]):
    retry_s = 5.0


class Hosts:
    """All hosts of a site. Thread-safe.

    Args:
        is_shared: True if they can access the runs directory and have this project.
    """

    def __init__(self, hosts: Sequence[SshHost], ssh: Ssh, *, is_shared: bool = True) -> None:
        self.ssh, self._is_shared = ssh, is_shared
        self.by_name: Mapping[str, SshHost] = {host.name: host for host in hosts}
        self._states = {
            host.name: _HostAnswer(partial(_read_state, ssh, host), STATE_FRESH_S) for host in hosts
        }
        self._capacities = {
            host.name: _HostAnswer(partial(_read_capacity, ssh, host), CAPACITY_FRESH_S) for host in hosts
        }

    def capacities(self) -> Mapping[str, HostCapacity | SshError]:
        """Return the resources of each host, or the error that occurred when asking."""
        return self._for_each(lambda name: self._capacities[name].get(refresh=True))

    def users(self) -> Mapping[str, str | SshError]:
        """Return the run of each host (empty: none), or the error that occurred when asking."""
        return self._for_each(lambda name: Path(self._states[name].get(refresh=True)[1]).name)

    def launchers(self) -> Mapping[str, tuple[str, str] | SshError]:
        """Return tag and run folder of each host's launcher; both are empty if none lives."""
        return self._for_each(lambda name: self._states[name].get(refresh=True))

    def report(self, runs_dir: Path) -> Sequence[HostReport]:
        """Return the report of each host, with mismatches between them.

        Raises:
            OSError: If the folder of the runs is not writable.
        """
        users = self.users()
        path, token = make_token(runs_dir.resolve())
        try:
            answers = self._for_each(
                lambda name: ask_facts(
                    self.ssh, self.by_name[name], users[name], path, token, is_shared=self._is_shared
                )
            )
        finally:
            path.unlink(missing_ok=True)
        reports = [report for report in answers.values() if not isinstance(report, SshError)]
        return compare_facts(reports) if self._is_shared else reports

    def has_start(self, name: str, tag: str) -> bool | None:
        """True if the launcher of a start is alive on a host; None if the host does not answer."""
        if name not in self._states:
            return None  # the host was removed from the site file after the start
        try:
            return self._states[name].get(refresh=True)[0] == tag
        except SshError:
            return None

    def forget(self) -> None:
        """Invalidate the cached state of all hosts."""
        for state in self._states.values():
            state.forget()

    def run_scripts(self, scripts_by_name: Mapping[str, str], limit_s: float) -> Mapping[str, str | SshError]:
        """Run one script per host in parallel; return the outputs or errors."""
        return self._for_each(
            lambda name: self.ssh.ask(self.by_name[name], scripts_by_name[name], limit_s=limit_s),
            list(scripts_by_name),
        )

    def address_of(self, name: str) -> str:
        """Return the address at which the other hosts reach a host.

        Raises:
            SshError: If it is unknown.
        """
        host = self.by_name[name]
        return host.address or self.ssh.address_of(host)

    def _for_each(
        self, ask: Callable[[str], Answer], names: Sequence[str] | None = None
    ) -> Mapping[str, Answer | SshError]:
        def ask_or_error(name: str) -> Answer | SshError:
            try:
                return ask(name)
            except SshError as error:
                return error

        names = list(self.by_name) if names is None else names
        with ThreadPoolExecutor(max(1, len(names))) as pool:
            return dict(zip(names, pool.map(ask_or_error, names), strict=True))


def _read_state(ssh: Ssh, host: SshHost) -> tuple[str, str]:
    """Return tag and run folder of a host's launcher; both are empty if none lives."""
    tag, _, run_dir = ssh.ask(host, scripts.state_script()).strip().partition(" ")
    return tag, run_dir


def _read_capacity(ssh: Ssh, host: SshHost) -> HostCapacity:
    try:
        return scripts.read_capacity(ssh.ask(host, scripts.CAPACITY))
    except ValueError as error:
        raise SshError(f"{host.name}: {error}") from error
