"""Fuzz our HTTP routes with schemathesis, based on FastAPI's schema.

    python -m tools.fuzz_routes [--examples 50] [--schemathesis PATH]

The served page does not publish its schema, so it is generated from the same app. Needs schemathesis, which
is not one of the project's requirements.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ddp_gui.options import Options
from ddp_gui.plan.catalogue import CatalogueSource, default_cache_file
from ddp_gui.server import build_app
from tests import made_run
from tools import page_driver
from trainers.contract.rundir import RunDirectory

# The stream never ends, and the fuzzer waits for the end of each response.
LEFT_OUT = "/stream"
MADE_RUNS = ("made-1", "made-2")


def main() -> None:
    """Serve a page with two generated runs, run schemathesis on it and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50, help="requests a route and phase, at most")
    parser.add_argument("--schemathesis", default="schemathesis", help="the program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = Path(folder) / "runs"
        for name in MADE_RUNS:
            made_run.make_finished(RunDirectory(runs_dir / name), 300)
        schema_file = Path(folder) / "schema.json"
        schema_file.write_text(json.dumps(schema(runs_dir)), encoding="utf-8")
        with page_driver.serve(runs_dir) as server:
            asked = [options.schemathesis, "run", str(schema_file), "--url", server.address]
            asked += ["--max-examples", str(options.examples), "--checks", "not_a_server_error"]
            sys.exit(subprocess.run(asked, check=False).returncode)


def schema(runs_dir: Path) -> dict[str, Any]:
    """Return the OpenAPI schema of our routes, without the stream."""
    options = Options(host="127.0.0.1", port=0, runs_dir=runs_dir, open_browser=False)
    found = build_app(options, CatalogueSource(default_cache_file())).openapi()
    found["paths"] = {path: about for path, about in found["paths"].items() if not path.endswith(LEFT_OUT)}
    for about in found["paths"].values():
        for parameter in about["get"].get("parameters", []):
            # Otherwise it guesses IDs and only tests the error for unknown runs.
            if parameter["name"] in ("run_id", "ids"):
                parameter["schema"] = {"type": "string", "enum": [*MADE_RUNS, ",".join(MADE_RUNS), "none"]}
    return found


if __name__ == "__main__":
    main()
