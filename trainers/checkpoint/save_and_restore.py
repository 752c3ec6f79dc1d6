"""Saves and restores everything that a run needs to resume bit for bit; writes while training continues."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from trainers.checkpoint import loaded_state
from trainers.checkpoint.checkpoint_writer import CheckpointWriter, Outcome, Saved
from trainers.checkpoint.loaded_state import check_optimizer, check_random_state, check_weights, load_tensors
from trainers.checkpoint.snapshot import HostCopies, Progress, Snapshot, random_state, restore_random_state
from trainers.contract import checkpoint_files
from trainers.contract.checkpoint_files import CheckpointError
from trainers.contract.manifests import OPTIMIZER, SHARDS, STATE
from trainers.contract.rundir import RunDirectory, library_error_text
from trainers.files.json_files import read_json
from trainers.machine.os_errors import explain
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy

log = logging.getLogger(__name__)

# Reasons of scheduled saves. No user waits for them.
AUTOMATIC_REASONS = frozenset({"schedule", "best"})


class Checkpointer:
    """Saves and loads one rank's state; all ranks call each method at the same steps.

    Args:
        binding: values that a resume must find unchanged (sizes of the data and the model).
        keep_last, keep_best: which checkpoints are kept after a save; see `checkpoint_files.retire`.
        announce: called with the outcome of each save, from the writing thread of every rank.
        description: the content of model.json; see `trainers.checkpoint.description`.
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
        description: Mapping[str, Any] | None = None,
    ) -> None:
        self._run = run
        self._world = world
        self._strategy = strategy
        self._optimizer = optimizer
        self._scaler = scaler
        self._binding = dict(binding)
        self._announce = announce
        self._thread: threading.Thread | None = None
        self._started_step: int | None = None
        self._outcome: Outcome | None = None
        self._saved: set[int] = set()
        if strategy.is_sharded:
            from trainers.checkpoint import sharded_files

            self._copies = HostCopies(world.device, sharded_files.local_shard, sharded_files.with_shard)
        else:
            self._copies = HostCopies(world.device)
        self._writer = CheckpointWriter(
            run,
            world,
            strategy,
            binding=binding,
            keep_last=keep_last,
            keep_best=keep_best,
            description=description,
        )
        # An optimizer has no state before its first step. After that step, a thread reserves host memory
        # for copies while training continues. On GPUs the memory is reserved at the first checkpoint, because
        # no other program can use pinned memory.
        self._preparation: threading.Thread | None = None
        if world.device.type == "cpu":
            self._first_step = optimizer.register_step_post_hook(self._prepare)

    def save(self, progress: Progress, reason: str, *, value: float | None = None) -> float:
        """Copy this step's state and begin to write it; return the seconds that training was paused.

        Waits for an earlier save first. A step that is saved, or being written, is not saved again: returns
        0.0.

        Args:
            reason: reason for the manifest; one in `checkpoint_files.RETAINED_REASONS` is never deleted.
            value: this step's metric for the manifest; None: the best value if it is this step's.
        """
        started_s = time.perf_counter()
        # Do not use the outcome here: it differs with each rank's timing, and all ranks must decide alike.
        is_being_written = self._thread is not None and self._started_step == progress.step
        if is_being_written and reason in AUTOMATIC_REASONS:
            return 0.0
        self.wait()
        if progress.step in self._saved:
            self._keep_permanently(progress.step, reason)
            return 0.0
        snapshot = self._copy(progress, reason, value, started_s)
        snapshot.stall_s = time.perf_counter() - started_s
        self._started_step = progress.step
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="checkpoint-writer")
        self._thread.start()
        return snapshot.stall_s

    def wait(self) -> Outcome | None:
        """Wait until nothing is being written; return the last outcome, which is the same on all ranks."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._outcome

    def is_saved(self, step: int) -> bool:
        """Return True if a complete checkpoint of this step is on disk."""
        return step in self._saved

    def close(self) -> None:
        """Wait for the last save."""
        if self._preparation is not None:
            self._preparation.join()
        self.wait()

    def load(self, step: int) -> Progress:
        """Load this rank's state of `step`, after checking every file.

        Raises:
            CheckpointError: if there is no intact checkpoint of this step, or it belongs to another run.
        """
        manifest = checkpoint_files.verify(self._run, step)
        path = checkpoint_files.final_path(self._run, step)
        state = read_json(path / STATE)
        self._check_binding(step, state["binding"], manifest)
        try:
            if self._strategy.is_sharded:
                self._load_shards(path)
            else:
                self._load_unsharded(path)
            self._restore_random_state(path, step, manifest)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise CheckpointError(
                f"checkpoint step_{step} does not fit the model of this run: {library_error_text(error)}"
            ) from error
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        self._saved.add(step)
        return Progress(**state["progress"])

    def _prepare(self, *_: Any) -> None:
        self._first_step.remove()
        state = self._strategy.state_dict(self._optimizer)
        if self._writes_state:
            self._preparation = threading.Thread(target=self._reserve, args=(state,), name="checkpoint-room")
            self._preparation.start()

    def _reserve(self, state: dict[str, Any]) -> None:
        try:
            self._copies.reserve(state)
        except (RuntimeError, MemoryError) as error:
            log.warning("cannot reserve memory for checkpoints: %s", error)  # the first save reports it

    @property
    def _writes_state(self) -> bool:
        return self._strategy.is_sharded or self._world.is_main

    def _copy(self, progress: Progress, reason: str, value: float | None, started_s: float) -> Snapshot:
        # not inside `try`, because this may be a collective
        state = self._strategy.state_dict(self._optimizer)
        if value is None and progress.best_step == progress.step:
            value = progress.best_value
        snapshot = Snapshot(
            progress=copy.copy(progress),
            reason=reason,
            value=value,
            started=started_s,
            random_state=random_state(self._world.device),
            scaler=None if self._scaler is None else self._scaler.state_dict(),
        )
        if self._writes_state:
            if self._preparation is not None:
                self._preparation.join()
                self._preparation = None
            try:
                snapshot.state = self._copies.take(state)
            except (RuntimeError, MemoryError) as error:
                snapshot.problem = checkpoint_files.root_cause(error)
        return snapshot

    def _write(self, snapshot: Snapshot) -> None:
        """Write, record the outcome and announce it; the body of the writing thread."""
        self._world.use_device()
        outcome = self._writer.write(snapshot)
        if isinstance(outcome, Saved):
            self._saved.add(outcome.step)
            self._saved.difference_update(outcome.removed)
        self._outcome = outcome
        self._announce(outcome)

    def _keep_permanently(self, step: int, reason: str) -> None:
        """Keep an existing checkpoint permanently, because a user requested it."""
        if reason not in checkpoint_files.RETAINED_REASONS or not self._world.is_main:
            return
        try:
            checkpoint_files.change_reason(self._run, step, reason)
        except OSError as error:
            error_class = (
                checkpoint_files.NoSpaceError if checkpoint_files.needs_space(error) else CheckpointError
            )
            self._announce(error_class(f"step {step:,} is saved, but may be deleted later: {explain(error)}"))

    def _check_binding(self, step: int, binding: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
        saved = {"strategy": manifest["strategy"], **binding}
        for name, value in {"strategy": self._strategy.name, **self._binding}.items():
            stored = saved.get(name, value)  # an older checkpoint may lack it
            if stored != value:
                raise CheckpointError(
                    f"checkpoint step_{step} was saved with {name} = {stored}, but the value is {value} now: "
                    "a run cannot resume with other data, model or strategy; start a new run"
                )

    def _restore_random_state(self, path: Path, step: int, manifest: Mapping[str, Any]) -> None:
        """Restore this rank's random state, which is equal on the ranks of a replica, also after a resize."""
        world, strategy = self._world, self._strategy
        rank = world.rank
        if world.world_size != manifest["world_size"]:
            rank = strategy.replica * (world.world_size // strategy.num_replicas)
        state_file = path / f"rank_{rank}.pt"
        if state_file.name in manifest["files"]:
            state = load_tensors(state_file)
            check_random_state(state, state_file.name)
            restore_random_state(state, world.device)
        else:
            torch.manual_seed(torch.initial_seed() + 1_000_003 * (strategy.replica + 1) + step)

    def _load_unsharded(self, path: Path) -> None:
        # Load into host memory: the optimizer moves each tensor to the device that its kernels need.
        state = {"model": loaded_state.read_weights(path), "optimizer": load_tensors(path / OPTIMIZER)}
        check_weights(self._strategy.network, state["model"], "the file of weights")
        check_optimizer(self._optimizer, state["optimizer"], OPTIMIZER)
        self._strategy.load_state_dict(self._optimizer, state)

    def _load_shards(self, path: Path) -> None:
        from trainers.checkpoint import sharded_files

        state = self._strategy.state_dict(self._optimizer)
        sharded_files.read(state, path / SHARDS)
        self._strategy.load_state_dict(self._optimizer, state)
