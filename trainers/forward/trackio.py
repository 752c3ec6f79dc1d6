"""Trackio, on a server over HTTP, or without an address in the package's local database (`trackio show`).

Each point has an id, so Trackio ignores duplicates.
"""

from __future__ import annotations

import datetime
import importlib
import os
from collections.abc import Sequence
from typing import Any

from trainers.forward import web
from trainers.forward.follower import TrackerTarget
from trainers.forward.points import Point

MAX_POINTS = 500


class Run:
    """A run of a project."""

    def __init__(self, target: TrackerTarget) -> None:
        self._target = target
        base, login = web.split_password(target.address.rstrip("/"))
        self._url = f"{base}/api/bulk_log" if base else ""
        self.where = base or f"trackio show --project {target.project}"
        token = os.environ.get("TRACKIO_WRITE_TOKEN", "")
        self._headers = login | ({"x-trackio-write-token": token} if token else {})

    def send(self, points: Sequence[Point]) -> None:
        """Store each point as one row."""
        for first in range(0, len(points), MAX_POINTS):
            chunk = points[first : first + MAX_POINTS]
            (self._send_to_server if self._url else self._store)(chunk)

    def close(self, run_state: str) -> None:
        """Do nothing, because the last point contains the final state."""

    def _send_to_server(self, points: Sequence[Point]) -> None:
        target = self._target
        run_info = {"project": target.project, "run": target.run_name, "run_id": target.key}
        logs = [
            {
                **run_info,
                "metrics": _row(point),
                "step": point.step,
                "config": target.parameters,
                "log_id": log_id,
            }
            for point, log_id in zip(points, self._ids(points), strict=True)
        ]
        arguments = dict.fromkeys(("logs", "hf_token")) | {"logs": logs}
        response = web.send_request(self._url, {"args": [], "kwargs": arguments}, self._headers)
        if response.get("error"):
            raise ValueError(f"{self._url} answered: {response['error']}")

    def _store(self, points: Sequence[Point]) -> None:
        storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
        storage.bulk_log(
            project=self._target.project,
            run=self._target.run_name,
            run_id=self._target.key,
            metrics_list=[_row(point) for point in points],
            steps=[point.step for point in points],
            timestamps=[_iso(point.time_unix_s) for point in points],
            config=self._target.parameters,
            log_ids=self._ids(points),
        )

    def _ids(self, points: Sequence[Point]) -> list[str]:
        return [f"{self._target.key}-{point.seq}" for point in points]


def _row(point: Point) -> dict[str, Any]:
    return {**point.values, **point.texts}


def _iso(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).isoformat()
