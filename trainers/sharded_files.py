"""Checkpoints in pieces: each rank writes and reads what lies on it (torch.distributed.checkpoint).

Imported only for strategies whose ranks hold pieces: it costs a second to import.
"""

from __future__ import annotations

import io
import pickle  # nosec B403
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from trainers.checkpoint_files import CheckpointError, why


def write(state: dict[str, Any], folder: Path, group: dist.ProcessGroup | None) -> None:
    """Write this rank's pieces; all ranks of the group call it.

    Raises:
        OSError: when this rank cannot write; the others return, for the caller to tell them.
    """
    writer = _Writer(folder, sync_files=True)
    try:
        dcp.save(state, storage_writer=writer, process_group=group, no_dist=group is None)
    except dcp.api.CheckpointException as error:
        own = error.failures.get(0 if group is None else dist.get_rank(group))
        if own is not None:
            raise OSError(writer.problem or why(own[0])) from error


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
            process_group=group,
            no_dist=group is None,
        )
    except dcp.api.CheckpointException as error:
        raise ValueError("; ".join(why(failure[0]) for failure in error.failures.values())) from error


def gather_weights(folder: Path) -> dict[str, Tensor]:
    """Return the whole weights, put together from the files, in host memory."""
    reader = DataOnlyReader(folder)
    weights = {
        name: torch.empty(about.size, dtype=about.properties.dtype)
        for name, about in reader.read_metadata().state_dict_metadata.items()
        if name.startswith("model.") and isinstance(about, TensorStorageMetadata)
    }
    dcp.load(weights, storage_reader=reader, no_dist=True)
    return {name.removeprefix("model."): weight for name, weight in weights.items()}


def local_piece(value: Tensor) -> Tensor:
    """Return the part of a tensor that lies on this rank."""
    return value.to_local() if isinstance(value, DTensor) else value


def with_piece(value: Tensor, piece: Tensor) -> Tensor:
    """Return `value` with another local part; where the parts lie stays."""
    if not isinstance(value, DTensor):
        return piece
    return DTensor(piece, value._spec, requires_grad=False)  # noqa: SLF001


class _Writer(dcp.FileSystemWriter):
    """Remembers why it could not write: torch sends the error round, and its cause gets lost on the way."""

    problem: str | None = None

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            self.problem = why(error)
            raise


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


class _MetadataUnpickler(pickle.Unpickler):
    """Knows the few classes that torch 2.11 to 2.13 write to describe tensors, and no others.

    BytesStorageMetadata is left out: it announces a value that is no tensor, which torch would unpickle.
    """

    _METADATA = frozenset(
        {
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        }
    )
    _OTHERS = frozenset(
        {
            ("torch", "Size"),
            ("torch.serialization", "_get_layout"),
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            # Where it was written; a path by itself opens nothing. The module depends on Python's version.
            ("pathlib", "PosixPath"),
            ("pathlib._local", "PosixPath"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        is_kind_of_number = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        is_metadata = module == "torch.distributed.checkpoint.metadata" and name in self._METADATA
        if is_kind_of_number or is_metadata or (module, name) in self._OTHERS:
            return super().find_class(module, name)
        raise CheckpointError(f"the checkpoint's description holds {module}.{name}, which is no data")
