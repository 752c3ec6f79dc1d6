"""What ranks tell each other of the pieces they save, as JSON: nothing that comes over a socket is unpickled.

The classes are those of torch.distributed.checkpoint (`planner.py`, `metadata.py`, `filesystem.py` of torch
2.13); what describes anything but a tensor has no place here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

Json = Any


def plan_to_json(plan: SavePlan) -> Json:
    """Return a rank's plan: its pieces, and where in the state each lies."""
    return {
        "items": [_item_to_json(item) for item in plan.items],
        "paths": {name: list(path) for name, path in plan.planner_data.items()},
    }


def plan_from_json(raw: Json) -> SavePlan:
    """Return the plan that another rank has told."""
    return SavePlan(
        [_item_from_json(item) for item in raw["items"]],
        planner_data={name: tuple(path) for name, path in raw["paths"].items()},
    )


def result_to_json(result: WriteResult) -> Json:
    """Return where a rank has written a piece."""
    stored: _StorageInfo = result.storage_data
    assert not stored.transform_descriptors, "no extension is used"
    place = [stored.relative_path, stored.offset, stored.length]
    return [_index_to_json(result.index), result.size_in_bytes, place]


def result_from_json(raw: Json) -> WriteResult:
    """Return where another rank has written a piece."""
    index, size_bytes, place = raw
    return WriteResult(
        index=_index_from_json(index), size_in_bytes=size_bytes, storage_data=_StorageInfo(*place)
    )


def _item_to_json(item: WriteItem) -> Json:
    about = item.tensor_data
    assert about is not None, "the state of a run is tensors alone"
    properties = about.properties
    assert properties.layout == torch.strided
    return {
        "index": _index_to_json(item.index),
        "type": item.type.name,
        "chunk": [list(about.chunk.offsets), list(about.chunk.sizes)],
        "dtype": str(properties.dtype).removeprefix("torch."),
        "requires_grad": properties.requires_grad,
        "size": list(about.size),
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
