"""The user's script of this process: installs the hooks, also in child processes, and records its end.

Ranks that a script starts itself (`mp.spawn`, `multiprocessing.Process`) get hooks, too: the function that a
child process calls is replaced by a function that first installs them.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from trainers.files.plain_files import REPOSITORY
from trainers.watch import guard, hooks, spool
from trainers.watch.settings import Settings

# Name of the module in which the user's copy of `watch.py` finds its functions.
BRIDGE = "_ddp_live_watch"

_settings: Settings | None = None
_recorder: Any = None


def begin(settings: Settings) -> None:
    """Install the hooks when the script of this process imports torch."""
    global _settings
    _settings = settings
    guard.after_import("torch", _install)
    _wrap_process_start()


def _install() -> None:
    global _recorder
    assert _settings is not None
    try:
        _recorder = hooks.install(_settings)
        if spool.DETAILS in os.environ:
            from trainers.watch.details import Details

            Details(_recorder).install()
        sys.modules[BRIDGE] = _make_bridge(_recorder)
    except Exception:  # noqa: BLE001 - an error here must not end the script
        print("Rankscope's hooks do not work with this torch; the script runs without them:", file=sys.stderr)
        traceback.print_exc()


def _make_bridge(recorder: Any) -> ModuleType:
    """Return the module in which the user's copy of `watch.py` finds its functions."""
    module = ModuleType(BRIDGE)

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

    saving = recorder.saving
    module.__dict__.update(log=log, should_stop=should_stop, load=saving.load, save=saving.save)
    return module


def end(status: int, **error_info: Any) -> None:
    """Record how the script ended in this process."""
    if _recorder is None:
        return
    with defer_signals():
        _recorder.end(
            status,
            is_destroyed=_recorder.is_group_destroyed,
            has_reduced=_recorder.has_reduced,
            **error_info,
        )


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Deliver SIGTERM and SIGINT at the end of the block, to the script's own handlers if it has any.

    torchrun checks its ranks every 0.1 s. When one has failed, it sends SIGTERM to the others, and SIGKILL
    30 s later. Rank 0, which often fails at the same time, must first write the last steps of all ranks.
    Only the main thread can set handlers; one that was not set by Python cannot be restored and stays.
    """
    received: set[int] = set()
    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not None:
                handlers[number] = signal.signal(
                    number, lambda received_signal, _: received.add(received_signal)
                )
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for received_signal in sorted(
            received, reverse=True
        ):  # SIGTERM first: SIGINT raises KeyboardInterrupt
            signal.raise_signal(received_signal)


@dataclass
class WatchedTarget:
    """A function for a child process: installs the hooks, then calls the script's function."""

    target: Callable[..., Any]
    settings: Settings

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        begin_in_child(self.settings)
        try:
            result = self.target(*args, **kwargs)
        except BaseException as error:
            is_good = isinstance(error, SystemExit) and error.code in (None, 0)
            text = "".join(traceback.format_exception(error))
            end(
                spool.DONE if is_good else spool.FAILED,
                error=traceback.format_exception_only(error)[-1].strip()[:2000],
                traceback=text[-20_000:],
            )
            raise
        end(spool.DONE)
        return result


def begin_in_child(settings: Settings) -> None:
    """Install the hooks in a child process; a forked child already has them."""
    if _settings is None or (_recorder is None and "torch" in sys.modules):
        begin(settings)


def _wrap_process_start() -> None:
    process = multiprocessing.process.BaseProcess
    start = process.start
    if getattr(start, "is_watched", False):
        return

    def watched_start(self: Any) -> None:
        target = getattr(self, "_target", None)
        if _settings is not None and target is not None and _may_be_a_rank(target):
            self._target = WatchedTarget(target, _settings)
            sys.path.append(str(REPOSITORY))  # so that a child that is not forked can import this module
            try:
                start(self)
            finally:
                sys.path.pop()
            return
        start(self)

    watched_start.is_watched = True  # type: ignore[attr-defined]
    process.start = watched_start  # type: ignore[method-assign]


def _may_be_a_rank(target: Any) -> bool:
    """True unless a library starts the process for itself, such as a loader's worker."""
    if "RANK" in os.environ or isinstance(target, WatchedTarget):
        return False
    module = getattr(target, "__module__", "") or ""
    return not module.startswith(
        ("torch.utils.data", "multiprocessing", "concurrent", "torch.distributed.elastic")
    )
