"""Times real all-reduces between the ranks and checks their sums.

Bandwidths are defined as in NVIDIA's nccl-tests (doc/PERFORMANCE.md): the algorithm bandwidth is
bytes / time; the bus bandwidth of an all-reduce between n ranks is the algorithm bandwidth × 2(n−1)/n,
which does not depend on n and can be compared with the bandwidth of the hardware.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.machine import host
from trainers.parallel.process_group import World

BYTES_PER_ELEMENT = 4
SIZES_BYTES = tuple(1_000 * 4**power for power in range(9))  # 1 kB to 66 MB
NUM_WARM_UPS = 3
NUM_FIRST_WARM_UPS = 50
MIN_REPETITIONS = 5
MAX_REPETITIONS = 100
PATTERN_LENGTH = 251


@dataclass(frozen=True, kw_only=True)
class BandwidthMeasurement:
    """Speed of all-reduces of one size; `time_s` is the median on the slowest rank."""

    backend: str
    num_ranks: int
    device: str
    size_bytes: int
    num_repetitions: int
    time_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float


def warm_up(world: World) -> None:
    """Run untimed all-reduces so that connections are set up. Every rank must call it."""
    values, _ = make_test_values(SIZES_BYTES[0] // BYTES_PER_ELEMENT, world)
    for _ in range(NUM_FIRST_WARM_UPS):
        world.sum(values.clone())


def measure(size_bytes: int, world: World, time_per_size_s: float) -> BandwidthMeasurement:
    """Time all-reduces of one size; every rank must call it.

    Raises:
        ValueError: if a sum is wrong.
    """
    source, expected = make_test_values(size_bytes // BYTES_PER_ELEMENT, world)
    values = source.clone()
    warm_up_s = min(_time_all_reduce(values, source, world) for _ in range(NUM_WARM_UPS))
    # All ranks must use the same number: otherwise a rank waits forever in an all-reduce.
    num_repetitions = repetitions_in_time(_max_over_ranks(warm_up_s, world), time_per_size_s)
    times_s = [_time_all_reduce(values, source, world) for _ in range(num_repetitions)]
    if not torch.equal(values, expected):
        raise ValueError(
            f"an all-reduce of {len(values):,} numbers returned a wrong sum on rank {world.rank}"
        )
    time_s = _max_over_ranks(statistics.median(times_s), world)
    algorithm_bytes_per_s = size_bytes / time_s
    is_cuda = world.device.type == "cuda"
    return BandwidthMeasurement(
        backend=dist.get_backend(),
        num_ranks=world.world_size,
        device=torch.cuda.get_device_name(world.device) if is_cuda else host.cpu_name(),
        size_bytes=size_bytes,
        num_repetitions=num_repetitions,
        time_s=time_s,
        algorithm_bytes_per_s=algorithm_bytes_per_s,
        bus_bytes_per_s=algorithm_bytes_per_s * bus_factor(world.world_size),
    )


def bus_factor(num_ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth for an all-reduce."""
    return 2 * (num_ranks - 1) / num_ranks


def make_test_values(num_elements: int, world: World) -> tuple[Tensor, Tensor]:
    """Return this rank's values and their sum over all ranks; integers, so that the sum is exact."""
    pattern = torch.arange(1, PATTERN_LENGTH + 1, dtype=torch.float32, device=world.device)
    ramp = pattern.repeat(math.ceil(num_elements / PATTERN_LENGTH))[:num_elements]
    rank_sum = world.world_size * (world.world_size + 1) // 2
    return ramp * (world.rank + 1), ramp * rank_sum


def repetitions_in_time(time_s: float, total_s: float) -> int:
    """Return the number of repetitions of `time_s` each that take about `total_s` in total."""
    return min(MAX_REPETITIONS, max(MIN_REPETITIONS, int(total_s / time_s)))


def _time_all_reduce(values: Tensor, source: Tensor, world: World) -> float:
    values.copy_(source)
    # Start together: waiting for a late rank is not transfer time.
    dist.barrier()
    _wait_for_gpu(world.device)
    started_at = time.perf_counter()
    world.sum(values)
    _wait_for_gpu(world.device)
    return time.perf_counter() - started_at


def _wait_for_gpu(device: torch.device) -> None:
    """Wait until the GPU has finished: CUDA calls return before the work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _max_over_ranks(time_s: float, world: World) -> float:
    """Return the longest time over all ranks: a training step waits for the slowest rank."""
    longest = torch.tensor([time_s], dtype=torch.float64, device=world.device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return float(longest)
