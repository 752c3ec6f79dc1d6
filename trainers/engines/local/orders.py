"""What a supervisor tells its ranks: by their environment, and warm ones over a pipe each.

The order says which run is theirs. No file and no port has to do with it. When the supervisor goes, the
pipes end, and so do those who wait.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

ADDRESSES = "TRAINERS_ORDERS"
# Somebody looks after this run.
SUPERVISED = "TRAINERS_SUPERVISED"
# From where in `commands.jsonl` the ranks read: what is given while they start is theirs.
COMMANDS_OFFSET = "TRAINERS_COMMANDS_OFFSET"
# This rank was there before its run.
IS_WARM = "TRAINERS_WARM"


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which run to train, and from where.

    Attributes:
        ticket: the place in the line it is started for; None: started by hand.
        environment: variables that hold from now on, as the GPUs that may be seen.
    """

    run_dir: str
    resume_step: int | None = None
    ticket: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_line(self) -> bytes:
        """Return it as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Order | None:
        """Return what a line says; None where there is none any more: whoever gives orders is gone.

        Raises:
            ValueError: when it makes no sense.
        """
        if not line.endswith(b"\n"):
            return None
        raw: dict[str, Any] = json.loads(line)
        try:
            return cls(**raw)
        except TypeError as error:
            raise ValueError(f"an order makes no sense: {error}") from error


class Pipes:
    """The supervisor's side: one pipe a rank."""

    def __init__(self, num_ranks: int) -> None:
        self._pipes = [os.pipe() for _ in range(num_ranks)]

    @property
    def addresses(self) -> str:
        """Where the ranks find them, as long as this process lives."""
        return ",".join(f"/proc/{os.getpid()}/fd/{reading}" for reading, _ in self._pipes)

    def tell(self, order: Order) -> None:
        """Give every rank the same order; one that does not wait yet finds it when it does."""
        for _, writing in self._pipes:
            os.write(writing, order.to_line())


def wait(rank: int) -> Order | None:
    """Wait, as a rank, for its order; None when none will come.

    Raises:
        ValueError: when the order makes no sense.
    """
    address = os.environ[ADDRESSES].split(",")[rank]
    try:
        with open(address, "rb") as pipe:  # noqa: PTH123 - a descriptor of another process, no path
            return Order.from_line(pipe.readline())
    except FileNotFoundError:
        return None
