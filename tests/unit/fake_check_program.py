"""Substitute for `python -m trainers.check_machine`: says that it uses GPUs, and waits for SIGTERM."""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

from trainers.contract.check_files import CheckFiles

TITLES = {"disk": "Disk of the runs", "kill": "A rank that is killed", "driver": "Driver, wheel and card"}


def state_of(check_id: str, state: str, num_done: int, kind: str = "cpu") -> dict[str, Any]:
    """Return a made-up state in which `num_done` checks are done: one passed, one failed, one skipped."""
    results = ("passed", "failed", "skipped")
    findings = [
        {
            "id": name,
            "title": title,
            "state": results[number] if number < num_done else "running" if number == num_done else "waiting",
            "words": f"What came of {name}." if number < num_done else "",
            "hint": "Do <b>this</b>." if results[number] == "failed" and number < num_done else "",
            "values": [{"name": "writing", "value": 412e6, "unit": "bytes/s", "is_compared": True}],
            "seconds": 1.5 if number < num_done else None,
            "compared": "writing: 2.0 × slower" if number < num_done else "",
        }
        for number, (name, title) in enumerate(TITLES.items())
    ]
    return {
        "check_id": check_id,
        "state": state,
        "now": list(TITLES.values())[num_done] if state == "running" else None,
        "device": "2 GPUs" if kind == "cuda" else "2 CPU ranks",
        "device_kind": kind,
        "num_ranks": 2,
        "had_company": False,
        "started_unix_s": time.time(),
        "took_s": 3.0,
        "compared_with_unix_s": None,
        "summary": "Of 3 checks 1 passed, 1 failed, 1 skipped because they do not apply.",
        "versions": {"Python": "3"},
        "findings": findings,
    }


def main() -> None:
    """Report a running check, and a cancelled one at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs-dir", type=Path, required=True)
    parser.add_argument("--check-id", required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--except-gpus", default="")
    options = parser.parse_args()
    told_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.set())
    state = state_of(options.check_id, "running", 1, "cuda") | {"except_gpus": options.except_gpus}
    print(json.dumps(state), flush=True)
    told_to_end.wait()
    final = state_of(options.check_id, "cancelled", len(TITLES), "cuda")
    CheckFiles(options.runs_dir).keep(final, "the file of the fake\n")
    print(json.dumps(final), flush=True)


if __name__ == "__main__":
    main()
