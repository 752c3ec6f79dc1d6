"""What tells a page on a login node that the connection it was started by is gone: nothing comes any more.

sshd may notice a pulled cable after hours only, so silence counts as well as an end.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

BEAT = b"\n"
BEAT_EVERY_S = 5.0
SILENT_FOR_S = 30.0


def end_without(descriptor: int, end: Callable[[], None], silent_for_s: float = SILENT_FOR_S) -> None:
    """Call `end`, in a thread, when a descriptor ends or brings nothing for so long."""
    threading.Thread(
        target=_watch, args=(descriptor, end, silent_for_s), name="lifeline", daemon=True
    ).start()


def _watch(descriptor: int, end: Callable[[], None], silent_for_s: float) -> None:
    while select.select([descriptor], [], [], silent_for_s)[0] and os.read(descriptor, 1024):
        pass
    end()
