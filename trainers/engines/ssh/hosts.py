"""The hosts, asked by SSH; what they said is remembered for some seconds, because many ask for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from trainers.engines.reports import HostReport
from trainers.engines.ssh import facts, scripts
from trainers.engines.ssh.client import Ssh, SshError
from trainers.engines.ssh.scripts import HostCapacity
from trainers.engines.ssh.site import SshHost

STATE_FRESH_S = 2.0
CAPACITY_FRESH_S = 120.0
# A host that does not answer is left alone for so long.
RETRY_S = 5.0

Answer = TypeVar("Answer")


class Remembered(Generic[Answer]):
    """The newest answer to one question, asked by one thread at a time.

    Args:
        ask: raises SshError.
        fresh_s: for so long an answer is not asked for again.
    """

    def __init__(self, ask: Callable[[], Answer], fresh_s: float) -> None:
        self._ask, self._fresh_s = ask, fresh_s
        self._lock = threading.Lock()
        self._answer: Answer | SshError | None = None
        self._asked_at = float("-inf")
        # An answer to a question from before a change does not know of it.
        self._num_changes = self._num_known = 0

    def forget(self) -> None:
        """Note that something has changed: the next answer is a new one."""
        self._num_changes += 1

    def get(self) -> Answer:
        """Return the answer; who comes while another thread asks waits for that one's.

        Raises:
            SshError: when there is none, now or a moment ago.
        """
        with self._lock:
            is_error = isinstance(self._answer, SshError)
            is_old = time.monotonic() - self._asked_at >= (RETRY_S if is_error else self._fresh_s)
            if is_old or (self._num_known != self._num_changes and not is_error):
                began, self._num_known = time.monotonic(), self._num_changes
                try:
                    self._answer = self._ask()
                except SshError as error:
                    self._answer, began = error, time.monotonic()
                self._asked_at = began
            if isinstance(self._answer, SshError):
                raise type(self._answer)(str(self._answer))
            assert self._answer is not None
            return self._answer


class Hosts:
    """All hosts of a site; safe to be used by several threads.

    Args:
        is_shared: they see the folder of the runs, and have this project.
    """

    def __init__(self, hosts: Sequence[SshHost], ssh: Ssh, *, is_shared: bool = True) -> None:
        self._ssh, self._is_shared = ssh, is_shared
        self.by_name: Mapping[str, SshHost] = {host.name: host for host in hosts}
        self._states = {host.name: Remembered(partial(_state_of, ssh, host), STATE_FRESH_S) for host in hosts}
        self._capacities = {
            host.name: Remembered(partial(_capacity_of, ssh, host), CAPACITY_FRESH_S) for host in hosts
        }

    def capacities(self) -> Mapping[str, HostCapacity | SshError]:
        """Return what each host has, or why that is not known."""
        return self._of_all(lambda name: self._capacities[name].get())

    def users(self) -> Mapping[str, str | SshError]:
        """Return which run each host trains, empty where none, or why that is not known."""
        return self._of_all(lambda name: Path(self._states[name].get()[1]).name)

    def launchers(self) -> Mapping[str, tuple[str, str] | SshError]:
        """Return the tag and the run's folder of each host's launcher, both empty where none lives."""
        return self._of_all(lambda name: self._states[name].get())

    def report(self, runs_dir: Path) -> Sequence[HostReport]:
        """Return what each host has, and what does not fit together.

        Raises:
            OSError: when the folder of the runs takes no file.
        """
        users = self.users()
        path, token = facts.make_token(runs_dir.resolve())
        try:
            found = self._of_all(
                lambda name: facts.ask(
                    self._ssh, self.by_name[name], users[name], path, token, is_shared=self._is_shared
                )
            )
        finally:
            path.unlink(missing_ok=True)
        reports = [report for report in found.values() if not isinstance(report, SshError)]
        return facts.compare(reports) if self._is_shared else reports

    def has_start(self, name: str, tag: str) -> bool | None:
        """Tell whether a host has the launcher of a start; None where it does not answer."""
        if name not in self._states:
            return None  # of a site file of other times
        try:
            return self._states[name].get()[0] == tag
        except SshError:
            return None

    def forget(self) -> None:
        """Ask all hosts anew next time what they train."""
        for each in self._states.values():
            each.forget()

    def on_each(self, scripts_by_name: Mapping[str, str], limit_s: float) -> Mapping[str, str | SshError]:
        """Run a script on each of some hosts at once; return what they print, or why they do not."""
        return self._of_all(
            lambda name: self._ssh.ask(self.by_name[name], scripts_by_name[name], limit_s=limit_s),
            list(scripts_by_name),
        )

    def address_of(self, name: str) -> str:
        """Return how the other hosts reach a host.

        Raises:
            SshError: when that is not known.
        """
        host = self.by_name[name]
        return host.address or self._ssh.address_of(host)

    def _of_all(
        self, ask: Callable[[str], Answer], names: Sequence[str] | None = None
    ) -> Mapping[str, Answer | SshError]:
        def one(name: str) -> Answer | SshError:
            try:
                return ask(name)
            except SshError as error:
                return error

        names = list(self.by_name) if names is None else names
        with ThreadPoolExecutor(max(1, len(names))) as pool:
            return dict(zip(names, pool.map(one, names), strict=True))


def _state_of(ssh: Ssh, host: SshHost) -> tuple[str, str]:
    """Return the tag and the run's folder of a host's launcher, both empty where none lives."""
    tag, _, run_dir = ssh.ask(host, scripts.state()).strip().partition(" ")
    return tag, run_dir


def _capacity_of(ssh: Ssh, host: SshHost) -> HostCapacity:
    try:
        return scripts.read_capacity(ssh.ask(host, scripts.capacity()))
    except ValueError as error:
        raise SshError(f"{host.name}: {error}") from error
