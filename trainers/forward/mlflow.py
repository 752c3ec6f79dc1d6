"""MLflow, over its REST API 2.0, which needs no package.

https://mlflow.org/docs/latest/rest-api.html. MLflow stores a metric that is sent twice (same name, value,
time and step) once. Parameters cannot change, so they have the values of the first start.
"""

from __future__ import annotations

import os
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any

from trainers.forward import web
from trainers.forward.follower import TrackerTarget
from trainers.forward.points import Point

DEFAULT_ADDRESS = "http://127.0.0.1:5000"
# Limits of one request.
MAX_METRICS, MAX_PARAMETERS, MAX_TEXT = 1000, 100, 6000
STATUS = {"finished": "FINISHED", "stopped": "KILLED"}
KEY_TAG = "rankscope.key"


class Run:
    """A run of an MLflow server, found again by a tag with its key."""

    def __init__(self, target: TrackerTarget) -> None:
        base, login = web.split_password((target.address or DEFAULT_ADDRESS).rstrip("/"))
        self._api = f"{base}/api/2.0/mlflow"
        self._headers = login | _authorization()
        experiment = self._experiment(target.project)
        self._run_id = self._find(experiment, target.key) or self._create(experiment, target)
        if target.memory.get("parameters") != self._run_id:
            # After a failure this is repeated, which is safe because MLflow accepts equal parameters.
            pairs = [{"key": key, "value": str(value)[:MAX_TEXT]} for key, value in target.parameters.items()]
            for first in range(0, len(pairs), MAX_PARAMETERS):
                self._log(params=pairs[first : first + MAX_PARAMETERS])
            target.memory["parameters"] = self._run_id
        self.where = f"{base}/#/experiments/{experiment}/runs/{self._run_id}"
        self._post("runs/update", run_id=self._run_id, status="RUNNING")

    def _experiment(self, name: str) -> str:
        query = urllib.parse.urlencode({"experiment_name": name})
        try:
            response = web.send_request(f"{self._api}/experiments/get-by-name?{query}", None, self._headers)
            return str(response["experiment"]["experiment_id"])
        except web.TrackerRefusedError as error:
            if error.answer.get("error_code") != "RESOURCE_DOES_NOT_EXIST":
                raise
            return str(self._post("experiments/create", name=name)["experiment_id"])

    def _find(self, experiment: str, key: str) -> str | None:
        query = f"tags.`{KEY_TAG}` = '{key}'"
        response = self._post("runs/search", experiment_ids=[experiment], filter=query, max_results=1)
        runs = response.get("runs") or []
        return str(runs[0]["info"]["run_id"]) if runs else None

    def _create(self, experiment: str, target: TrackerTarget) -> str:
        tags = [{"key": KEY_TAG, "value": target.key}]
        now = int(time.time() * 1000)
        response = self._post(
            "runs/create", experiment_id=experiment, run_name=target.run_name, start_time=now, tags=tags
        )
        return str(response["run"]["info"]["run_id"])

    def send(self, points: Sequence[Point]) -> None:
        """Store numbers as metrics, and the latest text of each kind as a tag."""
        metrics = [
            {"key": name, "value": value, "timestamp": int(point.time_unix_s * 1000), "step": point.step}
            for point in points
            for name, value in point.values.items()
        ]
        texts = {name: text for point in points for name, text in point.texts.items()}
        for first in range(0, len(metrics), MAX_METRICS):
            self._log(metrics=metrics[first : first + MAX_METRICS])
        if texts:
            self._log(tags=[{"key": name, "value": text[:MAX_TEXT]} for name, text in texts.items()])

    def close(self, run_state: str) -> None:
        """Set the final status."""
        status = STATUS.get(run_state, "FAILED")
        self._post("runs/update", run_id=self._run_id, status=status, end_time=int(time.time() * 1000))

    def _log(self, **items: Any) -> None:
        self._post("runs/log-batch", run_id=self._run_id, **items)

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        return web.send_request(f"{self._api}/{path}", body, self._headers)


def _authorization() -> dict[str, str]:
    token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
    if user:
        return web.basic_authorization(f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}")
    return {"Authorization": f"Bearer {token}"} if token else {}
