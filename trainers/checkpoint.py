"""Saves and restores everything a run needs to go on bit for bit; writing happens beside training."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import random
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from trainers import checkpoint_files as files
from trainers.checkpoint_files import FORMAT_VERSION, CheckpointError, newest_whole, remove_leftovers, verify
from trainers.contract.rundir import RunDirectory
from trainers.distributed import World
from trainers.parallel import Strategy

__all__ = [
    "FORMAT_VERSION",
    "CheckpointError",
    "Checkpointer",
    "Outcome",
    "Progress",
    "Saved",
    "newest_whole",
    "remove_leftovers",
    "verify",
]

log = logging.getLogger(__name__)

AGREEMENT_TIMEOUT = timedelta(minutes=30)
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.pt"
STATE = "state.json"
SHARDS = "shards"


@dataclass(kw_only=True)
class Progress:
    """Where training stands; exactly what a resumed run goes on from.

    Attributes:
        samples_in_epoch: global samples used in this epoch, whatever the number of ranks.
        learning_rate: the full rate somebody set during the run; None: the configuration's.
        best_value, best_step, num_evaluations_without_best: the best evaluation, and since when.
        evaluated_step: the newest step that was evaluated.
    """

    step: int = 0
    epoch: int = 0
    samples_in_epoch: int = 0
    learning_rate: float | None = None
    best_value: float | None = None
    best_step: int | None = None
    num_evaluations_without_best: int = 0
    evaluated_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What one save came to; `removed`: steps of older checkpoints that went."""

    step: int
    path: Path
    size_bytes: int
    duration_s: float
    stall_s: float
    reason: str
    removed: tuple[int, ...] = ()


Outcome = Saved | CheckpointError


@dataclass(kw_only=True)
class _Snapshot:
    """A copy of one rank's state in host memory, to be written while training goes on."""

    progress: Progress
    reason: str
    state: dict[str, Any] | None
    random_state: dict[str, Any]
    scaler: dict[str, Any] | None
    started: float
    stall_s: float = 0.0


class Checkpointer:
    """One rank's part in saving and loading; all ranks call it at the same steps.

    Args:
        binding: what a resume must find unchanged (sizes of the data and the model).
        keep_last, keep_best: which checkpoints stay when a new one is whole; see `retire`.
        announce: told what became of each save, from the writing thread of every rank.
    """

    def __init__(
        self,
        run: RunDirectory,
        world: World,
        strategy: Strategy,
        optimizer: torch.optim.Optimizer,
        *,
        scaler: torch.amp.GradScaler | None,
        binding: Mapping[str, int | str],
        keep_last: int | None,
        keep_best: bool,
        announce: Callable[[Outcome], None],
    ) -> None:
        self._run = run
        self._world = world
        self._strategy = strategy
        self._optimizer = optimizer
        self._scaler = scaler
        self._binding = dict(binding)
        self._keep_last = keep_last
        self._keep_best = keep_best
        self._announce = announce
        self._thread: threading.Thread | None = None
        self._outcome: Outcome | None = None
        self._saved: set[int] = set()
        self._buffers: dict[str, Tensor] = {}
        # Ranks talk about files over a group of their own: never in between training's collectives.
        self._group = (
            dist.new_group(backend="gloo", timeout=AGREEMENT_TIMEOUT) if dist.is_initialized() else None
        )

    def save(self, progress: Progress, reason: str) -> float:
        """Copy this step's state and begin to write it; return the seconds training stood still.

        A save that is still going on is waited for first. Nothing is done for a step that is saved.
        """
        started = time.perf_counter()
        self.wait()
        if progress.step in self._saved:
            if reason in files.KEPT_REASONS and self._world.is_main:
                files.change_reason(self._run, progress.step, reason)
            return 0.0
        snapshot = self._copy(progress, reason, started)
        snapshot.stall_s = time.perf_counter() - started
        self._thread = threading.Thread(
            target=self._write, args=(snapshot,), name="checkpoint-writer", daemon=False
        )
        self._thread.start()
        return snapshot.stall_s

    def wait(self) -> Outcome | None:
        """Wait until nothing is being written; return the last outcome, which is that of all ranks."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._outcome

    def is_saved(self, step: int) -> bool:
        """Tell whether a whole checkpoint of this step is known to be on the disk."""
        return step in self._saved

    def close(self) -> None:
        """Wait for the last save."""
        self.wait()

    def load(self, step: int) -> Progress:
        """Put this rank into the state saved at `step`, after checking every file.

        Raises:
            CheckpointError: when there is no whole checkpoint of this step, or it is another run's.
        """
        manifest = verify(self._run, step)
        path = files.final_path(self._run, step)
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        self._check_binding(step, state, manifest)
        try:
            if self._strategy.is_sharded:
                self._load_shards(path)
            else:
                self._load_whole(path)
        except (RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"checkpoint step_{step} does not fit the model of this run: {error}"
            ) from error
        if self._scaler is not None and state["scaler"] is not None:
            self._scaler.load_state_dict(state["scaler"])
        self._restore_random_state(path, step, manifest["world_size"])
        self._saved.add(step)
        return Progress(**state["progress"])

    def _copy(self, progress: Progress, reason: str, started: float) -> _Snapshot:
        state = self._strategy.state_dict(self._optimizer)  # may be a collective
        keeps = self._strategy.is_sharded or self._world.is_main
        return _Snapshot(
            progress=copy.copy(progress),
            reason=reason,
            state=self._to_host(state) if keeps else None,
            random_state=_random_state(self._world.device),
            scaler=None if self._scaler is None else self._scaler.state_dict(),
            started=started,
        )

    def _to_host(self, state: dict[str, Any]) -> dict[str, Any]:
        """Copy all tensors to host memory; the memory is used again by the next save."""

        def copied(path: Any, value: Any) -> Any:
            if not isinstance(value, Tensor):
                return copy.deepcopy(value)
            local = self._local(value)
            name = pytree.keystr(path)
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
                is_cuda = local.device.type == "cuda"
                buffer = self._buffers[name] = torch.empty_like(local, device="cpu", pin_memory=is_cuda)
            buffer.copy_(local.detach(), non_blocking=True)
            return self._as_piece(value, buffer)

        host = pytree.tree_map_with_path(copied, state)
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        assert isinstance(host, dict)
        return host

    def _write(self, snapshot: _Snapshot) -> None:
        """Write, agree with the other ranks, publish; runs in the thread of every rank."""
        step = snapshot.progress.step
        aside = files.partial_path(self._run, step)
        try:
            self._agree(self._attempt(lambda: self._make_fresh(aside)), aside)
            if self._strategy.is_sharded:
                self._agree(self._attempt(lambda: self._write_shards(aside, snapshot)), aside)
            self._agree(self._attempt(lambda: self._write_own(aside, snapshot)), aside)
            found: list[Saved] = []
            self._agree(self._attempt(lambda: found.append(self._publish(snapshot))), aside)
            outcome: Outcome = self._share(found[0] if found else None)
            self._saved.add(step)
        except CheckpointError as error:
            outcome = error
        self._outcome = outcome
        self._announce(outcome)

    def _make_fresh(self, aside: Path) -> None:
        if self._world.is_main:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)

    def _write_own(self, aside: Path, snapshot: _Snapshot) -> None:
        files.write_synced(aside / f"rank_{self._world.rank}.pt", snapshot.random_state)
        if not self._world.is_main:
            return
        state = {
            "progress": asdict(snapshot.progress),
            "binding": self._binding,
            "scaler": snapshot.scaler,
            "strategy": self._strategy.name,
        }
        files.write_json(aside / STATE, state)
        if self._strategy.is_sharded:
            from trainers import sharded_files

            _write_weights(aside / WEIGHTS, sharded_files.gather_weights(aside / SHARDS))
            return
        assert snapshot.state is not None
        _write_weights(aside / WEIGHTS, snapshot.state["model"])
        files.write_synced(aside / OPTIMIZER, snapshot.state["optimizer"])

    def _write_shards(self, aside: Path, snapshot: _Snapshot) -> None:
        assert snapshot.state is not None
        from trainers import sharded_files

        sharded_files.write(snapshot.state, aside / SHARDS, self._group)

    def _local(self, value: Tensor) -> Tensor:
        if not self._strategy.is_sharded:
            return value
        from trainers import sharded_files

        return sharded_files.local_piece(value)

    def _as_piece(self, value: Tensor, buffer: Tensor) -> Tensor:
        if not self._strategy.is_sharded:
            return buffer
        from trainers import sharded_files

        return sharded_files.with_piece(value, buffer)

    def _publish(self, snapshot: _Snapshot) -> Saved:
        step = snapshot.progress.step
        if not self._world.is_main:
            return Saved(step=step, path=Path(), size_bytes=0, duration_s=0, stall_s=0, reason="")
        aside = files.partial_path(self._run, step)
        about = {
            "world_size": self._world.world_size,
            "strategy": self._strategy.name,
            "reason": snapshot.reason,
            "value": snapshot.progress.best_value if snapshot.progress.best_step == step else None,
        }
        size = files.publish(self._run, step, about, files.describe_files(aside))
        best = snapshot.progress.best_step if self._keep_best else None
        removed = files.retire(self._run, keep_last=self._keep_last, best_step=best)
        return Saved(
            step=step,
            path=files.final_path(self._run, step),
            size_bytes=size,
            duration_s=time.perf_counter() - snapshot.started,
            stall_s=snapshot.stall_s,
            reason=snapshot.reason,
            removed=removed,
        )

    def _attempt(self, action: Callable[[], Any]) -> str | None:
        """Run a file operation; return why it failed instead of raising, so that all ranks can be told."""
        try:
            action()
        except (OSError, RuntimeError, ValueError) as error:  # torch turns a full disk into a RuntimeError
            return str(error)
        return None

    def _agree(self, problem: str | None, aside: Path) -> None:
        """Raise on all ranks when one had a problem; nothing is left behind then."""
        problems = self._gather(problem)
        failed = [(rank, found) for rank, found in enumerate(problems) if found]
        if not failed:
            return
        if self._world.is_main:
            shutil.rmtree(aside, ignore_errors=True)
        rank, found = failed[0]
        raise CheckpointError(f"rank {rank} could not write the checkpoint: {found}")

    def _gather(self, value: Any) -> list[Any]:
        if self._group is None:
            return [value]
        gathered: list[Any] = [None] * self._world.world_size
        dist.all_gather_object(gathered, value, group=self._group)
        return gathered

    def _share(self, value: Any) -> Any:
        return self._gather(value)[0]

    def _check_binding(self, step: int, state: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
        saved = {"strategy": manifest["strategy"], **state["binding"]}
        for name, value in {"strategy": self._strategy.name, **self._binding}.items():
            if saved.get(name) != value:
                found = saved.get(name)
                raise CheckpointError(
                    f"checkpoint step_{step} was saved with {name} = {found}, but now it is {value}: "
                    "the run cannot go on with other data, another model or strategy; start a new run"
                )

    def _restore_random_state(self, path: Path, step: int, saved_world_size: int) -> None:
        """Go on drawing as this rank did; ranks of one replica draw alike, also where there are more now."""
        world, strategy = self._world, self._strategy
        rank = world.rank
        if world.world_size != saved_world_size:
            rank = strategy.replica * (world.world_size // strategy.num_replicas)
        own = path / f"rank_{rank}.pt"
        if own.exists():
            state = torch.load(own, map_location="cpu", weights_only=True)
            _restore_random_state(state, world.device)
        else:
            torch.manual_seed(torch.initial_seed() + 1_000_003 * (strategy.replica + 1) + step)

    def _load_whole(self, path: Path) -> None:
        state = {
            "model": _read_weights(path / WEIGHTS, self._world.device),
            "optimizer": torch.load(path / OPTIMIZER, map_location=self._world.device, weights_only=True),
        }
        self._strategy.load_state_dict(self._optimizer, state)

    def _load_shards(self, path: Path) -> None:
        from trainers import sharded_files

        state = self._strategy.state_dict(self._optimizer)
        sharded_files.read(state, path / SHARDS, self._group)
        self._strategy.load_state_dict(self._optimizer, state)


def _write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights as safetensors, each tensor's memory its own."""
    from safetensors.torch import save_file

    save_file({name: weight.contiguous().clone() for name, weight in weights.items()}, path)
    files.sync_file(path)


def _read_weights(path: Path, device: torch.device) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return dict(load_file(path, device=str(device)))


def _random_state(device: torch.device) -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(internal), gauss]}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
