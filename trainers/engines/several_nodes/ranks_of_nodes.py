"""All ranks of a run over several nodes, as node 0 sees them: its own, and those that others report."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from trainers.engines.heartbeats.heartbeat_board import Beat
from trainers.engines.local.diagnosis import hangs
from trainers.engines.local.diagnosis.ranks import Ranks
from trainers.engines.local.diagnosis.stacks import Stacks
from trainers.engines.several_nodes import reports
from trainers.engines.several_nodes.peers import Peers
from trainers.engines.several_nodes.reports import NodeReport, NodesFolder, RankReport
from trainers.machine.effort import Effort

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
            if (found := reports.stacks_of(told)) is not None:
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
            passed_s, self._looked_at = hangs.counted_s(now - self._looked_at), now
            for node in self._others.values():
                values = self._folder.read(str(node.number))
                report = None if values is None else reports.node_report(values)
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
        return dict(found) if found is not None and reports.number_of(found) == self._number else {}
