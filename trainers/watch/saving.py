"""Checkpoints of a script: `watch.save` writes one on request, `watch.load` restores it.

Rank 0 writes the script's values, each rank the state of its random generators; rank 0's `Collector`
completes the checkpoint when all ranks have written. No collective is used: every rank saves at its first
call of `watch.save` at or after the step in `spool.SAVE_STEP`, which is set before any rank reaches it.

To draw the same random numbers as an uninterrupted run, a checkpoint has two random states: the state at the
save and, if the script was iterating a data loader, the state at the beginning of that pass, which determined
the order. After a load, the pass begins with the second state. Each further batch starts from the first
state, until a batch is trained on.
"""

from __future__ import annotations

import random
import sys
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainers.contract import checkpoint_files, tickets
from trainers.contract.checkpoint_files import CheckpointError
from trainers.contract.manifests import SCRIPT_VALUES, STATE
from trainers.contract.rundir import RunDirectory
from trainers.watch import spool

# Types that `torch.load(weights_only=True)` accepts; not subclasses, which are pickled differently.
_PLAIN = {type(None), bool, int, float, complex, str, Tensor, nn.Parameter, torch.Size, torch.dtype}
_MAPPINGS = {dict, OrderedDict, Counter}
_SEQUENCES = {list, tuple, set}


class Saving:
    """Saves and restores the values of one rank's script."""

    def __init__(self, recorder: Any, resume_step: int | None) -> None:
        self._recorder = recorder
        self._run = RunDirectory(recorder.run_dir)
        self._resume_step = resume_step
        self._is_loaded = False
        self._saved_step = 0
        # The current pass over a loader: its iterator, and the random state before the iterator was created.
        self._iterator: Callable[[], Any] = lambda: None
        self._pass_random_state: dict[str, Any] = {}
        # After a load, until the pass has reached the save: the random states at its beginning and the save.
        self.pending: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._num_fetched = 0

    # Called by the script

    def load(self, objects: Mapping[str, Any]) -> dict[str, Any] | None:
        """Load the checkpoint of a resumed run into the given objects; return the other saved values.

        None if the run was not resumed.

        Raises:
            CheckpointError: if the checkpoint is damaged, or has no value for a given object.
        """
        self._is_loaded = True
        if self._resume_step is None:
            return None
        step = self._resume_step
        checkpoint_files.verify(self._run, step)
        folder = checkpoint_files.final_path(self._run, step)
        values = _read(folder / SCRIPT_VALUES)
        rank_state = _read(folder / f"rank_{max(0, self._recorder.rank)}.pt")
        for name, value in objects.items():
            if name not in values:
                names_text = ", ".join(sorted(values)) or "nothing"
                raise CheckpointError(
                    f"watch.load got {name}, but the checkpoint of step {step:,} has {names_text}"
                )
            value.load_state_dict(values.pop(name))
        self._recorder.continue_from(step, num_passes=rank_state["num_passes"])
        if rank_state["at_pass"]:
            self.pending = rank_state["at_pass"], rank_state["random"]
        else:
            _restore_random_state(rank_state["random"])
        return values

    def save(self, values: Mapping[str, Any]) -> None:
        """Write this rank's part of a checkpoint if a new one was requested."""
        recorder, control = self._recorder, self._recorder.control
        if control is None or not self._is_loaded:
            return
        control.set(spool.SAVES, 1)
        requested_step = control.get(spool.SAVE_STEP)
        if not self._saved_step < requested_step <= recorder.step:
            return
        self._saved_step = requested_step
        started_at, problem = time.perf_counter(), None
        try:
            self._write(recorder.step, values)
        except Exception as error:  # noqa: BLE001 - reported as a warning; a failed save must not end the script
            problem = checkpoint_files.root_cause(error)
        stall_s = round(time.perf_counter() - started_at, 4)
        recorder.note(
            "checkpoint", step=recorder.step, wanted=requested_step, problem=problem, stall_s=stall_s
        )

    def _write(self, step: int, values: Mapping[str, Any]) -> None:
        recorder, folder = self._recorder, checkpoint_files.partial_path(self._run, step)
        folder.mkdir(exist_ok=True)
        is_within = self._iterator() is not None
        rank_state = {
            "random": _random_state(),
            "at_pass": self._pass_random_state if is_within else {},
            "num_passes": recorder.num_passes - is_within,
        }
        torch.save(rank_state, folder / f"rank_{recorder.rank}.pt")
        if recorder.rank != 0:
            return
        state = {
            name: value.state_dict() if hasattr(value, "state_dict") else value
            for name, value in values.items()
        }
        for name, value in state.items():
            if (part := _unloadable_part(value)) is not None:
                raise CheckpointError(
                    f"watch.save got {name} with {part}; allowed: objects with state_dict(), "
                    "tensors, numbers, texts, and lists, tuples, sets and dicts of them"
                )
        progress = {
            "step": step, "epoch": max(recorder.epoch, 0), "samples_in_epoch": 0, "learning_rate": None,
            "best_value": None, "best_step": None, "num_evaluations_without_best": 0, "evaluated_step": None,
        }  # fmt: skip
        checkpoint_files.write_json(folder / STATE, {"progress": progress, "binding": {}, "scaler": None})
        config = self._run.read_config()
        checkpoint_files.require_space(
            self._run,
            step,
            sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state)),
            "stop" if recorder.control.get(spool.STOP_STEP) else "button",
            keep_last=config.keep_last_checkpoints if config.checkpoint_every_steps else None,
            best_step=None,
            max_bytes=tickets.granted_checkpoint_bytes(self._run),
        )
        torch.save(state, folder / SCRIPT_VALUES)

    # Called by the hooks of data loaders and backward, for training only

    def begin_pass(self) -> None:
        """Note that the script is about to iterate a data loader."""
        if self.pending is not None:
            _restore_random_state(self.pending[0])
            self._num_fetched = 0
        if self._is_loaded:
            self._pass_random_state = _random_state()

    def set_iterator(self, iterator: Any) -> None:
        """Keep a weak reference to the pass's iterator: the pass is over when the iterator is freed."""
        if self._is_loaded:
            self._iterator = weakref.ref(iterator)

    def begin_fetch(self) -> None:
        """Restore the random state before a batch, which may be the first one that is trained on."""
        if self.pending is not None and self._num_fetched:
            _restore_random_state(self.pending[1])
        self._num_fetched += 1

    def end_skipping(self, *, is_pass_over: bool) -> None:
        """Note that a batch is trained on, or that the pass ends. From now on no random state is restored."""
        if self.pending is not None and is_pass_over:
            _restore_random_state(self.pending[1])
        if is_pass_over:
            self._iterator = lambda: None  # a loader with persistent workers keeps its iterator
        self.pending = None


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, of a call's arguments or of a state, outermost first."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for element in value.values():
            yield from tensors_of(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from tensors_of(element)


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return values


def _unloadable_part(value: Any) -> str | None:
    """Return the part of a value that cannot be loaded as data, as text, or None."""
    if hasattr(value, "to_local"):
        return "a tensor that is sharded over the ranks (gather it with get_model_state_dict)"
    if type(value) in _MAPPINGS:
        parts = [*value.keys(), *value.values()]
    elif type(value) in _SEQUENCES:
        parts = list(value)
    else:
        return None if type(value) in _PLAIN else f"an object of the type {type(value).__name__}"
    return next((problem for part in parts if (problem := _unloadable_part(part)) is not None), None)


def _random_state() -> dict[str, Any]:
    """Return the state of the generators of torch, Python, numpy and the current GPU."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        kind, keys, *remainder = numpy_random.get_state()
        state["numpy"] = [str(kind), keys.tolist(), *remainder]
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(tuple(state["numpy"]))
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
