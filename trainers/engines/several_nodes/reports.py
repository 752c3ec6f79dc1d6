"""Reports of nodes, exchanged through files in the run directory.

Every node's launcher writes `nodes/START/N.json` once a second, with the heartbeats of its ranks and a
counter. Node 0 reads the files of all other nodes, and they read the file of node 0. A node whose counter
does not change for `LOST_AFTER_S` is lost. Each reader uses only its own monotonic clock. It counts silence
only if it could write its own last report, because otherwise the disk may be the cause.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainers.contract import fence
from trainers.contract.fence import SupersededError
from trainers.contract.heartbeats import Heartbeat
from trainers.contract.rundir import RunDirectory
from trainers.engines.local import hang_watch
from trainers.engines.local.stacks import Ranks, Stacks
from trainers.engines.several_nodes.peers import PeerEndpoint, Peers
from trainers.files import typed
from trainers.files.json_files import overwrite_json, read_json, write_json_atomically
from trainers.files.plain_files import ask_anew
from trainers.files.typed import FieldError
from trainers.machine.os_errors import explain
from trainers.machine.processes import Effort

CHECK_EVERY_S = 1.0
# A launcher reports every second. After this time without a report, its node is considered lost.
LOST_AFTER_S = 20.0
# Slurm starts all launchers at the same time, but loading Python from a shared folder may be slow.
FIRST_REPORT_LIMIT_S = 120.0
ANSWER_LIMIT_S = 15.0
ANSWER_POLL_S = 0.2
# Maximum age of a report that proves that its node can write to the run's folder.
FRESH_S = 4.0
# A broken connection between two nodes causes errors only after a timeout, so it is remembered for this time.
NETWORK_FAILURE_VALID_S = 60.0


class LatestReport:
    """The latest report of one node, and the time since then."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.report: NodeReport | None = None
        self.silent_s = 0.0

    def update(self, folder: NodesFolder, elapsed_s: float) -> NodeReport | None:
        """Read the node's report, `elapsed_s` after the last check; None if it is missing or invalid."""
        report = None
        with contextlib.suppress(FieldError):
            report = typed.read(NodeReport, folder.read(str(self.number)))
        if report is not None and (self.report is None or report.count != self.report.count):
            self.report, self.silent_s = report, 0.0
        else:
            self.silent_s += elapsed_s
        return report

    @property
    def is_lost(self) -> bool:
        return self.silent_s >= (FIRST_REPORT_LIMIT_S if self.report is None else LOST_AFTER_S)

    @property
    def lost_message(self) -> str:
        """Message that the node is lost."""
        name = f"Node {self.number}"
        if self.report is None:
            return f"{name} has sent no report within {FIRST_REPORT_LIMIT_S:.0f} s."
        ranks = sorted(self.report.ranks)
        ranks_text = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        return f"{name} ({self.report.host}, {ranks_text}) has not reported for {self.silent_s:.0f} s."


class RanksOfNodes(Ranks):
    """The ranks of all nodes, from node 0's perspective.

    Args:
        reporter: Node 0's. If it cannot write its own reports, missing reports of other nodes prove nothing,
            because all use the same disk.
    """

    def __init__(self, reporter: NodeReporter) -> None:
        super().__init__(reporter.ranks.run, reporter.ranks.heartbeat_memory)
        self._folder, self._reporter, self._peers = reporter.folder, reporter, reporter.peers
        self.num_machines = self._peers.node.num_nodes
        self._other_nodes = {number: LatestReport(number) for number in range(1, self.num_machines)}
        self._ranks_per_node = self.num_ranks // self.num_machines
        self._checked_at = time.monotonic()
        self._request_number = 0
        self._network_failure, self._network_failed_at = "", float("-inf")

    def heartbeat(self, rank: int) -> Heartbeat | None:
        """Return a rank's latest heartbeat, from shared memory or from its node's report."""
        if self._node_of(rank) == 0:
            return super().heartbeat(rank)
        report = self._rank_report(rank)
        return None if report is None else report.beat

    def effort(self, rank: int) -> Effort | None:
        """Return a rank's resource usage; of a remote rank, from the report that found it silent."""
        if self._node_of(rank) == 0:
            return super().effort(rank)
        report = self._rank_report(rank)
        return None if report is None else report.effort

    def ask(self) -> None:
        """Ask all ranks for their collectives, and the other nodes for the stacks of their ranks."""
        super().ask()
        self._request_number += 1
        self._folder.write("question", {"number": self._request_number})

    def answer(self, rank: int) -> bytes | None:
        """Return a rank's answer; for remote ranks as forwarded by its node."""
        if self._node_of(rank) == 0:
            return super().answer(rank)
        reply = self._node_answers(self._node_of(rank)).get("collectives", {}).get(str(rank))
        return reply.encode() if isinstance(reply, str) else None

    def stacks(self, rank: int) -> Stacks:
        """Read a rank's stacks, or wait for its node to do so."""
        node = self._node_of(rank)
        if node == 0:
            return super().stacks(rank)
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while time.monotonic() < deadline:
            raw = self._node_answers(node).get("stacks", {}).get(str(rank))
            with contextlib.suppress(FieldError):
                return typed.read(Stacks, raw)
            time.sleep(ANSWER_POLL_S)
        return Stacks(threads=(), source=f"Node {node} ({self.host(rank)}) did not report the stacks.")

    def stacks_at_once(self, rank: int) -> Stacks | None:
        """Return a local rank's stacks; None for other nodes, which would take time to answer."""
        return super().stacks_at_once(rank) if self._node_of(rank) == 0 else None

    def host(self, rank: int) -> str:
        """Return the host name of a rank's node."""
        node = self._node_of(rank)
        if node == 0:
            return socket.gethostname()
        report = self._other_nodes[node].report
        return f"node {node}" if report is None else report.host

    def lost_node(self) -> str:
        """Check the reports about once a second; return a message about the first lost node, or empty."""
        now = time.monotonic()
        if now - self._checked_at >= CHECK_EVERY_S:
            elapsed_s, self._checked_at = hang_watch.counted_s(now - self._checked_at), now
            for node in self._other_nodes.values():
                node.update(self._folder, elapsed_s if self._reporter.could_write else 0.0)
            self._note_reachability(now)
        self._peers.lost_nodes.update(node.number for node in self._other_nodes.values() if node.is_lost)
        return next((node.lost_message for node in self._other_nodes.values() if node.is_lost), "")

    def terminate_elsewhere(self) -> None:
        """Make the other nodes send SIGTERM to their ranks."""
        self._folder.write(TERMINATE, {})

    def network_failure(self) -> str:
        """Return the nodes that cannot, or recently could not, reach each other, as text."""
        return (
            self._network_failure
            if time.monotonic() - self._network_failed_at < NETWORK_FAILURE_VALID_S
            else ""
        )

    def kill_reason(self, rank: int) -> str:
        """Return why the launcher of a rank's node ended its ranks; empty if it has not."""
        reason = (self._folder.read(f"{self._node_of(rank)}-ended") or {}).get("why")
        return reason if isinstance(reason, str) else ""

    def _note_reachability(self, now: float) -> None:
        """Note pairs of nodes that do not reach each other although both write to the folder."""
        reports = {
            number: node.report for number, node in self._other_nodes.items() if node.report is not None
        }
        for report in reports.values():
            self._peers.add_endpoints(report.endpoints)
        reporting_nodes = {0, *(number for number in reports if self._other_nodes[number].silent_s < FRESH_S)}
        silent_s = {(0, other_node): silent_s for other_node, silent_s in self._peers.unreachable().items()}
        for number, report in reports.items():
            for other_node, seconds in report.unreachable.items():
                pair = (min(number, other_node), max(number, other_node))
                silent_s[pair] = max(seconds, silent_s.get(pair, 0.0))
        for (first_node, second_node), seconds in sorted(silent_s.items()):
            if first_node in reporting_nodes and second_node in reporting_nodes:
                names = (
                    self.host(first_node * self._ranks_per_node),
                    self.host(second_node * self._ranks_per_node),
                )
                self._network_failed_at = now
                self._network_failure = (
                    f"{names[0]} and {names[1]} cannot reach each other over the network: no answer for "
                    f"{seconds:.0f} s, while both write to the run's folder."
                )
                return

    def _node_of(self, rank: int) -> int:
        return rank // self._ranks_per_node

    def _rank_report(self, rank: int) -> RankReport | None:
        report = self._other_nodes[self._node_of(rank)].report
        return None if report is None else report.ranks.get(rank)

    def _node_answers(self, node: int) -> dict[str, dict[str, object]]:
        answers = self._folder.read(f"{node}-answers")
        return (
            dict(answers) if answers is not None and request_number(answers) == self._request_number else {}
        )


REPORT_EVERY_S = 1.0
# File in the folder of a start that makes the other nodes send SIGTERM to their ranks.
TERMINATE = "terminate"
_ENDS_WITHIN_S = 5.0


class NodesFolder:
    """The files of one start of a run.

    Args:
        start: Name of the start, unique within the run.
    """

    def __init__(self, run: RunDirectory, start: str) -> None:
        self.run_dir = run.path
        self._all = run.path / "nodes"
        self.path = self._all / start

    @classmethod
    def list_starts(cls, run: RunDirectory) -> list[NodesFolder]:
        """Return the folders of all starts, oldest first."""
        created_s = {}
        for path in run.path.glob("nodes/*"):
            with contextlib.suppress(FileNotFoundError):  # another start has just removed the folder
                if path.is_dir():
                    created_s[path.name] = path.stat().st_mtime
        return [cls(run, name) for name in sorted(created_s, key=lambda name: created_s[name])]

    def make(self) -> None:
        """Create the folder, and remove those of earlier starts.

        Raises:
            OSError: If it cannot be created.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in self._all.iterdir():
            if folder != self.path and folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)

    def exists(self) -> bool:
        """True if the folder has been created, on this machine or another."""
        for parent in (self.run_dir, self._all):
            ask_anew(parent)
        return self.path.is_dir()

    def read(self, name: str) -> Mapping[str, Any] | None:
        """Return a file's values; None if it is missing or unreadable."""
        try:
            values = read_json(self.path / f"{name}.json", must_be_ours=True)
        except FileNotFoundError:
            ask_anew(self.path)  # so that the next read sees a new file
            return None
        except (OSError, ValueError):
            return None
        return values if isinstance(values, dict) else None

    def request_end(self, *, within_s: float) -> None:
        """Tell the other nodes to end; launchers kill remaining processes after this time."""
        self.write("end", {"within_s": within_s})

    def end_within_s(self) -> float | None:
        """Return the seconds that this node has left to end; None if no end was ordered."""
        request = self.read("end")
        within_s = None if request is None else request.get("within_s")
        return float(within_s) if isinstance(within_s, int | float) else None

    def create_once(self, name: str, values: Mapping[str, Any]) -> bool:
        """Create a file that only one node can create; False if another node has.

        Raises:
            OSError: If it cannot be written.
        """
        path = self.path / f"{name}.json"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(values, file)
        except OSError:
            self.remove(name)
            raise
        return True

    def remove(self, name: str) -> None:
        """Remove a file if possible, so that a node can create it again."""
        with contextlib.suppress(OSError):
            (self.path / f"{name}.json").unlink()

    def write(self, name: str, values: Mapping[str, Any]) -> bool:
        """Write a file; False if the disk refuses.

        On a full disk the existing file is overwritten in place, which needs no space. A reader that sees it
        half-written finds invalid JSON and reads again later.
        """
        path = self.path / f"{name}.json"
        try:
            try:
                write_json_atomically(path, values, mode=0o600)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                overwrite_json(path, values)
        except OSError as error:
            print(
                f"{name}.json could not be written for the other nodes: {explain(error)}",
                flush=True,
            )
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """One rank in its node's report. `effort` is None if the rank has sent a heartbeat or has ended."""

    beat: Heartbeat | None
    effort: Effort | None


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One report of a node. `count` increases with each report.

    Attributes:
        endpoints: Endpoints of launchers: the node's own; from node 0, all that it knows.
        unreachable: Nodes that stopped answering over the network, with the seconds since the last answer.
    """

    count: int
    host: str
    ranks: Mapping[int, RankReport]
    endpoints: Mapping[int, PeerEndpoint] = field(default_factory=dict)
    unreachable: Mapping[int, float] = field(default_factory=dict)


class NodeReporter:
    """Reports one node's ranks every second, and answers node 0's questions; runs in threads.

    Args:
        ranks: The ranks of the run; only those in `local_ranks` are on this node.
        peers: The other launchers over the network.

    Attributes:
        could_write: True if the last report could be written.
    """

    def __init__(
        self, folder: NodesFolder, host: str, ranks: Ranks, local_ranks: Sequence[int], peers: Peers
    ) -> None:
        self.folder, self._host, self.ranks, self._local_ranks = folder, host, ranks, local_ranks
        self.peers = peers
        self._node = peers.node.rank
        self._heartbeat_counts: dict[int, int] = {}
        self._count = 0
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._report_loop, name="node-report", daemon=True)]
        if self._node != 0:
            self._threads.append(threading.Thread(target=self._answer_loop, name="node-answers", daemon=True))
        self.could_write = True

    def begin(self) -> None:
        """Start reporting."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop reporting."""
        self._is_over.set()
        self._threads[0].join(_ENDS_WITHIN_S)

    def _report_loop(self) -> None:
        while True:
            self._count += 1
            ranks = {rank: self._rank_report(rank) for rank in self._local_ranks}
            report = NodeReport(
                count=self._count,
                host=self._host,
                ranks=ranks,
                endpoints=self.peers.endpoints(),
                unreachable=self.peers.unreachable(),
            )
            self.could_write = self._may_write() and self.folder.write(str(self._node), asdict(report))
            if self._is_over.wait(REPORT_EVERY_S):
                return

    def _may_write(self) -> bool:
        """Renew the lease if the shared folder answers and this start is still the latest."""
        try:
            fence.require_newest(self.folder.run_dir)
        except SupersededError:
            self.peers.lease.end_now()
            return False
        except OSError as error:
            print(f"cannot write to the run's folder: {explain(error)}", flush=True)
            return False
        self.peers.lease.renew()
        return True

    def _rank_report(self, rank: int) -> RankReport:
        """Return a rank's report. Samples its process only if no heartbeat came since the last one."""
        heartbeat = self.ranks.heartbeat(rank)
        is_silent = heartbeat is not None and self._heartbeat_counts.get(rank) == heartbeat.count
        if heartbeat is not None:
            self._heartbeat_counts[rank] = heartbeat.count
        return RankReport(beat=heartbeat, effort=self.ranks.effort(rank) if is_silent else None)

    def _answer_loop(self) -> None:
        answered_number = 0
        while not self._is_over.wait(REPORT_EVERY_S / 4):
            requested_number = request_number(self.folder.read("question"))
            if requested_number <= answered_number:
                continue
            answered_number = requested_number
            self.ranks.ask()
            stacks = {rank: asdict(self.ranks.stacks(rank)) for rank in self._local_ranks}
            collectives = {
                rank: answer.decode() for rank in self._local_ranks if (answer := self.ranks.answer(rank))
            }
            self.folder.write(
                f"{self._node}-answers",
                {"number": requested_number, "stacks": stacks, "collectives": collectives},
            )


def request_number(question: Mapping[str, Any] | None) -> int:
    """Return the number of a question or an answer; 0 without one."""
    number = (question or {}).get("number")
    return number if isinstance(number, int) else 0
