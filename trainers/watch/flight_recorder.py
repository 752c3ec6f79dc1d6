"""Reads torch's flight recorder of collectives; only this module uses its private functions."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from trainers.contract import heartbeats
from trainers.contract.heartbeats import Group, PendingCollective, RankAnswer

log = logging.getLogger(__name__)

_FUNCTIONS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
# Dtype names in torch's JSON that, in lower case, are not names of a `torch.dtype`.
_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Int": "int32", "Long": "int64"}
_DTYPES |= {"Byte": "uint8", "Char": "int8", "Short": "int16"}


def flight_record_text(gradients_done: Callable[[], int | None] = lambda: None) -> bytes:
    """Return this rank's answer to the supervisor's hang watch. Never waits for a collective.

    Args:
        gradients_done: returns the number of backward passes whose gradients this rank's GPU has computed.
    """
    groups: Sequence[Group] | None = None
    try:
        groups = recorded_groups()
    except (RuntimeError, LookupError, TypeError, AttributeError) as error:  # another version of torch
        log.warning("the flight recorder cannot be read: %r", error)
    try:
        num_done = gradients_done()
    except RuntimeError as error:  # a CUDA error, after which the device is unusable
        log.warning("the progress of the GPU is unknown: %r", error)
        num_done = None
    return heartbeats.to_bytes(RankAnswer(groups=tuple(groups or ()), gradients_done=num_done))


def recorded_groups() -> tuple[Group, ...] | None:
    """Return this rank's process groups, or None if this torch has no flight recorder."""
    dumps = [getattr(c10d, name) for name in _FUNCTIONS if hasattr(c10d, name)]
    group_ranks = _read_group_ranks()
    if not dumps or group_ranks is None:
        return None
    entries = [entry for dump in dumps for entry in json.loads(dump()).get("entries", ())]
    # Point-to-point operations have a separate numbering and involve only two ranks.
    entries = [entry for entry in entries if not entry["is_p2p"]]
    return tuple(
        _group(name, ranks, [entry for entry in entries if entry["process_group"][0] == name])
        for name, ranks in group_ranks.items()
    )


def collectives_since(record: int) -> tuple[list[PendingCollective], int]:
    """Return this rank's collectives from a record on, oldest first, and the number of the next record.

    torch keeps only the latest 2,000 records, so the length of the list cannot serve as a position.
    """
    dumps = [getattr(c10d, name) for name in _FUNCTIONS if hasattr(c10d, name)]
    entries = [entry for dump in dumps for entry in json.loads(dump()).get("entries", ())]
    new_entries = [entry for entry in entries if entry["record_id"] >= record]
    next_record = max((entry["record_id"] + 1 for entry in new_entries), default=record)
    return [_collective(entry) for entry in new_entries if not entry["is_p2p"]], next_record


def _read_group_ranks() -> Mapping[str, tuple[int, ...]] | None:
    """Return the ranks of each process group by torch's name; the dump contains the ranks for NCCL only."""
    world = getattr(distributed_c10d, "_world", None)
    if world is None:
        return None
    return {world.pg_names[group]: tuple(sorted(ranks)) for group, ranks in world.pg_group_ranks.items()}


def _group(name: str, ranks: tuple[int, ...], entries: list[dict[str, Any]]) -> Group:
    """Return a group from its entries, which torch lists in the order of recording."""
    unfinished = next((entry for entry in entries if not entry["retired"]), None)
    return Group(
        name=name,
        ranks=ranks,
        newest=_collective(entries[-1]) if entries else None,
        unfinished=None if unfinished is None else _collective(unfinished),
    )


def _collective(entry: Mapping[str, Any]) -> PendingCollective:
    name = entry["profiling_name"].partition(":")[2].strip("_").removesuffix("_base").replace("_", "-")
    dtype = next(iter(entry["input_dtypes"]), "")
    dtype_name = _DTYPES.get(dtype, dtype.lower())
    torch_dtype = getattr(torch, dtype_name, None)
    item_bytes = torch_dtype.itemsize if isinstance(torch_dtype, torch.dtype) else 0
    num_values = sum(math.prod(shape) for shape in entry["input_sizes"])
    return PendingCollective(
        number=entry["collective_seq_id"],
        name=name,
        dtype=dtype_name if item_bytes else "",
        num_bytes=item_bytes * num_values,
    )
