"""Writes checkpoints while training continues. Every rank writes its part; if one fails, the save fails."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from trainers.checkpoint import loaded_state
from trainers.checkpoint.snapshot import Snapshot
from trainers.contract import checkpoint_files, fence, tickets
from trainers.contract.checkpoint_files import CheckpointError, NoSpaceError, PeersGoneError, Sealing
from trainers.contract.manifests import DESCRIPTION, OPTIMIZER, SHARDS, STATE
from trainers.contract.rundir import RunDirectory, remove_advice
from trainers.files import plain_files
from trainers.machine.os_errors import explain
from trainers.parallel.process_group import World, gather_json
from trainers.parallel.strategy import Strategy

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The outcome of one save; `removed`: steps of older checkpoints that were deleted."""

    step: int
    path: Path
    size_bytes: int
    duration_s: float
    stall_s: float
    reason: str
    removed: tuple[int, ...] = ()


Outcome = Saved | CheckpointError


class CheckpointWriter:
    """One rank's writer. All ranks create theirs at the same point, and write the same steps.

    Args:
        binding: values that a resume must find unchanged (sizes of the data and the model).
        keep_last, keep_best: which checkpoints are kept after a save; see `checkpoint_files.retire`.
        description: the content of model.json.
    """

    def __init__(
        self,
        run: RunDirectory,
        world: World,
        strategy: Strategy,
        *,
        binding: Mapping[str, int | str],
        keep_last: int | None,
        keep_best: bool,
        description: Mapping[str, Any] | None = None,
    ) -> None:
        self._run = run
        self._world = world
        self._is_sharded = strategy.is_sharded
        self._strategy_name = strategy.name
        self._binding = dict(binding)
        # Encoded once: a vocabulary has thousands of words, and a run has many checkpoints.
        self._description = None if description is None else json.dumps(description, indent=1)
        self._keep_last = keep_last
        self._keep_best = keep_best
        self._max_bytes = tickets.granted_checkpoint_bytes(run) if world.is_main else None
        # Writing uses its own process group, so that its collectives never interleave with those of
        # training.
        self.group = (
            dist.new_group(backend="gloo", timeout=world.slow_timeout) if dist.is_initialized() else None
        )

    def write(self, snapshot: Snapshot) -> Saved | CheckpointError:
        """Write this rank's part, agree with the other ranks, publish; every rank gets the same outcome."""
        partial_path = checkpoint_files.partial_path(self._run, snapshot.progress.step)
        try:
            with Sealing() as sealing:
                self._run_on_all_ranks(lambda: self._begin(partial_path, snapshot), partial_path)
                if self._is_sharded:
                    self._run_on_all_ranks(lambda: self._write_shards(partial_path, snapshot), partial_path)
                self._run_on_all_ranks(
                    lambda: self._write_own_files(partial_path, snapshot, sealing), partial_path
                )
                return self._publish(partial_path, snapshot, sealing)
        except CheckpointError as error:
            return error

    def _begin(self, partial_path: Path, snapshot: Snapshot) -> None:
        if snapshot.problem is not None:
            raise MemoryError(snapshot.problem)
        if self._world.is_main:
            fence.require_newest(self._run.path)
            checkpoint_files.require_space(
                self._run,
                snapshot.progress.step,
                self._estimate_size(snapshot),
                snapshot.reason,
                keep_last=self._keep_last,
                best_step=snapshot.progress.best_step if self._keep_best else None,
                max_bytes=self._max_bytes,
            )
            plain_files.remove(partial_path)
            # Without `parents=True`: the directory of a deleted run must not reappear.
            partial_path.parent.mkdir(exist_ok=True)
            partial_path.mkdir()

    def _estimate_size(self, snapshot: Snapshot) -> int:
        """Return the approximate size of a checkpoint in bytes, over all ranks if the state is sharded."""
        own_bytes = sum(
            leaf.numel() * leaf.element_size()
            for leaf in tree_leaves(snapshot.state)
            if isinstance(leaf, torch.Tensor)
        )
        return own_bytes * (self._world.world_size if self._is_sharded else 1)

    def _write_shards(self, partial_path: Path, snapshot: Snapshot) -> None:
        from trainers.checkpoint import sharded_files

        assert snapshot.state is not None
        sharded_files.write(snapshot.state, partial_path / SHARDS, self.group)

    def _write_own_files(self, partial_path: Path, snapshot: Snapshot, sealing: Sealing) -> None:
        """Write this rank's own files: its random state, and on rank 0 everything shared."""
        loaded_state.write_tensors(partial_path / f"rank_{self._world.rank}.pt", snapshot.random_state)
        if not self._world.is_main:
            return
        state = {
            "progress": asdict(snapshot.progress),
            "binding": self._binding,
            "scaler": snapshot.scaler,
        }
        checkpoint_files.write_json(partial_path / STATE, state)
        if self._description is not None:
            (partial_path / DESCRIPTION).write_text(self._description, encoding="utf-8")
        if self._is_sharded:
            from trainers.checkpoint import sharded_files

            loaded_state.write_weights(partial_path, sharded_files.gather_weights(partial_path / SHARDS))
            return
        assert snapshot.state is not None
        sealing.begin(loaded_state.write_weights(partial_path, snapshot.state["model"]))
        loaded_state.write_tensors(partial_path / OPTIMIZER, snapshot.state["optimizer"])

    def _publish(self, partial_path: Path, snapshot: Snapshot, sealing: Sealing) -> Saved:
        """Rename the checkpoint and delete old ones, on rank 0; every rank gets the outcome."""
        step = snapshot.progress.step

        def publish() -> int:
            if not self._world.is_main:
                return 0
            fence.require_newest(self._run.path)
            fields = {
                "world_size": self._world.world_size,
                "strategy": self._strategy_name,
                "reason": snapshot.reason,
                "value": snapshot.value,
                "num_threads": torch.get_num_threads() if self._world.device.type == "cpu" else None,
            }
            return checkpoint_files.publish(self._run, step, fields, sealing.finish(partial_path))

        size_bytes = self._run_on_all_ranks(publish, partial_path)
        removed = self._retire(snapshot) if self._world.is_main else ()
        duration_s = time.perf_counter() - snapshot.started
        main_values = self._run_on_all_ranks(lambda: (duration_s, snapshot.stall_s, removed), partial_path)
        return Saved(
            step=step,
            path=checkpoint_files.final_path(self._run, step),
            size_bytes=size_bytes,
            duration_s=main_values[0],
            stall_s=main_values[1],
            reason=snapshot.reason,
            removed=tuple(main_values[2]),
        )

    def _retire(self, snapshot: Snapshot) -> tuple[int, ...]:
        best_step = snapshot.progress.best_step if self._keep_best else None
        try:
            return checkpoint_files.retire(
                self._run, snapshot.progress.step, keep_last=self._keep_last, best_step=best_step
            )
        except OSError as error:
            # The new checkpoint is complete nevertheless.
            log.warning("old checkpoints could not be deleted: %s", explain(error))
            return ()

    def _run_on_all_ranks(self, action: Callable[[], Result], partial_path: Path) -> Result:
        """Run a part of a save on every rank, and return rank 0's result, a JSON value.

        Raises:
            CheckpointError: on all ranks if it failed on any; the partial checkpoint is deleted.
        """
        own_result: tuple[str | None, bool, Result | None] = (None, False, None)
        is_superseded = False
        try:
            own_result = (None, False, action())
        except Exception as error:
            # Catch everything: the other ranks wait for the outcome, and training must continue.
            is_superseded = isinstance(error, fence.SupersededError)
            is_bug = not isinstance(error, OSError | CheckpointError | fence.SupersededError)
            log.warning(
                "a checkpoint could not be written: %s", checkpoint_files.root_cause(error), exc_info=is_bug
            )
            own_result = (checkpoint_files.root_cause(error), checkpoint_files.needs_space(error), None)
        results = self._gather(own_result)
        failures = [
            (rank, problem, is_full)
            for rank, (problem, is_full, _) in enumerate(results)
            if problem is not None
        ]
        if failures:
            # Do not delete the folder: it may be the same step's checkpoint of a newer start of this run.
            if self._world.is_main and not is_superseded:
                shutil.rmtree(partial_path, ignore_errors=True)
            rank, problem, is_full = failures[0]
            error_class = NoSpaceError if is_full else CheckpointError
            raise error_class(f"rank {rank} could not write the checkpoint: {problem}")
        result: Result = results[0][2]
        return result

    def _gather(self, value: Any) -> list[Any]:
        if self.group is None:
            return [value]
        try:
            return gather_json(value, self.group)
        except RuntimeError as error:
            # A rank's process is gone, which ends this run; the supervisor reports why.
            message = f"the connection to the other ranks was lost: {remove_advice(str(error))}"
            raise PeersGoneError(message) from error
