"""The SSH engine for hosts without a shared folder: each run is copied to one host and mirrored back.

`Copies.send` copies code, data and run to the host and starts the launcher there. From then on a `Mirror`
fetches the run's events, logs and checkpoints, and sends its commands. When the launcher has ended,
everything is fetched with checksums, the final status is written last, and the copy on the host is deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainers.contract import events, tickets
from trainers.contract import status as status_file
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines.base import Description, Engine, StartError
from trainers.engines.local import diagnosis
from trainers.engines.several_nodes import restarts
from trainers.engines.ssh import scripts
from trainers.engines.ssh.client import Ssh, SshError, UnreachableError
from trainers.engines.ssh.engine import NAME, POLL_S, SshEngine, SshLaunch
from trainers.engines.ssh.hosts import Hosts, Start
from trainers.engines.ssh.site import SshHost
from trainers.files import json_files
from trainers.files.json_files import write_json_atomically
from trainers.files.plain_files import REPOSITORY, is_readable
from trainers.machine import environment
from trainers.machine.environment import hour_and_minute, now_unix_s
from trainers.machine.os_errors import explain

NOTHING_FOR_S = 20
READ_BYTES = 4096
RSYNC_POLL_S = 0.2
_PERCENT = re.compile(rb"(\d{1,3})%")
# Exit codes of rsync if the connection failed or broke, or no data arrived for too long.
_NO_CONNECTION = (10, 12, 30, 35, 255)
_NOT_THERE = 127
# A file was deleted during the copy; the next call sees that.
_VANISHED = 24


class Rsync:
    """Copies between this machine and hosts. Thread-safe."""

    def __init__(self, ssh: Ssh) -> None:
        self._ssh = ssh

    def send(
        self,
        host: SshHost,
        sources: Sequence[str],
        to: str,
        *options: str,
        here: Path | None = None,
        say_percent: Callable[[int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> None:
        """Copy files or folders to a host; unchanged files are not sent.

        Args:
            sources: A source that ends in `/` means the content of that folder.
            here: Base folder of relative sources.
            say_percent: Called with the percentage of bytes that have been copied.
            is_cancelled: Polled during the copy; if it returns True, the copy fails.

        Raises:
            SshError: If not everything was copied.
        """
        progress = ["--info=progress2", "--no-inc-recursive"] if say_percent else []
        words = ["--chmod=D700,F600", *progress, *options, "--", *sources, f"{_name(host)}:{to}"]
        self._run(host, words, here, say_percent, is_cancelled)

    def fetch(self, host: SshHost, what: str, to: Path, *options: str) -> None:
        """Copy a file, or the content of a folder (trailing `/`), from a host.

        Raises:
            SshError: If not everything was copied.
        """
        self._run(host, [*options, "--", f"{_name(host)}:{what}", str(to)])

    def _run(
        self,
        host: SshHost,
        arguments: Sequence[str],
        here: Path | None = None,
        say_percent: Callable[[int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> None:
        shell = ["-e", self._ssh.remote_shell(), f"--timeout={NOTHING_FOR_S}"]
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    ["rsync", "-rt", "--protect-args", *shell, *arguments],
                    env=environment.for_a_child(self._ssh.variables, keep=("SSH_AUTH_SOCK",)),
                    cwd=here,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    bufsize=0,
                )
            except FileNotFoundError as error:
                raise SshError("there is no rsync here: install it") from error
            with process:
                assert process.stdout is not None
                while True:
                    if is_cancelled is not None and is_cancelled():
                        process.terminate()
                    if not is_readable(process.stdout, RSYNC_POLL_S):
                        continue
                    if not (read := process.stdout.read(READ_BYTES)):
                        break
                    if say_percent is not None and (found := _PERCENT.findall(read)):
                        say_percent(int(found[-1]))
            errors.seek(0)
            stderr = errors.read().decode("utf-8", "replace")
        if process.returncode not in (0, _VANISHED):
            raise _error(host, process.returncode, stderr)


def _name(host: SshHost) -> str:
    """Return the host as rsync expects it: an IPv6 address is in brackets."""
    user, at, name = host.name.rpartition("@")
    return f"{user}{at}[{name}]" if ":" in name else host.name


def _error(host: SshHost, code: int, stderr: str) -> SshError:
    lines = [line for line in stderr.strip().splitlines() if not line.startswith("rsync error:")]
    words = lines[0].strip() if lines else f"rsync ended with {code}"
    if code == _NOT_THERE or "rsync: command not found" in stderr or "rsync: not found" in stderr:
        return SshError(f"{host.name} has no rsync: install it there")
    if code in _NO_CONNECTION:
        return UnreachableError(f"the connection to {host.name} is lost: {words}")
    return SshError(f"{host.name}: {words}")


log = logging.getLogger(__name__)

COPY_POLL_S = 0.2
BACK_WITHIN_S = 120.0
STOPPED_BEFORE = "Stopped before it began."


class PendingCopy:
    """A run that is being copied to its host."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.words = "Waiting to be copied."
        self.is_cancelled = threading.Event()


class Copies:
    """Copies runs to hosts and mirrors them back. Thread-safe.

    Args:
        hosts: By name.
        layout: Paths on each host.
    """

    def __init__(self, ssh: Ssh, hosts: Mapping[str, SshHost], layout: Layout) -> None:
        self._ssh, self._rsync = ssh, Rsync(ssh)
        self._hosts = hosts
        self.layout = layout
        self._pending: dict[str, PendingCopy] = {}
        self._mirrors: dict[str, Mirror] = {}
        self._lock = threading.Lock()

    def send(self, run: RunDirectory, start: Start, start_there: Callable[[], None]) -> None:
        """Copy a run to its host and start it there, in a thread.

        Args:
            start_there: Starts the launcher; may raise SshError.
        """
        pending = PendingCopy(start)
        with self._lock:
            self._pending[start.tag] = pending
        threading.Thread(
            target=self._send, args=(run, pending, start_there), name=f"bring-{run.run_id}", daemon=True
        ).start()

    def words(self, start: Start) -> str | None:
        """Return the progress of a run's copy, as text; None if it is not being copied."""
        pending = self._pending.get(start.tag)
        return None if pending is None else pending.words

    def silence(self, start: Start) -> str | None:
        """Return since when a run's host has not answered, as text; None if it answers."""
        mirror = self._mirrors.get(start.tag)
        if mirror is None or mirror.silent_since_unix_s is None:
            return None
        return (
            f"{start.hosts[0]} has not answered since {hour_and_minute(mirror.silent_since_unix_s)}. This "
            "page shows the state at that time; the run may continue there, and its later events will "
            "follow."
        )

    def taken_hosts(self) -> Mapping[str, str]:
        """Return the hosts to which runs are being copied, and the start of each."""
        with self._lock:
            return {pending.start.hosts[0]: tag for tag, pending in self._pending.items()}

    def cancel(self, start: Start) -> bool:
        """Cancel a start; False if its copy has already finished."""
        pending = self._pending.get(start.tag)
        if pending is None:
            return False
        pending.is_cancelled.set()
        return True

    def is_alive(self, run: RunDirectory, start: Start) -> bool | None:
        """True if the run is active or not completely back; None if its host does not answer."""
        if start.tag in self._pending:
            return True
        mirror = self.mirror(run, start)
        if mirror is None or mirror.is_back.is_set():
            return False
        return None if mirror.silent_since_unix_s is not None else True

    def mirror(self, run: RunDirectory, start: Start) -> Mirror | None:
        """Return the mirror of a start, created on the first call; None if it is not of this site file.

        The folder must be the layout's: it will be deleted, so a status file cannot name an arbitrary folder.
        """
        host = self._hosts.get(start.hosts[0])
        if host is None or start.run_dir != self.layout.run(run.run_id):
            return None
        with self._lock:
            mirror = self._mirrors.get(start.tag)
            if mirror is None:
                mirror = self._mirrors[start.tag] = Mirror(self._ssh, self._rsync, run, start, host)
                mirror.begin()
            return mirror

    def wait_until_sent(self, start: Start) -> None:
        """Wait until the copy has finished: the run was started, or its status has the reason why not."""
        while start.tag in self._pending:
            time.sleep(COPY_POLL_S)

    def wait_until_back(self, run: RunDirectory, start: Start) -> None:
        """Wait until everything that an ended run has written is here.

        Raises:
            SshError: If it takes too long.
        """
        mirror = self.mirror(run, start)
        if mirror is not None and not mirror.is_back.wait(BACK_WITHIN_S):
            raise SshError(f"the files of run {run.run_id} are not yet back from {start.hosts[0]}")

    def _send(self, run: RunDirectory, pending: PendingCopy, start_there: Callable[[], None]) -> None:
        start = pending.start
        host = self._hosts[start.hosts[0]]

        def say(words: str) -> None:
            pending.words = words

        try:
            bring_code(self._ssh, self._rsync, host, self.layout, run, say, pending.is_cancelled.is_set)
            if pending.is_cancelled.is_set():
                raise CancelledError(STOPPED_BEFORE)
            say(f"Starting on {host.name} …")
            start_there()
            _record_start(run, start, "starting")
            self.mirror(run, start)
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                # An incomplete copy is useless; the next start copies everything.
                self._ssh.ask(host, f"rm -rf -- {shlex.quote(start.run_dir)}\n")
            is_stopped = pending.is_cancelled.is_set()
            words = STOPPED_BEFORE if is_stopped else f"It could not be started: {explain(error)}."
            try:
                _record_start(run, start, "stopped" if is_stopped else "failed", words)
            except (OSError, ValueError) as failed:
                log.warning("that %s was not started could not be written: %s", run.run_id, explain(failed))
        finally:
            with self._lock:
                del self._pending[start.tag]


def _record_start(run: RunDirectory, start: Start, state: events.State, error: str | None = None) -> None:
    """Record that a run starts, or why it does not, unless another start owns it."""
    lock = run.acquire_lock()
    try:
        recorded = status_file.read(run.status)
        if recorded is None or recorded.handle != start.handle:
            return
        status = Status(state=state, engine=recorded.engine, handle=start.handle)
        status = replace(status, last_seen_unix_s=now_unix_s())
        if error is None:
            run.write_status(status)
        else:
            diagnosis.record_end(run, status, state, error)
    finally:
        os.close(lock)


# The part of this project that training needs.
CODE = ("trainers", "assets/data")
PATH_FIELDS = ("data_path", "images_path", "pretrained_path")
# Both sides have their own version of these files.
# The page's machine writes these; a copy that came back would replace what was written meanwhile.
NOT_BROUGHT = ("config.json", "status.json", "queued.json", "granted.json", "run.lock", "forward")

_MAKE_ROOM = """\
umask 077
command -v rsync >/dev/null || { echo "it has no rsync: install it there" >&2; exit 1; }
mkdir -p {folders}
"""


class CancelledError(SshError):
    """The start was cancelled by a stop request."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Paths on a host.

    Attributes:
        folder: Parent of all of them.
    """

    folder: str

    @property
    def code(self) -> str:
        return f"{self.folder}/code"

    def run(self, run_id: str) -> str:
        return f"{self.folder}/runs/{run_id}"

    def data(self, path: str) -> str:
        """Return the folder for the data of a local path; later runs reuse it."""
        return f"{self.folder}/data/{hashlib.sha256(path.encode()).hexdigest()[:16]}"


def bring_code(
    ssh: Ssh,
    rsync: Rsync,
    host: SshHost,
    layout: Layout,
    run: RunDirectory,
    say: Callable[[str], None],
    is_cancelled: Callable[[], bool],
) -> None:
    """Copy code, data and run to a host.

    Args:
        say: Called with the current item and its progress, as text.

    Raises:
        SshError: If not everything was copied.
        OSError: If a file cannot be read here.
    """
    config = run.read_config()
    paths = {name: str(path) for name in PATH_FIELDS if (path := _existing_path(config, name)) is not None}
    folders = [layout.code, layout.run(run.run_id), *map(layout.data, paths.values())]
    ssh.ask(host, scripts.filled(_MAKE_ROOM, folders=shlex.join(folders)))

    def send(what: str, sources: list[str], to: str, *options: str, here: Path | None = None) -> None:
        if is_cancelled():
            raise CancelledError(f"run {run.run_id} was stopped before it began")
        say(f"Copying {what} to {host.name} …")
        rsync.send(
            host,
            sources,
            to,
            *options,
            here=here,
            say_percent=lambda percent: say(f"Copying {what} to {host.name}: {percent}% …"),
            is_cancelled=is_cancelled,
        )

    code = ("--relative", "--delete", "--exclude=__pycache__")
    send("the code", list(CODE), f"{layout.code}/", *code, here=REPOSITORY)
    for data in paths.values():
        send(Path(data).name, [data], f"{layout.data(data)}/", "--delete", "--copy-unsafe-links")
    left_out = [f"--exclude=/{name}" for name in NOT_BROUGHT]
    send("the run", [f"{run.path}/"], f"{layout.run(run.run_id)}/", "--delete", *left_out)
    there = {name: f"{layout.data(data)}/{Path(data).name}" for name, data in paths.items()}
    with tempfile.TemporaryDirectory() as folder:
        # The run's own configuration, with the paths of its data on the host.
        file = Path(folder) / run.config.name
        write_json_atomically(file, {**config.to_json(), **there})
        rsync.send(host, [str(file)], f"{layout.run(run.run_id)}/{run.config.name}")


def _existing_path(config: Config, name: str) -> Path | None:
    """Return a field's path if it exists here; a missing path is reported by training."""
    value = getattr(config, name)
    path = Path(value).expanduser().absolute() if value else None
    return path if path is not None and path.exists() else None


MIRROR_POLL_S = 1.0
# Limits the share of time for polling, so that a slow connection is not kept busy.
SHARE_OF_TIME = 0.5
CHECKPOINTS_EVERY_S = 5.0

# Written on this side, or used only there.
NOT_FETCHED = (
    *NOT_BROUGHT,
    *("commands.jsonl", "notes.json", "owner.json", "data.json", "references.json", "checkpoints"),
)
_GROWING = (
    "--include=/events.jsonl",
    "--include=/logs/",
    "--include=/logs/**",
    "--include=/recordings/",
    "--include=/recordings/step_*.json",
    "--exclude=*",
    "--append",
)

_LOOK = """\
{state}
[ -d {run} ] || exit 0
echo folder
[ -f {run}/status.json ] || exit 0
echo status
cat {run}/status.json
"""


@dataclass(frozen=True, kw_only=True)
class RemoteState:
    """The state of a run on its host.

    Attributes:
        is_at_work: Its launcher is alive.
        has_folder: Its folder exists, so something must be fetched.
        status: Status of this start, or None.
    """

    is_at_work: bool
    has_folder: bool
    status: dict[str, Any] | None


class Mirror:
    """Mirrors one start of a run on one host: fetches what it writes, and sends its commands."""

    def __init__(self, ssh: Ssh, rsync: Rsync, run: RunDirectory, start: Start, host: SshHost) -> None:
        self._ssh, self._rsync = ssh, rsync
        self._run, self._start, self._host = run, start, host
        self._num_bytes_sent = -1
        self._checkpoints_lock = threading.Lock()
        self.is_back = threading.Event()
        self.silent_since_unix_s: float | None = None

    def begin(self) -> None:
        """Mirror in threads until everything is back."""
        for follow, what in ((self._follow, "events"), (self._follow_checkpoints, "checkpoints")):
            name = f"{what}-{self._run.run_id}"
            threading.Thread(target=follow, name=name, daemon=True).start()

    def _follow(self) -> None:
        while not self.is_back.is_set():
            began = time.monotonic()
            try:
                self._follow_once()
                self.silent_since_unix_s = None
            except UnreachableError as error:
                if self.silent_since_unix_s is None:
                    self.silent_since_unix_s = now_unix_s()
                    log.warning("%s continues, but cannot be followed: %s", self._run.run_id, error)
            except (OSError, ValueError) as error:
                log.warning("what %s has written did not come back: %s", self._run.run_id, error)
            took_s = time.monotonic() - began
            self.is_back.wait(max(MIRROR_POLL_S, took_s / SHARE_OF_TIME) - took_s)

    def _follow_once(self) -> None:
        state = self.read_state()
        if state.is_at_work:
            self._send_commands()
            self._fetch_growing()
            # The final status must not arrive before everything else is here.
            if state.status is not None and state.status.get("state") in events.LIVE_STATES:
                json_files.write_json_atomically(self._run.status, state.status)
            return
        if state.has_folder:
            self._fetch_all()
            if state.status is not None:
                json_files.write_json_atomically(self._run.status, state.status)
            self._delete_there()
        self.is_back.set()

    def read_state(self) -> RemoteState:
        """Read the state of the run on its host.

        Raises:
            SshError: If the host does not answer.
            ValueError: If its answer is invalid.
        """
        script = scripts.filled(_LOOK, state=scripts.state(), run=shlex.quote(self._start.run_dir))
        listing, _, status = self._ssh.ask(self._host, script).partition("status\n")
        lines = listing.splitlines()
        raw = json_files.parse_json(status) if status else None
        is_ours = isinstance(raw, dict) and raw.get("handle") == self._start.handle
        return RemoteState(
            is_at_work=any(line.partition(" ")[0] == self._start.tag for line in lines),
            has_folder="folder" in lines,
            status=raw if is_ours else None,
        )

    def _follow_checkpoints(self) -> None:
        while not self.is_back.wait(CHECKPOINTS_EVERY_S):
            try:
                self._fetch_checkpoints()
            except OSError as error:
                log.info("checkpoints of %s come later: %s", self._run.run_id, error)

    def _send_commands(self) -> None:
        try:
            num_bytes = self._run.commands.stat().st_size
        except FileNotFoundError:
            return
        if num_bytes != self._num_bytes_sent:
            there = f"{self._start.run_dir}/{self._run.commands.name}"
            self._rsync.send(self._host, [str(self._run.commands)], there, "--append")
            self._num_bytes_sent = num_bytes

    def _fetch_growing(self) -> None:
        self._rsync.fetch(self._host, f"{self._start.run_dir}/", self._run.path, *_GROWING)

    def _fetch_all(self) -> None:
        """Fetch everything, comparing checksums with the files here."""
        with self._checkpoints_lock:
            self._fetch_checkpoints_now("--checksum")
            left_out = [f"--exclude=/{name}" for name in NOT_FETCHED]
            self._rsync.fetch(self._host, f"{self._start.run_dir}/", self._run.path, "--checksum", *left_out)

    def _fetch_checkpoints(self) -> None:
        with self._checkpoints_lock:
            if not self.is_back.is_set():
                self._fetch_checkpoints_now()

    def _fetch_checkpoints_now(self, *options: str) -> None:
        """Fetch manifests last, as they mark complete folders; delete what the host has deleted."""
        there, partial = f"{self._start.run_dir}/checkpoints/", "--exclude=.step_*"
        to = self._run.checkpoints
        self._rsync.fetch(self._host, there, to, partial, "--exclude=manifest.json", *options)
        self._rsync.fetch(self._host, there, to, partial, "--delete", *options)

    def _delete_there(self) -> None:
        try:
            self._ssh.ask(self._host, f"rm -rf -- {shlex.quote(self._start.run_dir)}\n")
        except SshError as error:
            log.warning("the copy of %s is left on its host: %s", self._run.run_id, error)


AT_WORK_WITHIN_S = 60.0


class UnsharedLaunch(SshLaunch):
    """A start that copies the run to its host first."""

    def __init__(self, engine: UnsharedSshEngine, copies: Copies, run: RunDirectory, start: Start) -> None:
        super().__init__(engine, run, start)
        self._copies = copies

    def wait_until_owned(self) -> None:
        """Return immediately: the status is "queued" from the beginning and follows the copy."""

    def wait_until_at_work(self) -> None:
        """Wait until the run's launcher has written its first status.

        Raises:
            StartError: If it does not.
        """
        self._copies.wait_until_sent(self.start)
        deadline = time.monotonic() + AT_WORK_WITHIN_S
        while True:
            recorded = status_file.read(self._run.status)
            if recorded is not None and recorded.state not in events.LIVE_STATES and recorded.error:
                raise StartError(recorded.error)
            if recorded is not None and recorded.started_unix_s is not None:
                return
            if time.monotonic() > deadline:
                raise StartError(f"{self.start.hosts[0]} said nothing for {AT_WORK_WITHIN_S:.0f} s")
            time.sleep(POLL_S)

    def wait_for_end(self) -> None:
        """Wait until the run has ended and everything that it wrote is here."""
        while self._copies.is_alive(self._run, self.start) is not False:
            time.sleep(POLL_S)


class UnsharedSshEngine(SshEngine):
    """Hosts of one site file without a shared folder. Each run uses one host."""

    _why_nothing_named = "the hosts share no folder with this machine; its code is copied to the host"
    _why_no_more = "the hosts share no folder, and all ranks write their checkpoints into one"

    def __init__(self, site_file: Path, hosts: Hosts, copies: Copies) -> None:
        super().__init__(site_file, hosts)
        self.copies = copies

    def stop(self, run: RunDirectory, status: Status, *, save: bool, why: str = "") -> str:
        """End a run, or cancel its copy. A host that does not answer receives the command later."""
        start = Start.of(status.handle)
        if start is not None and self.copies.cancel(start):
            return ""
        return Engine.stop(self, run, status, save=save, why=why)

    def describe(self, run: RunDirectory, status: Status, *, is_queued: bool = False) -> Description:
        """Return the progress of a run's copy to its host, and since when the host has not answered.

        It counts as alive while it is copied, active, or not completely back.
        """
        del is_queued  # nothing takes longer
        start = Start.of(status.handle)
        if start is None:
            return Description()
        words = self.copies.words(start)
        return Description(
            is_alive=self.copies.is_alive(run, start) if status.state in events.LIVE_STATES else False,
            is_waiting=words is not None,
            why=words,
            place="on its way to its host",
            silence=self.copies.silence(start),
        )

    def links(self) -> Sequence[tuple[str, str]]:
        """Return no pairs: no run uses two hosts."""
        return ()

    def _most_hosts(self) -> int:
        return 1

    def _users(self) -> Mapping[str, str | SshError]:
        """Return which run uses each host, including runs that are being copied."""
        return {**self.hosts.users(), **self.copies.taken_hosts()}

    def _begin(self, run: RunDirectory, start: Start, resume_step: int | None) -> UnsharedLaunch:
        """Start the copy of a run to its host."""
        start = replace(start, run_dir=self.copies.layout.run(run.run_id))
        waiting = Status(state="queued", engine=NAME, handle=start.handle, last_seen_unix_s=now_unix_s())
        run.write_status(waiting)
        tickets.close_ticket(run)
        self.copies.send(run, start, lambda: self._start_on_all(run, start, resume_step))
        return UnsharedLaunch(self, self.copies, run, start)

    def _end(self, run: RunDirectory, status: Status, message: str) -> None:
        """Kill a run's processes; write its final events and status when everything that it wrote is here."""
        start = Start.of(status.handle)
        assert start is not None, "a live run of this engine has a start"
        if self.copies.cancel(start):
            self.copies.wait_until_sent(start)
            return
        if silent := self.reap(start):  # the run could continue there for hours
            raise SshError(f"run {run.run_id} cannot be killed now: {'; '.join(silent)}")
        self.copies.wait_until_back(run, start)
        restarts.write_forced_end(run, status, message)
