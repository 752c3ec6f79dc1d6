"""Converts a run's events to points, the common format for all trackers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from trainers.contract.config import Config
from trainers.contract.events import FIELDS, Event

KINDS = ("plan", "step", "eval", "devices", "checkpoint", "state")
STEP_VALUES = tuple(name for name in FIELDS["step"] if name not in ("step", "epoch"))
DEVICE_VALUES = ("utilization_percent", "memory_used_bytes", "temperature_celsius", "power_watts")
# Minimum interval: these events come once a second, but trackers need only the trend.
DEVICES_EVERY_S = 10.0
# Characters that all trackers accept in names; a plug-in may use any names for its metrics.
_OUTSIDE_NAMES = re.compile(r"[^A-Za-z0-9_. -]+")
MAX_NAME = 100


@dataclass(frozen=True, kw_only=True)
class Point:
    """The numbers and texts of one event, by name.

    Attributes:
        seq: the event's number, which identifies the point.
    """

    seq: int
    time_unix_s: float
    step: int
    values: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


class PointMaker:
    """Converts events in order; events without a step get the latest one."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._devices_unix_s = float("-inf")

    def points(self, events: Iterable[Event]) -> Iterator[Point]:
        """Yield the points of events."""
        for event in events:
            values, texts = self._content(event)
            values = {name: float(value) for name, value in values.items() if value is not None}
            if values or texts:
                yield Point(
                    seq=event["seq"],
                    time_unix_s=event["time_unix_s"],
                    step=self.step,
                    values=values,
                    texts=texts,
                )

    def _content(self, event: Event) -> tuple[dict[str, Any], dict[str, str]]:
        kind = event["kind"]
        if kind in ("step", "eval", "checkpoint"):
            self.step = event["step"]
        if kind == "step":
            return {f"train/{name}": event.get(name) for name in STEP_VALUES}, {}
        if kind == "eval":
            metrics = {"loss": event["loss"], **event["metrics"]}
            return {f"validation/{_name(name)}": value for name, value in metrics.items()}, {}
        if kind == "checkpoint":
            size = event.get("size_bytes")
            return {"checkpoint/size_bytes": size}, {"checkpoint": _checkpoint_text(event)}
        if kind == "state":
            return {}, {"state": f"{event['state']}: {event['reason']}"}
        if kind == "plan":
            numbers = {name: value for name, value in event.items() if name.startswith(("num_", "global_"))}
            return {}, {"plan": ", ".join(f"{name}={value}" for name, value in numbers.items())}
        return self._device_values(event), {}

    def _device_values(self, event: Event) -> dict[str, Any]:
        if event["time_unix_s"] - self._devices_unix_s < DEVICES_EVERY_S:
            return {}
        self._devices_unix_s = event["time_unix_s"]
        values = {
            f"devices/rank_{entry['rank']}/{name}": entry.get(name)
            for entry in event["devices"]
            for name in DEVICE_VALUES
        }
        return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _checkpoint_text(event: Event) -> str:
    reason = f" ({event['reason']})" if event.get("reason") else ""
    return f"step {event['step']:,}{reason}: {event.get('path') or ''}"


def _name(name: str) -> str:
    return _OUTSIDE_NAMES.sub("_", name)[:MAX_NAME] or "_"


# Fields to omit: a script's environment may contain secrets, and forwarding does not concern the model.
_EXCLUDED_FIELDS = ("schema_version", "script_environment")


def hyper_parameters(config: Config) -> dict[str, str | int | float | bool]:
    """Return the configuration for a tracker, without empty fields."""
    return {
        name: value
        for name, value in config.to_json().items()
        if name not in _EXCLUDED_FIELDS and not name.startswith("forward_") and value not in (None, "")
    }
