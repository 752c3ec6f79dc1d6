"""A warm rank: imports everything in advance, waits for a run, then becomes its worker.

torchrun OPTIONS --nproc-per-node N -m trainers.warm.warm_worker

Most of the time from a click to the first step goes into imports; here they are done before the click. A
warm rank must not call CUDA before its run names a device: it would hold a GPU, and the driver would have
read CUDA_VISIBLE_DEVICES too early (`contract/cuda_environment.py`).
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from trainers import worker
from trainers.contract.rundir import RunDirectory
from trainers.engines import heartbeats
from trainers.engines.heartbeats import STANDING_BY
from trainers.engines.local import fork_server, warm_pool
from trainers.machine import hardware, host, processes
from trainers.machine.lifeline import die_with_parent, parent_by_name


def main() -> int:
    """Wait for a run and train as one of its ranks; return the exit code of this process."""
    die_with_parent(parent_by_name())
    host.be_ended_first()
    heartbeats.begin_heartbeats()
    get_ready()
    processes.show_rank(None, int(os.environ["RANK"]))
    heartbeats.write_heartbeat(STANDING_BY)
    order = warm_pool.wait_for_order(int(os.environ["RANK"]))
    if order is None:
        os._exit(0)  # the page is gone: no run can come any more
    os.environ.update(order.environment)
    return worker.work(RunDirectory(Path(order.run_dir)), order.resume_step)


def get_ready() -> None:
    """Import what every run needs; on a machine without GPUs, also run one small step on the CPU."""
    import torch

    from trainers import registry

    torch.set_num_threads(1)
    registry.discover_all()
    libraries = {library for strategy in registry.strategies().values() for library in strategy.libraries}
    for name in [*fork_server.NEEDED_BY_ANY_RUN, *libraries]:
        importlib.import_module(name)
    if not hardware.may_have_gpu():
        _run_small_step()


def _run_small_step() -> None:
    """Run one small training step: torch initialises much of itself at first use.

    Must not run on a machine with a GPU, even though all tensors are on the CPU: `AdamW.step` asks for the
    accelerator's current stream, which opens a CUDA context on GPU 0 (torch 2.13, `optim/optimizer.py`,
    `_accelerator_graph_capture_health_check`).
    """
    import torch
    from torch.nn import functional
    from torch.nn.utils import get_total_norm

    network = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    functional.cross_entropy(network(torch.zeros(2, 4)), torch.zeros(2, dtype=torch.long)).backward()
    get_total_norm([parameter.grad for parameter in network.parameters() if parameter.grad is not None])
    optimizer.step()


if __name__ == "__main__":
    worker.end(main())
