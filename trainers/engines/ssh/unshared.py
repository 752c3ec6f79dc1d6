"""The SSH engine for hosts without a shared folder: each run is copied to one host and mirrored back.

`RemoteCopy` is one start of a run. It copies code, data and run to the host and starts the launcher there.
From then on it fetches the run's events, logs and checkpoints, and sends its commands. When the launcher has
ended, everything is fetched with checksums, the final status is written last, and the copy on the host is
deleted.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainers.contract import events, tickets
from trainers.contract import status as status_file
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines.base import Description, Engine, Launch, StartError
from trainers.engines.local import diagnosis, stopping
from trainers.engines.ssh import scripts
from trainers.engines.ssh.client import Ssh, SshError, UnreachableError
from trainers.engines.ssh.engine import NAME, POLL_S, SshEngine
from trainers.engines.ssh.hosts import Hosts, SshStart
from trainers.engines.ssh.site import SshHost
from trainers.files.json_files import parse_json, write_json_atomically
from trainers.files.plain_files import REPOSITORY, is_readable
from trainers.machine import environment
from trainers.machine.environment import hour_and_minute, now_unix_s
from trainers.machine.os_errors import explain

TRANSFER_TIMEOUT_S = 20
READ_BYTES = 4096
RSYNC_POLL_S = 0.2
_PERCENT = re.compile(rb"(\d{1,3})%")
# Exit codes of rsync if the connection failed or broke, or no data arrived for too long.
_NO_CONNECTION = (10, 12, 30, 35, 255)
_NOT_INSTALLED = 127
# Exit code if a file was deleted during the copy; the next call handles this.
_VANISHED = 24


class Rsync:
    """Copies between this machine and a host. Thread-safe."""

    def __init__(self, ssh: Ssh, host: SshHost) -> None:
        self._ssh, self._host = ssh, host

    def send(
        self,
        sources: Sequence[str],
        target: str,
        *options: str,
        base_folder: Path | None = None,
        report_percent: Callable[[int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> None:
        """Copy files or folders to the host; unchanged files are not sent.

        Args:
            sources: Files or folders; a folder with a trailing `/` means its content.
            base_folder: Base folder of relative sources.
            report_percent: Called with the percentage of bytes that have been copied.
            is_cancelled: Polled during the copy; if it returns True, the copy fails.

        Raises:
            SshError: If not everything was copied.
        """
        progress = ["--info=progress2", "--no-inc-recursive"] if report_percent else []
        arguments = [
            "--chmod=D700,F600",
            *progress,
            *options,
            "--",
            *sources,
            f"{_name(self._host)}:{target}",
        ]
        self._run(arguments, base_folder, report_percent, is_cancelled)

    def fetch(self, source: str, target: Path, *options: str) -> None:
        """Copy a file, or the content of a folder (trailing `/`), from the host.

        Raises:
            SshError: If not everything was copied.
        """
        self._run([*options, "--", f"{_name(self._host)}:{source}", str(target)])

    def _run(
        self,
        arguments: Sequence[str],
        base_folder: Path | None = None,
        report_percent: Callable[[int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> None:
        shell = ["-e", self._ssh.remote_shell(), f"--timeout={TRANSFER_TIMEOUT_S}"]
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    ["rsync", "-rt", "--protect-args", *shell, *arguments],
                    env=environment.for_a_child(self._ssh.variables, keep=("SSH_AUTH_SOCK",)),
                    cwd=base_folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    bufsize=0,
                )
            except FileNotFoundError as error:
                raise SshError("rsync is not installed on this machine: install rsync") from error
            with process:
                assert process.stdout is not None
                while True:
                    if is_cancelled is not None and is_cancelled():
                        process.terminate()
                    if not is_readable(process.stdout, RSYNC_POLL_S):
                        continue
                    if not (output := process.stdout.read(READ_BYTES)):
                        break
                    if report_percent is not None and (percentages := _PERCENT.findall(output)):
                        report_percent(int(percentages[-1]))
            errors.seek(0)
            stderr = errors.read().decode("utf-8", "replace")
        if process.returncode not in (0, _VANISHED):
            raise _error(self._host, process.returncode, stderr)


def _name(host: SshHost) -> str:
    """Return the host as rsync expects it: an IPv6 address is in brackets."""
    user, at, name = host.name.rpartition("@")
    return f"{user}{at}[{name}]" if ":" in name else host.name


def _error(host: SshHost, code: int, stderr: str) -> SshError:
    lines = [line for line in stderr.strip().splitlines() if not line.startswith("rsync error:")]
    message = lines[0].strip() if lines else f"rsync ended with exit code {code}"
    if code == _NOT_INSTALLED or "rsync: command not found" in stderr or "rsync: not found" in stderr:
        return SshError(f"{host.name} has no rsync: install rsync on this host")
    if code in _NO_CONNECTION:
        return UnreachableError(f"the connection to {host.name} is lost: {message}")
    return SshError(f"{host.name}: {message}")


log = logging.getLogger(__name__)

# The part of this project that training needs.
CODE = ("trainers", "assets/data")
PATH_FIELDS = ("data_path", "images_path", "pretrained_path")
# Files that the page's machine writes, so the host's copies would be older.
NOT_SENT = ("config.json", "status.json", "queued.json", "granted.json", "run.lock", "forward")
# Files that are written on this machine, or used only on the host.
NOT_FETCHED = (
    *NOT_SENT,
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
STOPPED_BEFORE_START = "Stopped before the start."
MIRROR_POLL_S = 1.0
# Share of the time for polling, limited so that polling does not saturate a slow connection.
POLL_TIME_SHARE = 0.5
CHECKPOINTS_EVERY_S = 5.0

_MAKE_FOLDERS = """\
umask 077
command -v rsync >/dev/null || { echo "this host has no rsync: install rsync on it" >&2; exit 1; }
mkdir -p {folders}
"""
_STATE_SCRIPT = """\
{state}
[ -d {run} ] || exit 0
echo folder
[ -f {run}/status.json ] || exit 0
echo status
cat {run}/status.json
"""


class RemoteCopy:
    """One start of a run on a host: copies the run to the host, then mirrors it until all files are back.
    Thread-safe.

    Attributes:
        progress: Progress of the copy to the host, as text.
        is_sent: Set when the run was started, or its status contains the reason why not.
        is_back: Set when the run has ended and all its files are on this machine.
        silent_since_unix_s: When the host stopped answering; None while it answers.
    """

    def __init__(self, ssh: Ssh, run: RunDirectory, start: SshStart, host: SshHost) -> None:
        self._ssh, self._rsync = ssh, Rsync(ssh, host)
        self._host, self.run, self.start = host, run, start
        self.progress = "Waiting to be copied."
        self.is_sent, self.is_back = threading.Event(), threading.Event()
        self.silent_since_unix_s: float | None = None
        self._is_cancelled = False
        self._num_bytes_sent = -1
        self._start_lock, self._checkpoints_lock = threading.Lock(), threading.Lock()

    @property
    def is_alive(self) -> bool | None:
        """True during the copy to the host, the run, and the copy back; None if the host is silent."""
        if self.is_back.is_set():
            return False
        return None if self.silent_since_unix_s is not None else True

    @property
    def silence(self) -> str | None:
        """Since when the host has not answered, as text; None if it answers."""
        if self.silent_since_unix_s is None:
            return None
        return (
            f"{self._host.name} has not answered since {hour_and_minute(self.silent_since_unix_s)}. This "
            "page shows the state at that time. The run may still train on the host; the page will show "
            "its later events when the host answers."
        )

    # To the host

    def send(
        self, folder: str, start_launcher: Callable[[], None], end_launcher: Callable[[], object]
    ) -> None:
        """Copy the run to its host and start it there, in a thread; then mirror it.

        Args:
            folder: Folder on the host for copied data, which later runs reuse.
            start_launcher: Starts the launcher; may raise SshError.
            end_launcher: Ends it; returns a value that is true if its host did not answer.
        """
        self._in_thread(lambda: self._send(folder, start_launcher, end_launcher), "bring")

    def cancel(self) -> bool:
        """Cancel the start; False if the run was started already."""
        with self._start_lock:
            self._is_cancelled |= not self.is_sent.is_set()
            return self._is_cancelled

    def _send(
        self, folder: str, start_launcher: Callable[[], None], end_launcher: Callable[[], object]
    ) -> None:
        try:
            self._copy_all(folder)
            self._require_not_cancelled()
            self.progress = f"Starting on {self._host.name} …"
            start_launcher()
            with self._start_lock:  # a later `cancel` finds that the run has started
                if not self._is_cancelled:
                    self._record_start("starting")
                    self.is_sent.set()
            if self._is_cancelled and end_launcher():
                # The launcher may run on the host, so mirror the run, and stop it by a command.
                self.run.append_command("stop", save=False)
                with self._start_lock:
                    self._is_cancelled = False
                    self._record_start("starting")
                    self.is_sent.set()
            self._require_not_cancelled()
            self.mirror()
        except (OSError, ValueError) as error:
            # Delete an incomplete copy: the next start copies everything.
            self._delete_remote_copy()
            state: events.State = "stopped" if self._is_cancelled else "failed"
            message = (
                STOPPED_BEFORE_START
                if self._is_cancelled
                else f"The run could not be started: {explain(error)}."
            )
            try:
                self._record_start(state, message)
            except (OSError, ValueError) as record_error:
                log.warning(
                    "could not record that %s was not started: %s", self.run.run_id, explain(record_error)
                )
            self.is_back.set()
        finally:
            self.is_sent.set()

    def _require_not_cancelled(self) -> None:
        if self._is_cancelled:
            raise SshError(STOPPED_BEFORE_START)

    def _copy_all(self, folder: str) -> None:
        """Copy code, data and run to the host.

        Raises:
            SshError: If not everything was copied.
            OSError: If a file cannot be read here.
        """
        config, code, remote_dir = self.run.read_config(), self._host.remote_project, self.start.run_dir
        data = {name: path for name in PATH_FIELDS if (path := _existing_path(config, name)) is not None}
        remote_paths = {
            path: f"{folder}/data/{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
            for path in data.values()
        }
        self._ssh.ask(
            self._host,
            scripts.fill_script(
                _MAKE_FOLDERS, folders=shlex.join([code, remote_dir, *remote_paths.values()])
            ),
        )
        options = ("--relative", "--delete", "--exclude=__pycache__")
        self._send_files("the code", CODE, code, *options, base_folder=REPOSITORY)
        for path, remote_path in remote_paths.items():
            self._send_files(path.name, [str(path)], remote_path, "--delete", "--copy-unsafe-links")
        excluded = [f"--exclude=/{name}" for name in NOT_SENT]
        self._send_files("the run", [f"{self.run.path}/"], remote_dir, "--delete", *excluded)
        with tempfile.TemporaryDirectory() as temporary:
            # The run's configuration with the paths of its data on the host.
            config_file = Path(temporary) / self.run.config.name
            remote_values = {name: f"{remote_paths[path]}/{path.name}" for name, path in data.items()}
            write_json_atomically(config_file, {**config.to_json(), **remote_values})
            self._rsync.send([str(config_file)], f"{remote_dir}/{config_file.name}")

    def _send_files(
        self, label: str, sources: Sequence[str], target: str, *options: str, base_folder: Path | None = None
    ) -> None:
        self._require_not_cancelled()
        action = f"Copying {label} to {self._host.name}"
        self.progress = f"{action} …"

        def report_percent(percent: int) -> None:
            self.progress = f"{action}: {percent}% …"

        self._rsync.send(
            sources,
            f"{target}/",
            *options,
            base_folder=base_folder,
            report_percent=report_percent,
            is_cancelled=lambda: self._is_cancelled,
        )

    def _record_start(self, state: events.State, error: str | None = None) -> None:
        """Record that the run starts, or why it does not, unless another start owns it."""
        with self.run.owned():
            recorded = status_file.read(self.run.status)
            if recorded is None or recorded.handle != self.start.handle:
                return
            status = Status(state=state, engine=recorded.engine, handle=self.start.handle)
            status = replace(status, last_seen_unix_s=now_unix_s())
            if error is None:
                self.run.write_status(status)
            else:
                diagnosis.record_end(self.run, status, state, error)

    def mirror(self) -> None:
        """Mirror the run in threads until everything is back."""
        self.is_sent.set()
        self._in_thread(self._follow, "events")
        self._in_thread(self._follow_checkpoints, "checkpoints")

    def _in_thread(self, function: Callable[[], None], name: str) -> None:
        threading.Thread(target=function, name=f"{name}-{self.run.run_id}", daemon=True).start()

    def _follow(self) -> None:
        while not self.is_back.is_set():
            started_at = time.monotonic()
            try:
                self._follow_once()
                self.silent_since_unix_s = None
            except UnreachableError as error:
                if self.silent_since_unix_s is None:
                    self.silent_since_unix_s = now_unix_s()
                    log.warning("%s continues, but cannot be mirrored: %s", self.run.run_id, error)
            except (OSError, ValueError) as error:
                log.warning("the files of %s could not be fetched: %s", self.run.run_id, error)
            duration_s = time.monotonic() - started_at
            self.is_back.wait(max(MIRROR_POLL_S, duration_s / POLL_TIME_SHARE) - duration_s)

    def _follow_once(self) -> None:
        """Read the state of the run on its host, and fetch its new files.

        Raises:
            SshError: If the host does not answer.
            ValueError: If its answer is invalid.
        """
        script = scripts.fill_script(
            _STATE_SCRIPT, state=scripts.state_script(), run=shlex.quote(self.start.run_dir)
        )
        listing, _, text = self._ssh.ask(self._host, script).partition("status\n")
        lines = listing.splitlines()
        raw = parse_json(text) if text else None
        status = raw if isinstance(raw, dict) and raw.get("handle") == self.start.handle else None
        if any(line.partition(" ")[0] == self.start.tag for line in lines):  # its launcher is alive
            self._send_commands()
            self._rsync.fetch(f"{self.start.run_dir}/", self.run.path, *_GROWING)
            # The final status must arrive last, after all other files.
            if status is not None and status.get("state") in events.LIVE_STATES:
                write_json_atomically(self.run.status, status)
            return
        if "folder" in lines:
            self._fetch_all()
            if status is not None:
                write_json_atomically(self.run.status, status)
            self._delete_remote_copy()
        self.is_back.set()

    def _follow_checkpoints(self) -> None:
        while not self.is_back.wait(CHECKPOINTS_EVERY_S):
            try:
                with self._checkpoints_lock:
                    if not self.is_back.is_set():
                        self._fetch_checkpoints()
            except OSError as error:
                log.info("checkpoints of %s will be fetched later: %s", self.run.run_id, error)

    def _send_commands(self) -> None:
        try:
            num_bytes = self.run.commands.stat().st_size
        except FileNotFoundError:
            return
        if num_bytes != self._num_bytes_sent:
            remote_path = f"{self.start.run_dir}/{self.run.commands.name}"
            self._rsync.send([str(self.run.commands)], remote_path, "--append")
            self._num_bytes_sent = num_bytes

    def _fetch_all(self) -> None:
        """Fetch all files, comparing checksums with the local files."""
        with self._checkpoints_lock:
            self._fetch_checkpoints("--checksum")
            excluded = [f"--exclude=/{name}" for name in NOT_FETCHED]
            self._rsync.fetch(f"{self.start.run_dir}/", self.run.path, "--checksum", *excluded)

    def _fetch_checkpoints(self, *options: str) -> None:
        """Fetch manifests last, as they mark complete folders; delete what the host has deleted."""
        remote_dir, partial = f"{self.start.run_dir}/checkpoints/", "--exclude=.step_*"
        local_dir = self.run.checkpoints
        self._rsync.fetch(remote_dir, local_dir, partial, "--exclude=manifest.json", *options)
        self._rsync.fetch(remote_dir, local_dir, partial, "--delete", *options)

    def _delete_remote_copy(self) -> None:
        try:
            self._ssh.ask(self._host, f"rm -rf -- {shlex.quote(self.start.run_dir)}\n")
        except SshError as error:
            log.warning("the copy of %s could not be deleted on its host: %s", self.run.run_id, error)


def _existing_path(config: Config, name: str) -> Path | None:
    """Return a field's path if it exists here; a missing path is reported by training."""
    value = getattr(config, name)
    path = Path(value).expanduser().absolute() if value else None
    return path if path is not None and path.exists() else None


START_LIMIT_S = 60.0
FETCH_LIMIT_S = 120.0


class UnsharedLaunch(Launch):
    """A start that copies the run to its host first."""

    def __init__(self, copy: RemoteCopy) -> None:
        self._copy = copy
        self.location = copy.start.hosts[0]

    def wait_until_owned(self) -> None:
        """Return immediately: the status is "queued" from the beginning and follows the copy."""

    def wait_until_at_work(self) -> None:
        """Wait until the run's launcher has written its first status.

        Raises:
            StartError: If the launcher does not write it in time.
        """
        self._copy.is_sent.wait()
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            recorded = status_file.read(self._copy.run.status)
            if recorded is not None and recorded.state not in events.LIVE_STATES and recorded.error:
                raise StartError(recorded.error)
            if recorded is not None and recorded.started_unix_s is not None:
                return
            if time.monotonic() > deadline:
                raise StartError(f"{self.location} did not report within {START_LIMIT_S:.0f} s")
            time.sleep(POLL_S)

    def wait_for_end(self) -> None:
        """Wait until the run has ended and all its files are on this machine."""
        self._copy.is_back.wait()


class UnsharedSshEngine(SshEngine):
    """Hosts of one site file without a shared folder. Each run uses one host.

    Args:
        folder: Folder on each host for copied runs, code and data.
    """

    _no_paths_reason = "the hosts share no folder with this machine; its code is copied to the host"
    _host_limit_reason = "several hosts need a shared folder for their checkpoints"

    def __init__(self, site_file: Path, hosts: Hosts, folder: str) -> None:
        super().__init__(site_file, hosts)
        self._folder = folder
        self._copies: dict[str, RemoteCopy] = {}
        self._lock = threading.Lock()

    def stop(self, run: RunDirectory, status: Status, *, save: bool, reason: str = "") -> str:
        """End a run, or cancel its copy. A host that does not answer receives the command later."""
        copy = self._copy_of(run, status)
        if copy is not None and copy.cancel():
            return ""
        return Engine.stop(self, run, status, save=save, reason=reason)

    def describe(self, run: RunDirectory, status: Status, *, is_queued: bool = False) -> Description:
        """Return the progress of a run's copy to its host, and the time since which the host has not
        answered.

        The run counts as alive while it is being copied, is active, or has files to fetch.
        """
        del is_queued  # no request takes longer for a queued run
        copy = self._copy_of(run, status) if status.state in events.LIVE_STATES else None
        if copy is None:
            return Description()
        is_waiting = not copy.is_sent.is_set()
        return Description(
            is_alive=copy.is_alive,
            is_waiting=is_waiting,
            reason=copy.progress if is_waiting else None,
            place="being copied to its host",
            silence=copy.silence,
        )

    def links(self) -> Sequence[tuple[str, str]]:
        """Return no pairs: no run uses two hosts."""
        return ()

    def _max_hosts(self) -> int:
        return 1

    def _users(self) -> Mapping[str, str | SshError]:
        """Return the run on each host, including runs that are being copied."""
        with self._lock:
            starts = [copy.start for copy in self._copies.values() if not copy.is_sent.is_set()]
        return {**self.hosts.users(), **{start.hosts[0]: start.tag for start in starts}}

    def _copy_of(self, run: RunDirectory, status: Status) -> RemoteCopy | None:
        """Return the copy of a run; if an earlier page has sent it, it is mirrored from the first call on.

        None if the run does not belong to this site file. The folder must be the site's folder, because it
        will be deleted and a status file could name any folder.
        """
        start = SshStart.from_handle(status.handle)
        host = None if start is None else self.hosts.by_name.get(start.hosts[0])
        if start is None or host is None or start.run_dir != self._run_dir(run):
            return None
        with self._lock:
            copy = self._copies.get(start.tag)
            if copy is None:
                copy = self._copies[start.tag] = RemoteCopy(self.hosts.ssh, run, start, host)
                copy.mirror()
            return copy

    def _run_dir(self, run: RunDirectory) -> str:
        return f"{self._folder}/runs/{run.run_id}"

    def _start_run(self, run: RunDirectory, start: SshStart, resume_step: int | None) -> UnsharedLaunch:
        """Start the copy of a run to its host."""
        start = replace(start, run_dir=self._run_dir(run))
        copy = RemoteCopy(self.hosts.ssh, run, start, self.hosts.by_name[start.hosts[0]])
        with self._lock:
            self._copies[start.tag] = copy
        waiting = Status(state="queued", engine=NAME, handle=start.handle, last_seen_unix_s=now_unix_s())
        run.write_status(waiting)
        tickets.close_ticket(run)
        copy.send(self._folder, lambda: self._start_on_all(run, start, resume_step), lambda: self.reap(start))
        return UnsharedLaunch(copy)

    def _end(self, run: RunDirectory, status: Status, message: str) -> None:
        """Kill a run's processes, fetch its files, and write its final events and status."""
        start, copy = SshStart.from_handle(status.handle), self._copy_of(run, status)
        assert start is not None, "a live run of this engine has a start"
        if copy is not None and copy.cancel():
            copy.is_sent.wait()
            if copy.cancel():  # else the run was started, and its host did not answer
                return
        if errors := self.reap(start):  # the run could continue there for hours
            raise SshError(f"run {run.run_id} cannot be killed now: {'; '.join(map(str, errors.values()))}")
        if copy is not None and not copy.is_back.wait(FETCH_LIMIT_S):
            raise SshError(f"the files of run {run.run_id} are not yet back from {start.hosts[0]}")
        stopping.write_forced_end(run, status, message)
