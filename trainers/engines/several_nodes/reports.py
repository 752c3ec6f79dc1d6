"""What the nodes of a run tell each other, as files in the run's folder: who lives, and what the ranks do.

A start of a run has a folder of its own, so that nothing of an earlier one is taken for its own. In it each
node writes one small file a second, and node 0 asks questions and orders the end. Whoever reads compares
counts by a clock of its own; a file is opened anew for each look, because that is when NFS asks its server.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainers.contract.rundir import RunDirectory
from trainers.engines.heartbeats.heartbeat_board import Beat
from trainers.engines.local.diagnosis.ranks import Ranks
from trainers.engines.local.diagnosis.stacks import Frame, Stacks, Thread
from trainers.engines.several_nodes import peers as peers_module
from trainers.engines.several_nodes.peers import Endpoint, Peers
from trainers.files.json_files import overwrite_json, read_json, write_json_atomically
from trainers.files.shared_folders import ask_anew
from trainers.machine.effort import Effort
from trainers.machine.os_errors import explain

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
