"""How the torchruns of several nodes meet: at the first node.

The rendezvous is static: it exchanges JSON. torchrun's other one unpickles what any host writes to its store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainers.contract.config import Config
from trainers.engines.several_nodes import route


@dataclass(frozen=True, kw_only=True)
class Node:
    """One of the machines that train a run together.

    Attributes:
        rank: its number, from 0; node 0 is where all meet.
        num_nodes: how many there are.
        head: name or address of node 0.
        port: of node 0, for the store of torchrun and its ranks.
    """

    rank: int
    num_nodes: int
    head: str
    port: int

    @property
    def is_head(self) -> bool:
        return self.rank == 0

    def ranks(self, config: Config) -> range:
        """Return the ranks on this node."""
        return range(self.rank * config.nproc_per_node, (self.rank + 1) * config.nproc_per_node)

    def torchrun_arguments(self, config: Config, run_dir: Path, resume_step: int | None) -> list[str]:
        """Return torchrun's arguments on this node."""
        resume = [] if resume_step is None else ["--resume", str(resume_step)]
        return [
            *self.meeting_arguments(config.nproc_per_node),
            *("-m", "trainers.worker", str(run_dir), *resume),
        ]

    def meeting_arguments(self, num_ranks: int) -> list[str]:
        """Return those of torchrun's arguments that say where all meet.

        Args:
            num_ranks: on each node.
        """
        return [
            *("--nnodes", str(self.num_nodes), "--node-rank", str(self.rank)),
            *("--master-addr", self.head, "--master-port", str(self.port)),
            *("--nproc-per-node", str(num_ranks)),
        ]

    @property
    def address(self) -> str:
        """Where the other nodes reach this one: node 0 by its name, as all of them do."""
        return self.head if self.is_head else route.own_address(self.head) or ""

    @property
    def bind_to(self) -> str:
        """Where this node listens for the other launchers.

        On all interfaces where its own name leads to loopback: which one the others reach is not known then.
        """
        address = route.own_address(self.head)
        return "0.0.0.0" if address is None or route.is_loopback(address) else address  # noqa: S104

    def environment(self) -> Mapping[str, str]:
        """Return what torchrun is told: the address of this node that others reach.

        A host's own name often leads to 127.0.1.1, where no other node can reach it.

        Raises:
            OSError: when there is no way to the head.
        """
        if (address := route.own_address(self.head)) is None:
            raise OSError(f"there is no way from this node to {self.head}, where all nodes meet")
        return {"PET_LOCAL_ADDR": address}
