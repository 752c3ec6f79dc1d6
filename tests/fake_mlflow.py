"""A server with the few requests of MLflow's REST API that are used, which can be slow, down or wrong."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


class FakeMlflow:
    """What the server has stored; like MLflow it stores an equal metric once.

    Attributes:
        mode: "ok"; "hang": accepts the connection and never answers; "500"; "html": a page instead of JSON;
            "late": stores what it gets, and then closes the connection without an answer.
        num_requests: how many requests it has seen in any mode.
    """

    def __init__(self) -> None:
        self.mode = "ok"
        self.num_requests = 0
        self.runs: dict[str, dict[str, Any]] = {}
        self.metrics: set[tuple[str, float, int, int]] = set()
        self.authorizations: set[str | None] = set()
        self.released = threading.Event()
        self.address = ""

    def steps(self, name: str = "train/loss") -> list[int]:
        """Return the steps of a metric, in order, with repetitions."""
        return sorted(step for key, _, _, step in self.metrics if key == name)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Process a request; return status and answer."""
        match path.partition("?")[0].removeprefix("/api/2.0/mlflow/"):
            case "experiments/get-by-name":
                return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such experiment"}
            case "experiments/create":
                return 200, {"experiment_id": "7"}
            case "runs/search":
                found = [run for run in self.runs.values() if run["key"] in body["filter"]]
                return 200, {"runs": [{"info": {"run_id": run["id"]}} for run in found]}
            case "runs/create":
                run_id = f"run{len(self.runs)}"
                key = body["tags"][0]["value"]
                self.runs[run_id] = {"id": run_id, "key": key, "params": {}, "tags": {}, "status": None}
                return 200, {"run": {"info": {"run_id": run_id}}}
            case "runs/update":
                self.runs[body["run_id"]]["status"] = body["status"]
            case "runs/log-batch":
                run = self.runs[body["run_id"]]
                run["params"] |= {each["key"]: each["value"] for each in body.get("params", ())}
                run["tags"] |= {each["key"]: each["value"] for each in body.get("tags", ())}
                order = ("key", "value", "timestamp", "step")
                self.metrics |= {tuple(each[name] for name in order) for each in body.get("metrics", ())}
        return 200, {}


class _Handler(BaseHTTPRequestHandler):
    fake: ClassVar[FakeMlflow]

    def do_POST(self) -> None:
        fake = self.fake
        fake.num_requests += 1
        fake.authorizations.add(self.headers["Authorization"])
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
        if fake.mode == "hang":
            fake.released.wait()
            self.close_connection = True
            return
        code, answer = (
            (500, {"message": "out of order"}) if fake.mode == "500" else fake.answer(self.path, body)
        )
        if fake.mode == "late":
            self.close_connection = True
            return
        content = b"<html>Welcome</html>" if fake.mode == "html" else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self.headers["Content-Length"] = "0"
        self.do_POST()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def fake_mlflow() -> Iterator[FakeMlflow]:
    """Serve a fake on a free port of this machine."""
    fake = FakeMlflow()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    fake.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield fake
    finally:
        fake.released.set()
        server.shutdown()
        server.server_close()
