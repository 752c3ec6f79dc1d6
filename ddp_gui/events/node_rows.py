"""What a row says of each machine of a run on several: how busy, and which of its ranks stands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainers.contract.events import Event

FIELDS = (
    "node",
    "host",
    "num_ranks",
    "memory_bytes",
    "busy_percent",
    "idlest",
    "idlest_percent",
    "slowest",
    "slowest_s",
    "grown_bytes",
)


def of_run(latest: Mapping[str, Event], num_nodes: int, num_ranks: int) -> list[dict[str, Any]]:
    """Return an entry for each machine of which something is known, by the newest events, in this order.

    `idlest` is the rank that is least busy, `slowest` the one that takes longest without waiting for others.
    """
    devices: Sequence[Mapping[str, Any]] = latest.get("devices", {}).get("devices", [])
    ranks: Sequence[Mapping[str, Any]] = latest.get("ranks", {}).get("ranks", [])
    on_node: dict[int, tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]] = {}
    for number, entries in enumerate((devices, ranks)):
        for entry in entries:
            if entry["rank"] < num_ranks:
                node = ((entry["rank"] + 1) * num_nodes - 1) // num_ranks
                on_node.setdefault(node, ([], []))[number].append(entry)
    return [
        {"node": node, **_devices(here), **_steps(own)}
        for node, (here, own) in sorted(on_node.items())
        if here
    ]


def _devices(devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    busy = {
        device["rank"]: device["utilization_percent"]
        for device in devices
        if device.get("utilization_percent") is not None
    }
    idlest = min(busy, key=lambda rank: busy[rank], default=None)
    return {
        "host": next((device["host"] for device in devices if device.get("host")), None),
        "num_ranks": len(devices),
        "memory_bytes": sum(device.get("memory_used_bytes") or 0 for device in devices),
        "busy_percent": round(sum(busy.values()) / len(busy)) if busy else None,
        "idlest": idlest,
        "idlest_percent": None if idlest is None else round(busy[idlest]),
    }


def _steps(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    alone = {
        each["rank"]: each["step_time_s"] - (each.get("wait_time_s") or 0.0)
        for each in ranks
        if each.get("step_time_s") is not None
    }
    slowest = max(alone, key=lambda rank: alone[rank], default=None)
    return {
        "slowest": slowest,
        "slowest_s": None if slowest is None else float(f"{alone[slowest]:.4g}"),
        "grown_bytes": max((each for each in map(_grown_bytes, ranks) if each is not None), default=None),
    }


def _grown_bytes(rank: Mapping[str, Any]) -> int | None:
    """Return by how much a rank's memory has grown since before the model was built."""
    base, peak = rank.get("base_memory_bytes"), rank.get("peak_memory_bytes")
    return None if base is None or peak is None else int(peak - base)
