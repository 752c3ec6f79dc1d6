"""One machine's part of a measurement of all-reduces between two machines, with one rank on each.

python -m trainers.engines.several_nodes.measure --node-rank K --head HOST --port PORT

Node 0 prints the output of `trainers.check_communication`.
"""

from __future__ import annotations

import argparse
import os
import sys

from trainers.engines.several_nodes.peers import Node
from trainers.machine import environment
from trainers.machine.os_errors import explain

NUM_NODES = 2
# Largest tensor: 4 MB take milliseconds on a link of 10 Gbit/s, and half a second on a link of 100 Mbit/s.
UP_TO_BYTES = 4_096_000
SECONDS_PER_SIZE = 0.3
# Without this setting, torch warns if a host's address does not resolve to a name.
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}


def main() -> None:
    """Replace this process by torchrun."""
    parser = argparse.ArgumentParser(description="Measure all-reduces between two machines.")
    parser.add_argument("--node-rank", required=True, type=int)
    parser.add_argument("--head", required=True, metavar="HOST")
    parser.add_argument("--port", required=True, type=int)
    options = parser.parse_args()
    node = Node(rank=options.node_rank, num_nodes=NUM_NODES, head=options.head, port=options.port)
    try:
        variables = node.environment()
    except OSError as error:
        sys.exit(explain(error))
    arguments = ("--up-to-bytes", str(UP_TO_BYTES), "--seconds-per-size", str(SECONDS_PER_SIZE))
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    rendezvous_args = node.rendezvous_arguments(num_ranks=1)
    os.execve(
        sys.executable,
        [*torchrun, *rendezvous_args, "-m", "trainers.check_communication", *arguments],
        environment.for_a_child({**QUIET, **variables}),
    )


if __name__ == "__main__":
    main()
