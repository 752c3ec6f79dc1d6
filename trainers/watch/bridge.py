"""The functions behind the module `watch` that users copy next to their script."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from trainers.watch import spool


def make(recorder: Any) -> ModuleType:
    """Return the module in which the copied file finds its functions."""
    module = ModuleType("_ddp_live_watch")

    def log(values: dict[str, Any]) -> None:
        numbers = {str(name)[:100]: float(value) for name, value in values.items()}
        recorder.note("log", step=recorder.step, epoch=max(recorder.epoch, 0), values=numbers)

    def should_stop() -> bool:
        control = recorder.control
        if control is None:
            return False
        control.set(spool.ASKS, 1)
        at_step: int = control.get(spool.STOP_STEP)
        return bool(0 < at_step <= recorder.step)

    module.__dict__.update(log=log, should_stop=should_stop)
    return module
