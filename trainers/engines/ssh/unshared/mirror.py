"""Follows a run on a host: takes commands there, and brings back what it writes, again and again.

A connection that breaks loses nothing: what is there already is not fetched again, what is missing comes when
the host answers. The run ends here when all of it is back; only then is it deleted there.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from dataclasses import dataclass
from typing import Any

from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines.ssh import scripts
from trainers.engines.ssh.client import Ssh, SshError, UnreachableError
from trainers.engines.ssh.site import SshHost
from trainers.engines.ssh.starts import Start
from trainers.engines.ssh.unshared import bring
from trainers.engines.ssh.unshared.rsync import Rsync
from trainers.files import json_files
from trainers.machine.clock import now_unix_s

log = logging.getLogger(__name__)

POLL_S = 1.0
# A slow connection is not kept busy.
SHARE_OF_TIME = 0.5
CHECKPOINTS_EVERY_S = 5.0

# Written here, or meant for that side only.
NOT_FETCHED = (
    *bring.NOT_BROUGHT,
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
class Look:
    """What a host says of a run.

    Attributes:
        is_at_work: its launcher lives.
        has_folder: there is something to bring back.
        status: of this start; None where there is none yet.
    """

    is_at_work: bool
    has_folder: bool
    status: dict[str, Any] | None


class Mirror:
    """One start of a run on one host."""

    def __init__(self, ssh: Ssh, rsync: Rsync, run: RunDirectory, start: Start, host: SshHost) -> None:
        self._ssh, self._rsync = ssh, rsync
        self._run, self._start, self._host = run, start, host
        self._num_bytes_sent = -1
        self._checkpoints_lock = threading.Lock()
        self.is_back = threading.Event()
        self.silent_since_unix_s: float | None = None

    def begin(self) -> None:
        """Follow in threads, until all is back."""
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
                    log.warning("%s goes on, and is not seen: %s", self._run.run_id, error)
            except (OSError, ValueError) as error:
                log.warning("what %s has written did not come back: %s", self._run.run_id, error)
            took_s = time.monotonic() - began
            self.is_back.wait(max(POLL_S, took_s / SHARE_OF_TIME) - took_s)

    def _follow_once(self) -> None:
        look = self.look()
        if look.is_at_work:
            self._send_commands()
            self._fetch_growing()
            # What says that it has ended waits until everything else is here.
            if look.status is not None and look.status.get("state") in events.LIVE_STATES:
                json_files.write_json_atomically(self._run.status, look.status)
            return
        if look.has_folder:
            self._fetch_all()
            if look.status is not None:
                json_files.write_json_atomically(self._run.status, look.status)
            self._delete_there()
        self.is_back.set()

    def look(self) -> Look:
        """Ask the host.

        Raises:
            SshError: when it does not answer.
            ValueError: when its answer makes no sense.
        """
        script = scripts.filled(_LOOK, state=scripts.state(), run=shlex.quote(self._start.run_dir))
        said, _, status = self._ssh.ask(self._host, script).partition("status\n")
        lines = said.splitlines()
        raw = json_files.parse_json(status) if status else None
        is_ours = isinstance(raw, dict) and raw.get("handle") == self._start.handle
        return Look(
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
        """Fetch everything, and compare it by checksums with what is there."""
        with self._checkpoints_lock:
            self._fetch_checkpoints_now("--checksum")
            left_out = [f"--exclude=/{name}" for name in NOT_FETCHED]
            self._rsync.fetch(self._host, f"{self._start.run_dir}/", self._run.path, "--checksum", *left_out)

    def _fetch_checkpoints(self) -> None:
        with self._checkpoints_lock:
            if not self.is_back.is_set():
                self._fetch_checkpoints_now()

    def _fetch_checkpoints_now(self, *options: str) -> None:
        """Fetch the manifests last: a folder without one is no checkpoint. Delete what was deleted there."""
        there, partial = f"{self._start.run_dir}/checkpoints/", "--exclude=.step_*"
        to = self._run.checkpoints
        self._rsync.fetch(self._host, there, to, partial, "--exclude=manifest.json", *options)
        self._rsync.fetch(self._host, there, to, partial, "--delete", *options)

    def _delete_there(self) -> None:
        try:
            self._ssh.ask(self._host, f"rm -rf -- {shlex.quote(self._start.run_dir)}\n")
        except SshError as error:
            log.warning("the copy of %s is left on its host: %s", self._run.run_id, error)
