"""Checkpoints of sharded state."""

from __future__ import annotations

import logging
import pickle  # nosec B403
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from trainers.contract.checkpoint_files import CheckpointError, root_cause
from trainers.contract.manifests import DESCRIPTION_OF_SHARDS as _DESCRIPTION
from trainers.contract.manifests import SHARDS
from trainers.contract.rundir import library_error_text
from trainers.files.plain_files import open_plain
from trainers.parallel.process_group import gather_json

Json = Any


def plan_to_json(plan: SavePlan) -> Json:
    """Return a rank's plan as JSON: its pieces, and their paths in the state."""
    return {
        "items": [_item_to_json(item) for item in plan.items],
        "paths": {name: list(path) for name, path in plan.planner_data.items()},
    }


def plan_from_json(raw: Json) -> SavePlan:
    """Return the plan of another rank from JSON."""
    return SavePlan(
        [_item_from_json(item) for item in raw["items"]],
        planner_data={name: tuple(path) for name, path in raw["paths"].items()},
    )


def result_to_json(result: WriteResult) -> Json:
    """Return as JSON where a rank has written a piece."""
    storage: _StorageInfo = result.storage_data
    assert not storage.transform_descriptors, "no extension is used"
    location = [storage.relative_path, storage.offset, storage.length]
    return [_index_to_json(result.index), result.size_in_bytes, location]


def result_from_json(raw: Json) -> WriteResult:
    """Return from JSON where another rank has written a piece."""
    index, size_bytes, location = raw
    return WriteResult(
        index=_index_from_json(index), size_in_bytes=size_bytes, storage_data=_StorageInfo(*location)
    )


def _item_to_json(item: WriteItem) -> Json:
    tensor_data = item.tensor_data
    assert tensor_data is not None, "the state of a run is tensors alone"
    properties = tensor_data.properties
    assert properties.layout == torch.strided
    return {
        "index": _index_to_json(item.index),
        "type": item.type.name,
        "chunk": [list(tensor_data.chunk.offsets), list(tensor_data.chunk.sizes)],
        "dtype": str(properties.dtype).removeprefix("torch."),
        "requires_grad": properties.requires_grad,
        "size": list(tensor_data.size),
    }


def _item_from_json(raw: Json) -> WriteItem:
    dtype = getattr(torch, raw["dtype"])
    assert isinstance(dtype, torch.dtype)
    offsets, sizes = raw["chunk"]
    return WriteItem(
        index=_index_from_json(raw["index"]),
        type=WriteItemType[raw["type"]],
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes)),
            properties=TensorProperties(dtype=dtype, requires_grad=raw["requires_grad"]),
            size=torch.Size(raw["size"]),
        ),
    )


def _index_to_json(index: MetadataIndex) -> Json:
    return [index.fqn, None if index.offset is None else list(index.offset), index.index]


def _index_from_json(raw: Json) -> MetadataIndex:
    name, offset, number = raw
    return MetadataIndex(name, None if offset is None else torch.Size(offset), number)


log = logging.getLogger(__name__)

_SHARD_FILE_NAME = re.compile(r"__[0-9]{1,9}_[0-9]{1,9}\.distcp")


def write(state: dict[str, Any], folder: Path, group: dist.ProcessGroup | None) -> None:
    """Write this rank's pieces; all ranks of the group must call it.

    Raises:
        OSError: if this rank cannot write; the other ranks return, and the caller must inform them.
    """
    rank = 0 if group is None else dist.get_rank(group)
    # No copying ahead: all state is already in host memory, and copying ahead would wait for the GPU and
    # create a context on the first GPU.
    writer = dcp.FileSystemWriter(folder, sync_files=True, per_thread_copy_ahead=0)
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, storage_meta=writer.storage_meta(), is_coordinator=rank == 0)
    writer.set_up_storage_writer(rank == 0)
    # Follows `dcp.save`, which would exchange pickles; here every rank computes the global plan from JSON.
    local_plans = _gather_results(
        lambda: plan_to_json(writer.prepare_local_plan(planner.create_local_plan())), group
    )
    if local_plans is None:
        return
    plans, metadata = planner.create_global_plan([plan_from_json(plan) for plan in local_plans])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[rank])
    results_by_rank = _gather_results(
        lambda: [result_to_json(result) for result in writer.write_data(plan, planner).wait()],
        group,
    )
    if results_by_rank is not None and rank == 0:
        writer.finish(
            metadata, [[result_from_json(result) for result in results] for results in results_by_rank]
        )


def _gather_results(action: Callable[[], Any], group: dist.ProcessGroup | None) -> list[Any] | None:
    """Return each rank's result of the action, as JSON values; None if the action failed on another rank.

    Raises:
        OSError: if the action failed on this rank.
    """
    value, failure = None, None
    try:
        value = action()
    except Exception as error:
        # Catch any error: the other ranks wait for the result.
        log.warning("this rank's pieces could not be written", exc_info=True)
        failure = error
    outcomes = [(value, failure is None)] if group is None else gather_json((value, failure is None), group)
    if failure is not None:
        raise OSError(root_cause(failure)) from failure
    return [value for value, _ in outcomes] if all(is_done for _, is_done in outcomes) else None


def read(state: dict[str, Any], folder: Path) -> None:
    """Read this rank's pieces into the tensors of `state`; any number of ranks may have written them.

    Raises:
        ValueError: if the pieces do not fit.
    """
    try:
        # Each rank reads the metadata itself: exchanged metadata would have to be unpickled.
        dcp.load(state, storage_reader=DataOnlyReader(folder), no_dist=True)
    except dcp.api.CheckpointException as error:
        problems = dict.fromkeys(library_error_text(failure[0]) for failure in error.failures.values())
        raise ValueError("; ".join(problems)) from None  # torch's message advises loading with pickle


def gather_weights(folder: Path) -> dict[str, Tensor]:
    """Return the complete weights, assembled from the files, in host memory."""
    reader = DataOnlyReader(folder)
    weights = {
        name: torch.empty(metadata.size, dtype=metadata.properties.dtype)
        for name, metadata in reader.read_metadata().state_dict_metadata.items()
        if name.startswith("model.") and isinstance(metadata, TensorStorageMetadata)
    }
    dcp.load(weights, storage_reader=reader, no_dist=True)
    return {name.removeprefix("model."): weight for name, weight in weights.items()}


def local_shard(value: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def with_shard(value: Tensor, shard: Tensor) -> Tensor:
    """Return `value` with another local part and the same placement."""
    if not isinstance(value, DTensor):
        return shard
    return DTensor(shard, value._spec, requires_grad=False)  # noqa: SLF001


class DataOnlyReader(dcp.FileSystemReader):
    """Reads sharded checkpoints without executing any code that a file could contain.

    torch's own reader unpickles `.metadata`; this one allows only the classes that describe tensors.
    """

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        metadata = _read_description(Path(self.path))
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        try:
            return super().read_data(plan, planner)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError) as error:
            raise CheckpointError(f"the pieces in {SHARDS} cannot be read (damaged or altered)") from error
        except pickle.UnpicklingError as error:
            raise CheckpointError(f"the pieces in {SHARDS} are not tensors") from error


def _read_description(folder: Path) -> Metadata:
    """Return the metadata of a folder of pieces, after checking that it names only regular files of this
    folder.

    Raises:
        CheckpointError: if the metadata contains anything else.
    """
    try:
        with open_plain(folder / ".metadata") as file:
            metadata = _MetadataUnpickler(file).load()
    except (pickle.UnpicklingError, LookupError, TypeError, AttributeError, EOFError, ImportError) as error:
        raise CheckpointError(f"{_DESCRIPTION} cannot be read (damaged or altered)") from error
    tensor_metadata = getattr(metadata, "state_dict_metadata", None)
    shards = getattr(metadata, "storage_data", None)
    if not (
        isinstance(metadata, Metadata) and isinstance(tensor_metadata, dict) and isinstance(shards, dict)
    ):
        raise CheckpointError(f"{_DESCRIPTION} describes no tensors (damaged or altered)")
    if not all(isinstance(value, TensorStorageMetadata) for value in tensor_metadata.values()):
        raise CheckpointError(f"{_DESCRIPTION} describes values that are not tensors (damaged or altered)")
    for name in {_shard_file(shard) for shard in shards.values()}:
        open_plain(folder / name).close()
    return metadata


def _shard_file(shard: object) -> str:
    values = getattr(shard, "__dict__", {})
    name = values.get("relative_path")
    are_numbers = all(type(values.get(key)) is int and values[key] >= 0 for key in ("offset", "length"))
    if not are_numbers or values.get("transform_descriptors") is not None:
        raise CheckpointError(f"{_DESCRIPTION} does not give the position of a piece (damaged or altered)")
    if not isinstance(name, str) or not _SHARD_FILE_NAME.fullmatch(name):
        raise CheckpointError(f"{_DESCRIPTION} names {str(name)[:80]!r}, which is not a file of a checkpoint")
    return name


class _MetadataUnpickler(pickle.Unpickler):
    """Allows only the classes that torch 2.11 to 2.13 write to describe tensors.

    BytesStorageMetadata is excluded: it describes a value that is not a tensor, which torch would unpickle.
    """

    _METADATA_CLASSES = frozenset(
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
    _OTHER_CLASSES = frozenset(
        {
            ("torch", "Size"),
            ("torch.serialization", "_get_layout"),
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            # Classes of the path at which the checkpoint was written. They open no file; their module
            # depends on Python's version.
            ("pathlib", "PosixPath"),
            ("pathlib._local", "PosixPath"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        is_metadata = module == "torch.distributed.checkpoint.metadata" and name in self._METADATA_CLASSES
        if is_dtype or is_metadata or (module, name) in self._OTHER_CLASSES:
            return super().find_class(module, name)
        raise CheckpointError(f"the checkpoint's metadata contains {module}.{name}, which is not data")
