"""Measures between the machines of an engine, one pair after the other; at most one check at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trainers.engines.base import Engine
from trainers.engines.reports import LinkReport
from trainers.machine.os_errors import explain


class LinkChecks:
    """The newest check of an engine's links; safe to be used by several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._is_running = False
        self._started_unix_s: float | None = None
        self._links: list[LinkReport] = []
        self._error = ""

    def start(self) -> None:
        """Begin a check; it goes on in a thread.

        Raises:
            ValueError: when one goes on already, or there are no machines to measure between.
        """
        pairs = self._engine.links()
        if not pairs:
            raise ValueError("there are no hosts here to measure between: start the page with --engine ssh")
        with self._lock:
            if self._is_running:
                raise ValueError("the links are being measured already: wait until that is done")
            self._is_running, self._started_unix_s = True, time.time()
            self._links, self._error = [], ""
        # A daemon: what is measured on the hosts ends by itself.
        threading.Thread(target=self._measure, args=(pairs,), name="links", daemon=True).start()

    def to_json(self) -> dict[str, Any]:
        """Return the newest check, as far as it is."""
        with self._lock:
            return {
                "is_running": self._is_running,
                "started_unix_s": self._started_unix_s,
                "num_links": len(self._engine.links()),
                "links": [asdict(link) for link in self._links],
                "error": self._error,
            }

    def _measure(self, pairs: Sequence[tuple[str, str]]) -> None:
        error = ""
        try:
            for first, second in pairs:
                link = self._engine.measure_link(first, second)
                with self._lock:
                    self._links.append(link)
        except (OSError, ValueError) as failed:
            error = f"The links could not be measured: {explain(failed)}."
        finally:
            with self._lock:
                self._is_running, self._error = False, error
