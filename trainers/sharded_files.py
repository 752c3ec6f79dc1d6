"""Checkpoints in pieces: each rank writes and reads what lies on it (torch.distributed.checkpoint).

Imported only for strategies whose ranks hold pieces: it costs a second to import.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.tensor import DTensor

from trainers.checkpoint_files import CheckpointError


def write(state: dict[str, Any], folder: Path, group: dist.ProcessGroup | None) -> None:
    """Write this rank's pieces; all ranks of the group call it.

    Raises:
        OSError: when a rank cannot write.
    """
    writer = dcp.FileSystemWriter(folder, sync_files=True)
    try:
        dcp.save(state, storage_writer=writer, process_group=group, no_dist=group is None)
    except dcp.api.CheckpointException as error:
        raise OSError("; ".join(str(failure[0]) for failure in error.failures.values())) from error


def read(state: dict[str, Any], folder: Path, group: dist.ProcessGroup | None) -> None:
    """Read this rank's pieces into the tensors of `state`, however many ranks wrote them.

    Raises:
        ValueError: when the pieces do not fit.
    """
    reader = DataOnlyReader(folder)
    try:
        dcp.load(
            state,
            storage_reader=reader,
            planner=DataOnlyPlanner(),
            process_group=group,
            no_dist=group is None,
        )
    except dcp.api.CheckpointException as error:
        raise ValueError("; ".join(str(failure[0]) for failure in error.failures.values())) from error


def gather_weights(folder: Path) -> dict[str, Tensor]:
    """Return the whole weights, put together from the files, in host memory."""
    reader = DataOnlyReader(folder)
    weights = {
        name: torch.empty(about.size, dtype=about.properties.dtype)
        for name, about in reader.read_metadata().state_dict_metadata.items()
        if name.startswith("model.") and isinstance(about, TensorStorageMetadata)
    }
    dcp.load(weights, storage_reader=reader, planner=DataOnlyPlanner(), no_dist=True)
    return {name.removeprefix("model."): weight for name, weight in weights.items()}


def local_piece(value: Tensor) -> Tensor:
    """Return the part of a tensor that lies on this rank."""
    return value.to_local() if isinstance(value, DTensor) else value


def with_piece(value: Tensor, piece: Tensor) -> Tensor:
    """Return `value` with another local part; where the parts lie stays."""
    if not isinstance(value, DTensor):
        return piece
    return DTensor(piece, value._spec, requires_grad=False)  # noqa: SLF001


class DataOnlyReader(dcp.FileSystemReader):
    """Reads sharded checkpoints without running anything that a file could hold.

    torch's own reader unpickles `.metadata`; here only the classes that describe tensors may come of it.
    """

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        raw = (Path(self.path) / ".metadata").read_bytes()
        metadata = _MetadataUnpickler(io.BytesIO(raw)).load()
        assert isinstance(metadata, Metadata)
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class DataOnlyPlanner(DefaultLoadPlanner):
    """Loads values that are no tensors with `weights_only`."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        loaded = torch.load(value, weights_only=True)
        if self.flatten_state_dict:
            dcp.default_planner.set_element(self.original_state_dict, self.mappings[name], loaded)
        else:
            self.state_dict[name] = loaded


class _MetadataUnpickler(pickle.Unpickler):
    _MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
    _NAMES = frozenset(
        {
            ("torch", "Size"),
            ("torch.serialization", "_get_layout"),
            ("torch", "device"),
            ("collections", "OrderedDict"),
            # Where it was written; a path by itself opens nothing. The module depends on Python's version.
            ("pathlib", "PosixPath"),
            ("pathlib._local", "PosixPath"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        is_type_of_number = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) in self._NAMES or is_type_of_number:
            return super().find_class(module, name)
        if module in self._MODULES:
            found = super().find_class(module, name)
            if isinstance(found, type):
                return found
        raise CheckpointError(f"the checkpoint's description holds {module}.{name}, which is no data")
