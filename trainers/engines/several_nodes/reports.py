"""Reports of nodes in the run directory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainers.contract.rundir import RunDirectory
from trainers.engines.heartbeats import Beat
from trainers.engines.local import hang_watch
from trainers.engines.local.stacks import Frame, Ranks, Stacks, Thread
from trainers.engines.several_nodes import peers as peers_module
from trainers.engines.several_nodes.peers import Endpoint, Peers
from trainers.files.json_files import overwrite_json, read_json, write_json_atomically
from trainers.files.plain_files import ask_anew
from trainers.machine.os_errors import explain
from trainers.machine.processes import Effort

LOOK_EVERY_S = 1.0
# A launcher reports each second; one that has said nothing for so long is gone, or its network is.
LOST_AFTER_S = 20.0
# Slurm starts all launchers at once, but a shared folder may be slow to bring Python.
COMES_WITHIN_S = 120.0
ANSWERS_WITHIN_S = 15.0
ANSWER_POLL_S = 0.2
# A node whose report is this new writes to the run's folder.
FRESH_S = 4.0
# What broke while two nodes could not reach each other is seen only when a timeout is over.
CUT_REMEMBERED_S = 60.0


class HeardNode:
    """One node: its newest report, and for how long nothing new has come."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.report: NodeReport | None = None
        self.silent_s = 0.0

    def update(self, report: NodeReport | None, passed_s: float) -> None:
        """Take a look after `passed_s`."""
        if report is not None and (self.report is None or report.count != self.report.count):
            self.report, self.silent_s = report, 0.0
        else:
            self.silent_s += passed_s

    @property
    def is_lost(self) -> bool:
        return self.silent_s >= (COMES_WITHIN_S if self.report is None else LOST_AFTER_S)

    @property
    def words(self) -> str:
        """Say that it is lost."""
        name = f"Node {self.number}"
        if self.report is None:
            return f"{name} has not begun within {COMES_WITHIN_S:.0f} s."
        ranks = sorted(self.report.ranks)
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        return f"{name} ({self.report.host}, {which}) has not been heard for {self.silent_s:.0f} s."


class RanksOfNodes(Ranks):
    """Node 0's view.

    Args:
        local: the ranks as they are seen on this machine; those of node 0 are.
        can_hear: whether this node's own file was written last time. While it was not, silence of the others
            says nothing: they have the same disk.
        peers: what node 0 knows of the others over the network, where it can ask them.
        given_up: the nodes that were given up are added to it.
    """

    def __init__(
        self,
        local: Ranks,
        folder: NodesFolder,
        num_nodes: int,
        can_hear: Callable[[], bool],
        peers: Peers | None = None,
        given_up: set[int] | None = None,
    ) -> None:
        self._local = local
        self._folder = folder
        self._can_hear = can_hear
        self._others = {number: HeardNode(number) for number in range(1, num_nodes)}
        self.num_ranks, self.num_machines = local.num_ranks, num_nodes
        self._ranks_a_node = self.num_ranks // num_nodes
        self._looked_at = time.monotonic()
        self._number = 0
        self._peers = peers
        self._cut, self._cut_at = "", float("-inf")
        self._given_up = set() if given_up is None else given_up

    def beat(self, rank: int) -> Beat | None:
        """Return its beat on the board, or the one that its node has reported."""
        if self._node_of(rank) == 0:
            return self._local.beat(rank)
        found = self._reported(rank)
        return None if found is None else found.beat

    def effort(self, rank: int) -> Effort | None:
        """Return what is used; of a rank elsewhere as it was when it was found silent."""
        if self._node_of(rank) == 0:
            return self._local.effort(rank)
        found = self._reported(rank)
        return None if found is None else found.effort

    def ask(self) -> None:
        """Ask the ranks here, and the other nodes to ask theirs and to read their stacks."""
        self._local.ask()
        self._number += 1
        self._folder.write("question", {"number": self._number})

    def answer(self, rank: int) -> bytes | None:
        """Return the answer of a rank here, or as its node has passed it on."""
        if self._node_of(rank) == 0:
            return self._local.answer(rank)
        said = self._answers_of(self._node_of(rank)).get("collectives", {}).get(str(rank))
        return said.encode() if isinstance(said, str) else None

    def stacks(self, rank: int) -> Stacks:
        """Read them here, or wait until its node has."""
        node = self._node_of(rank)
        if node == 0:
            return self._local.stacks(rank)
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while time.monotonic() < deadline:
            told = self._answers_of(node).get("stacks", {}).get(str(rank))
            if (found := stacks_of(told)) is not None:
                return found
            time.sleep(ANSWER_POLL_S)
        return Stacks(threads=(), source=f"Node {node} ({self.host(rank)}) did not say where it stands.")

    def stacks_at_once(self, rank: int) -> Stacks | None:
        """Read them here; another node would have to be waited for."""
        return self._local.stacks_at_once(rank) if self._node_of(rank) == 0 else None

    def host(self, rank: int) -> str:
        """Return the name of the host of its node."""
        node = self._node_of(rank)
        if node == 0:
            return socket.gethostname()
        report = self._others[node].report
        return f"node {node}" if report is None else report.host

    def lost_node(self) -> str:
        """Look about once a second; name the first node that has been silent for too long."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            passed_s, self._looked_at = hang_watch.counted_s(now - self._looked_at), now
            for node in self._others.values():
                values = self._folder.read(str(node.number))
                report = None if values is None else node_report(values)
                node.update(report, passed_s if self._can_hear() else 0.0)
            self._note_reachability(now)
        self._given_up.update(node.number for node in self._others.values() if node.is_lost)
        return next((node.words for node in self._others.values() if node.is_lost), "")

    def cut_off(self) -> str:
        """Return which nodes cannot reach each other, or could not a moment ago."""
        return self._cut if time.monotonic() - self._cut_at < CUT_REMEMBERED_S else ""

    def why_ended(self, rank: int) -> str:
        """Return why the launcher of a rank's node has ended its part."""
        why = (self._folder.read(f"{self._node_of(rank)}-ended") or {}).get("why")
        return why if isinstance(why, str) else ""

    def _note_reachability(self, now: float) -> None:
        """Note which pairs of nodes that both write to the folder do not reach each other."""
        if self._peers is None:
            return
        heard = {number: node.report for number, node in self._others.items() if node.report is not None}
        for report in heard.values():
            self._peers.learn(report.endpoints)
        fresh = {0, *(number for number in heard if self._others[number].silent_s < FRESH_S)}
        silent_s = {(0, other): silent_s for other, silent_s in self._peers.unreachable().items()}
        for number, report in heard.items():
            for other, seconds in report.unreachable.items():
                pair = (min(number, other), max(number, other))
                silent_s[pair] = max(seconds, silent_s.get(pair, 0.0))
        for (one, other), seconds in sorted(silent_s.items()):
            if one in fresh and other in fresh:
                names = (self.host(one * self._ranks_a_node), self.host(other * self._ranks_a_node))
                self._cut_at = now
                self._cut = (
                    f"{names[0]} and {names[1]} cannot reach each other over the network: no answer for "
                    f"{seconds:.0f} s, while both write to the run's folder."
                )
                return

    def _node_of(self, rank: int) -> int:
        return rank // self._ranks_a_node

    def _reported(self, rank: int) -> RankReport | None:
        report = self._others[self._node_of(rank)].report
        return None if report is None else report.ranks.get(rank)

    def _answers_of(self, node: int) -> dict[str, dict[str, object]]:
        found = self._folder.read(f"{node}-answers")
        return dict(found) if found is not None and number_of(found) == self._number else {}


REPORT_EVERY_S = 1.0
_ENDS_WITHIN_S = 5.0


class NodesFolder:
    """The files of one start of a run.

    Args:
        start: its name; no other start of this run has it.
    """

    def __init__(self, run: RunDirectory, start: str) -> None:
        self._all = run.path / "nodes"
        self.path = self._all / start

    @classmethod
    def of_run(cls, run: RunDirectory) -> list[NodesFolder]:
        """Return those that are there, the oldest first."""
        began = {}
        for path in run.path.glob("nodes/*"):
            with contextlib.suppress(FileNotFoundError):  # another start begins
                if path.is_dir():
                    began[path.name] = path.stat().st_mtime
        return [cls(run, name) for name in sorted(began, key=lambda name: began[name])]

    def make(self) -> None:
        """Make it, and remove those of earlier starts.

        Raises:
            OSError: when it cannot be made.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for other in self._all.iterdir():
            if other != self.path and other.is_dir():
                shutil.rmtree(other, ignore_errors=True)

    def is_there(self) -> bool:
        """Tell whether it was made, by this machine or by another."""
        for above in (self._all.parent, self._all):
            ask_anew(above)
        return self.path.is_dir()

    def read(self, name: str) -> Mapping[str, Any] | None:
        """Return a file's values; None while there is none that can be read."""
        try:
            found = read_json(self.path / f"{name}.json", must_be_ours=True)
        except FileNotFoundError:
            ask_anew(self.path)  # for the next look
            return None
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def order_end(self, *, within_s: float) -> None:
        """Have the other nodes end: what has not ended by itself within this time is killed."""
        self.write("end", {"within_s": within_s})

    def end_within_s(self) -> float | None:
        """Return how long this node may still take to end; None while no end was ordered."""
        found = self.read("end")
        within_s = None if found is None else found.get("within_s")
        return float(within_s) if isinstance(within_s, int | float) else None

    def make_once(self, name: str, values: Mapping[str, Any]) -> bool:
        """Write a file that only one node can write; False where another one has.

        Raises:
            OSError: when it cannot be written.
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
        """Remove a file, so that a node can write it anew; one that cannot be removed stays."""
        with contextlib.suppress(OSError):
            (self.path / f"{name}.json").unlink()

    def write(self, name: str, values: Mapping[str, Any]) -> bool:
        """Write a file; False where the disk does not take it.

        Where it is full, what is there is overwritten, which needs no more of it. Who reads that half-written
        finds no JSON, and looks again.
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
    """One rank, as its node sees it; `effort` is None while it beats, and when its process is gone."""

    beat: Beat | None
    effort: Effort | None


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One file of a node: `count` grows with each.

    Attributes:
        endpoints: where launchers answer: its own, and from node 0 all that it knows.
        unreachable: nodes that answered it over the network and do not any more, for how many seconds.
    """

    count: int
    host: str
    ranks: Mapping[int, RankReport]
    endpoints: Mapping[int, Endpoint] = field(default_factory=dict)
    unreachable: Mapping[int, float] = field(default_factory=dict)


class Reporter:
    """Reports one node's ranks each second, and answers node 0's questions, in threads of its own.

    Args:
        ranks: what is seen from here; only those in `own` are of this node.
        peers: what this node knows of the others over the network, where it can ask them.
        may_write: asks the shared folder before each report whether this start is still the newest.
    """

    def __init__(
        self,
        folder: NodesFolder,
        node: int,
        host: str,
        ranks: Ranks,
        own: Sequence[int],
        peers: Peers | None = None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._folder = folder
        self._node = node
        self._host = host
        self._ranks = ranks
        self._own = own
        self._peers = peers
        self._may_write = may_write
        self._seen: dict[int, int] = {}
        self._count = 0
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._report_on, name="node-report", daemon=True)]
        if node != 0:
            self._threads.append(threading.Thread(target=self._answer_on, name="node-answers", daemon=True))
        self.could_write = True

    def begin(self) -> None:
        """Report from now on."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Report no more."""
        self._is_over.set()
        self._threads[0].join(_ENDS_WITHIN_S)

    def _report_on(self) -> None:
        while True:
            self._count += 1
            ranks = {rank: self._rank_report(rank) for rank in self._own}
            report = NodeReport(
                count=self._count,
                host=self._host,
                ranks=ranks,
                endpoints={} if self._peers is None else self._peers.endpoints(),
                unreachable={} if self._peers is None else self._peers.unreachable(),
            )
            self.could_write = self._may_write() and self._folder.write(str(self._node), asdict(report))
            if self._is_over.wait(REPORT_EVERY_S):
                return

    def _rank_report(self, rank: int) -> RankReport:
        """Look at a rank's process only where the rank has not beaten since the last report."""
        beat = self._ranks.beat(rank)
        is_silent = beat is not None and self._seen.get(rank) == beat.count
        if beat is not None:
            self._seen[rank] = beat.count
        return RankReport(beat=beat, effort=self._ranks.effort(rank) if is_silent else None)

    def _answer_on(self) -> None:
        answered = 0
        while not self._is_over.wait(REPORT_EVERY_S / 4):
            asked = number_of(self._folder.read("question"))
            if asked <= answered:
                continue
            answered = asked
            self._ranks.ask()
            standing = {rank: asdict(self._ranks.stacks(rank)) for rank in self._own}
            said = {rank: answer.decode() for rank in self._own if (answer := self._ranks.answer(rank))}
            self._folder.write(
                f"{self._node}-answers", {"number": asked, "stacks": standing, "collectives": said}
            )


def number_of(question: Mapping[str, Any] | None) -> int:
    """Return the number of a question, or of the one that is answered; 0 without one."""
    number = (question or {}).get("number")
    return number if isinstance(number, int) else 0


def node_report(values: Mapping[str, Any]) -> NodeReport | None:
    """Return what a node has reported; None where that makes no sense."""
    try:
        ranks = {
            int(rank): RankReport(
                beat=None if told["beat"] is None else Beat(**told["beat"]),
                effort=None if told["effort"] is None else Effort(**told["effort"]),
            )
            for rank, told in values["ranks"].items()
        }
        return NodeReport(
            count=int(values["count"]),
            host=str(values["host"]),
            ranks=ranks,
            endpoints=peers_module.read_endpoints(values.get("endpoints", {})),
            unreachable={int(node): float(s) for node, s in values.get("unreachable", {}).items()},
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def stacks_of(told: Any) -> Stacks | None:
    """Return stacks that a node has told; None where they make no sense."""
    try:
        threads = tuple(
            Thread(name=str(one["name"]), frames=tuple(Frame(**frame) for frame in one["frames"]))
            for one in told["threads"]
        )
        return Stacks(threads=threads, source=str(told["source"]))
    except (LookupError, TypeError):
        return None
