"""A replacement of trainers.worker that trains the same job and records measurements of each rank.

torchrun starts it. `weights`: hashes of the parameters that every rank holds completely, after training.
`overlap`: the number of matrix products computed during gradient communication, from a trace of all steps.
`timeouts`: the timeouts of the process groups.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor

from tests.harness import create_run, run_to_end
from trainers import loop, worker
from trainers.engines.local import torchrun
from trainers.engines.local.torchrun import torchrun_options
from trainers.job import Job

LOOK = "TESTS_GPU_LOOK"
JOB_TIMEOUT_S = 900.0
# Kernel names: NCCL's, and those of matrix multiplications (cuBLAS, CUTLASS).
COLLECTIVE = re.compile(r"nccl", re.IGNORECASE)
PRODUCT = re.compile(r"gemm|cutlass|nvjet|xmma|cublas", re.IGNORECASE)

Found = dict[str, Any]


def run_probed(
    runs_dir: Path, probe: str, environment: Mapping[str, str] | None = None, **config: Any
) -> list[Found]:
    """Train a small run by torchrun with this module as the worker. Return the measurements of each rank."""
    run = create_run(runs_dir, **config)
    arguments = torchrun.worker_arguments(run.read_config(), run.path)
    arguments[arguments.index("trainers.worker")] = "tests.gpu.probed"
    chosen = json.dumps({"probe": probe, "out": str(run.path)})
    options = torchrun_options(run.logs / "torchrun")
    code, said = run_to_end(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        JOB_TIMEOUT_S,
        {**options, LOOK: chosen, **(environment or {})},
    )
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(run.logs.glob("rank_*.log")))
    assert code == 0, f"{said[-3000:]}\n{logs}"
    ranks = range(run.read_config().nproc_per_node)
    return [json.loads(_notes(run.path, rank).read_text(encoding="utf-8")) for rank in ranks]


def _notes(folder: Path, rank: int) -> Path:
    return folder / f"found_{rank}.json"


def weights(job: Job, train: Callable[[Job], None]) -> Found:
    """Train. Return a hash of each parameter that every rank holds completely."""
    train(job)
    found = {}
    for name, parameter in job.strategy.network.named_parameters():
        whole = _if_whole(parameter.detach())
        if whole is not None:
            content = whole.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            found[name] = hashlib.sha256(content).hexdigest()
    return {"step": job.progress.step, "hashes": found}


def _if_whole(tensor: Tensor) -> Tensor | None:
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.to_local() if all(kind.is_replicate() for kind in tensor.placements) else None


def overlap(job: Job, train: Callable[[Job], None]) -> Found:
    """Train under torch's profiler. Return the numbers of collectives, and of products during them."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if job.world.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        train(job)
    trace = Path(json.loads(os.environ[LOOK])["out"]) / f"trace_{job.world.rank}.json"
    profiler.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return {"step": job.progress.step, **overlapped(events)}


def overlapped(trace: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of collectives, of products, and of products during a collective."""
    kernels = [event for event in trace if event.get("cat") == "kernel"]
    collectives = [_span(kernel) for kernel in kernels if COLLECTIVE.search(kernel["name"])]
    products = [_span(kernel) for kernel in kernels if PRODUCT.search(kernel["name"])]
    meanwhile = [
        product
        for product in products
        if any(began < product[1] and product[0] < over for began, over in collectives)
    ]
    return {
        "num_collectives": len(collectives),
        "num_products": len(products),
        "num_products_meanwhile": len(meanwhile),
    }


def _span(event: Mapping[str, Any]) -> tuple[float, float]:
    began = float(event["ts"])
    return began, began + float(event["dur"])


def timeouts(job: Job, train: Callable[[Job], None]) -> Found:
    """Train. Return the timeouts of the job and of each process group of only some of the ranks."""
    train(job)
    partial = [group for group in distributed_c10d._world.pg_map if group.size() < job.world.world_size]
    waits = [group._get_backend(job.world.device).options._timeout.total_seconds() for group in partial]
    return {"step": job.progress.step, "job_s": job.world.timeout.total_seconds(), "groups_s": waits}


PROBES = {"weights": weights, "overlap": overlap, "timeouts": timeouts}


def main() -> None:
    """Run the worker and write the measurements."""
    chosen = json.loads(os.environ[LOOK])
    train = loop.train

    def train_probed(job: Job) -> None:
        found = PROBES[chosen["probe"]](job, train)
        path = _notes(Path(chosen["out"]), job.world.rank)
        path.write_text(json.dumps(found), encoding="utf-8")

    loop.train = train_probed
    worker.end(worker.main())


if __name__ == "__main__":
    main()
