"""Telemetry of a rank: devices, memory, and the bytes of its weights, gradients and optimizer state."""

from __future__ import annotations

import json
import logging
import mmap
import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.contract import heartbeats
from trainers.files import plain_files
from trainers.machine import facilities, host, nvml
from trainers.machine.host import MemoryFile
from trainers.machine.threads import OtherLoad, OtherLoadReader, own_cpu_s
from trainers.parallel import devices
from trainers.parallel.process_group import World, gather_json, is_one_machine
from trainers.report.reporter import NullReporter
from trainers.report.step_clock import StepTimes
from trainers.watch.flight_recorder import flight_record_text


@dataclass(kw_only=True)
class Holdings:
    """Counts one rank's bytes of weights, gradients and optimizer state, each at its point in a step.

    For a sharded tensor, this rank's part counts. Activations, buffers of collectives and memory of libraries
    are not counted.

    Attributes:
        parameter_bytes: the weights at the end of the first forward pass, including those still gathered.
        gradient_bytes: the gradients at the end of the first backward pass.
        optimizer_bytes: the optimizer's state after its first step.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None

    def forward_done(self) -> None:
        """Count the weights."""
        self.parameter_bytes = _num_bytes(self.network.parameters())

    def backward_done(self) -> None:
        """Count the gradients."""
        gradients = (parameter.grad for parameter in self.network.parameters())
        self.gradient_bytes = _num_bytes(gradient for gradient in gradients if gradient is not None)

    def step_done(self) -> None:
        """Count the optimizer's state; ZeRO-1 wraps an optimizer that has only this rank's share."""
        optimizer = getattr(self.optimizer, "optim", self.optimizer)
        values = (value for state in optimizer.state.values() for value in state.values())
        self.optimizer_bytes = _num_bytes(value for value in values if isinstance(value, Tensor))


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(_local(tensor).numel() * tensor.element_size() for tensor in tensors)


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; other tensors are returned unchanged."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


log = logging.getLogger(__name__)

HOLDINGS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
SAMPLE_EVERY_S = 1.0
GATHER_AFTER_S = 0.05
STORE_TIMEOUT = timedelta(seconds=10)
SLOT_BYTES = 8192
# Length and checksum of the JSON: a reader detects half-written data by them.
_HEAD = struct.Struct("<II")


@dataclass
class LiveProgress:
    """Values that the training thread writes and the sampler only reads.

    Attributes:
        newest: the last step, and a function that computes the times of the last measured step.
        base_memory_bytes: memory of the rank before its model was built; None until then.
        holdings: bytes of weights, gradients and optimizer state; None before the first step is done.
        sample_requested: set if the next sample should be taken immediately.
        gradients_done: see `StepClock`.
    """

    newest: tuple[int, Callable[[], StepTimes]] = (0, StepTimes)
    base_memory_bytes: int | None = None
    holdings: Holdings | None = None
    sample_requested: threading.Event = field(default_factory=threading.Event)
    gradients_done: Callable[[], int | None] = field(default=lambda: None)

    def record_step(self, step: int, times: Callable[[], StepTimes]) -> None:
        """Store the last step in one assignment, so that the sampler never reads a partial update."""
        self.newest = (step, times)
        heartbeats.write_heartbeat(heartbeats.STEPPING, step)

    def begin_model(self, device: torch.device) -> None:
        """Store the memory held before the model is built; the peak is counted from here."""
        reset_peak_memory(device)
        self.base_memory_bytes = held_memory_bytes(device)

    def sample(self) -> dict[str, float | None]:
        """Return step and times as in an entry of the `ranks` event."""
        step, times = self.newest
        return {"step": step} | {
            name: None if value is None else round(value, 6) for name, value in times()._asdict().items()
        }


class SharedSamples:
    """Shared memory with one slot for each rank of this machine.

    Args:
        content: the shared memory.
    Attributes:
        num_slots: number of slots.
    """

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self.num_slots = len(content) // SLOT_BYTES
        self._newest: dict[int, Any] = {}

    def write(self, slot: int, sample: Any) -> None:
        """Write a sample, a JSON value, into a slot.

        Raises:
            ValueError: if it does not fit.
        """
        text = json.dumps(sample).encode()
        if _HEAD.size + len(text) > SLOT_BYTES:
            raise ValueError(f"a sample of {len(text)} bytes does not fit into {SLOT_BYTES}")
        start = slot * SLOT_BYTES
        record = _HEAD.pack(len(text), zlib.crc32(text)) + text
        self._content[start : start + len(record)] = record

    def read(self) -> list[Any]:
        """Return the latest sample of each slot that has one, in slot order."""
        for slot in range(self.num_slots):
            start = slot * SLOT_BYTES
            record = self._content[start : start + SLOT_BYTES]
            length, checksum = _HEAD.unpack_from(record)
            text = record[_HEAD.size : _HEAD.size + length]
            # A sample that is being written right now is read the next time.
            if length and len(text) == length and zlib.crc32(text) == checksum:
                self._newest[slot] = json.loads(text)
        return [self._newest[slot] for slot in sorted(self._newest)]


class Telemetry:
    """One rank's sampling thread; rank 0's also gathers and reports the samples of all ranks."""

    def __init__(self, world: World, reporter: NullReporter, live_progress: LiveProgress) -> None:
        self._world = world
        self._reporter = reporter
        self._live_progress = live_progress
        self._stop = threading.Event()
        self._shared_samples: SharedSamples | None = None
        self._file: MemoryFile | None = None
        self._is_first_read = True
        self._host: dict[str, str] = {}
        self.thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Begin to sample; every rank must call it.

        Raises:
            OSError: if the ranks of this machine cannot share memory.
        """
        world = self._world
        if world.local_rank == 0:
            # torchrun numbers the ranks of one machine without gaps.
            self._file = MemoryFile("samples", int(os.environ["LOCAL_WORLD_SIZE"]) * SLOT_BYTES)
            # With several machines, the first rank of each reports its host name.
            self._host = {} if is_one_machine() else {"host": socket.gethostname()}
        own_address = None if self._file is None else self._file.address
        address = gather_json(own_address, world.slow_group)[world.rank - world.local_rank]
        self._shared_samples = SharedSamples(plain_files.map_file(address))
        self.thread.start()

    def stop(self) -> None:
        """End the thread; afterwards the store may be closed."""
        self._stop.set()
        self._live_progress.sample_requested.set()
        if self.thread.ident is not None:  # else it was never started
            self.thread.join(timeout=2 * SAMPLE_EVERY_S)
        if self._file is not None:
            self._file.close()

    def _run(self) -> None:
        try:
            self._world.use_device()
            self._sample_until_stopped()
        except (RuntimeError, ValueError) as error:  # errors of the store: the job is ending or broken
            if not self._stop.is_set():
                log.warning("telemetry ended: %s", error)

    def _sample_until_stopped(self) -> None:
        shared_samples, world = self._shared_samples, self._world
        assert shared_samples is not None
        index, reader = _device_reader(world)
        other_load = OtherLoadReader()
        machine_samples = MachineSamples(world) if world.local_rank == 0 and not is_one_machine() else None
        is_early = False
        while not self._stop.is_set():
            heartbeats.answer_request(partial(flight_record_text, self._live_progress.gradients_done))
            shared_samples.write(world.local_rank, self._sample(index, reader))
            if world.local_rank == 0 and not self._stop.wait(GATHER_AFTER_S):
                samples = self._read_samples(shared_samples, is_early=is_early)
                # An early sample cannot include the load of other programs: its interval is too short to
                # measure it.
                load = None if is_early else other_load.read(sum(sample["cpu_s"] for sample in samples))
                if machine_samples is not None:
                    machine_samples.publish(samples)
                if world.is_main and machine_samples is not None and not self._stop.wait(GATHER_AFTER_S):
                    samples = machine_samples.gather()
                if world.is_main:
                    self.report(samples, load)
            # Sample at full seconds of the clock, so that the samples of all machines are simultaneous.
            is_early = self._live_progress.sample_requested.wait(
                SAMPLE_EVERY_S - time.time() % SAMPLE_EVERY_S
            )
            self._live_progress.sample_requested.clear()

    def _read_samples(self, shared_samples: SharedSamples, *, is_early: bool = False) -> list[dict[str, Any]]:
        """Return this machine's samples.

        The first call waits for all ranks, because they start sampling at different times. An early call
        waits until all ranks have counted their bytes.
        """
        samples = shared_samples.read()
        deadline = time.monotonic() + SAMPLE_EVERY_S
        while (self._is_first_read and len(samples) < shared_samples.num_slots) or (
            is_early and any(sample["rank"]["parameter_bytes"] is None for sample in samples)
        ):
            if time.monotonic() > deadline or self._stop.wait(GATHER_AFTER_S):
                break
            samples = shared_samples.read()
        self._is_first_read = False
        return samples

    def _sample(self, index: int | None, reader: Any) -> dict[str, Any]:
        device = self._world.device
        return {
            "device": {
                "rank": self._world.rank,
                "node": self._world.node,
                **self._host,
                "kind": device.type,
                "index": index,
                **asdict(reader()),
            },
            "rank": {
                "rank": self._world.rank,
                **self._live_progress.sample(),
                "doing": heartbeats.describe_activity(),
                "base_memory_bytes": self._live_progress.base_memory_bytes,
                "peak_memory_bytes": peak_memory_bytes(device),
                **{name: getattr(self._live_progress.holdings, name, None) for name in HOLDINGS},
            },
            "cpu_s": round(own_cpu_s(), 3),
        }

    def report(self, samples: list[dict[str, Any]], load: OtherLoad | None = None) -> None:
        """Report the gathered samples, and the load of other programs on rank 0's machine."""
        self._reporter.event(
            "devices",
            devices=[sample["device"] for sample in samples],
            others_cpu_percent=None if load is None else load.others_percent,
            idle_cpu_percent=None if load is None else load.idle_percent,
        )
        self._reporter.event("ranks", ranks=[sample["rank"] for sample in samples])


def held_memory_bytes(device: torch.device) -> int:
    """Return the memory this rank holds now: on a GPU torch's allocations, else the resident set."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return facilities.resident_bytes()


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak, because reading data can briefly take more memory than training.

    Only Linux can reset the peak of a process; on other systems it counts from the start of the process.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        facilities.write("/proc/self/clear_refs", "5")


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory of this rank: on a GPU torch's allocations, else the resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return facilities.peak_memory_bytes()


class MachineSamples:
    """Exchanges samples between a job's machines, through its own connection to torchrun's store."""

    def __init__(self, world: World) -> None:
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=STORE_TIMEOUT,
            wait_for_workers=False,
        )
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"telemetry/{restarts}", store)
        self._keys = [f"node_{node}" for node in range(int(os.environ["GROUP_WORLD_SIZE"]))]
        self._key = self._keys[world.node]
        self._existing: set[str] = set()

    def publish(self, samples: list[dict[str, Any]]) -> None:
        """Publish the samples of this machine's ranks."""
        self._store.set(self._key, json.dumps(samples))

    def gather(self) -> list[dict[str, Any]]:
        """Return the latest samples of all machines, read in one request."""
        if missing := [key for key in self._keys if key not in self._existing]:
            # `multi_get` would block on missing keys.
            is_complete = self._store.check(missing)
            self._existing.update(key for key in missing if is_complete or self._store.check([key]))
        existing = [key for key in self._keys if key in self._existing]
        node_samples = self._store.multi_get(existing) if existing else []
        return [sample for text in node_samples for sample in json.loads(text)]


def _device_reader(world: World) -> tuple[int | None, Any]:
    """Return this rank's device index on the machine, and the function that reads the device.

    torch renumbers the GPUs of CUDA_VISIBLE_DEVICES; users see the machine's index.
    """
    if world.device.type == "cpu":
        return world.local_rank, host.ProcessReader(torch.get_num_threads()).read
    properties = torch.cuda.get_device_properties(world.device)
    handle = nvml.gpu_handle(str(getattr(properties, "uuid", "")))
    if handle is None:
        reading = host.Reading(name=properties.name, memory_total_bytes=properties.total_memory)
        return world.device.index, lambda: reading
    index = devices.machine_index(world.device)
    return world.device.index if index is None else index, lambda: nvml.read_gpu(handle)
