"""Thirty people logged in at once, ten runs in the line: an hour's clicks in a few minutes.

    python -m benchmarks.classroom [--minutes 4] [--clicks-an-hour 120]

Serves the page with login over an empty runs directory and real 2-rank runs on two CPU ranks: one trains,
the others wait. Everybody logs in with a password, holds one live stream open, and clicks at random
moments: pages, the list, the line, the logs, and what owners and the teacher do to runs. A click lasts
until the whole answer is there. Refusals are right where somebody may not do a thing; every other answer
that is not a success is an error. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import Conditions, CpuMeter, resident_mb, spread
from ddp_gui.auth import account_file
from ddp_gui.auth.account_file import Account, AccountFile
from ddp_gui.auth.rights import Role
from tools import page_driver
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

NUM_STUDENTS = 29
NUM_RUNS = 10
RUN = {"dataset": "digits", "model": "mlp", "nproc_per_node": 2, "device": "cpu", "num_epochs": 100_000}
END_TIMEOUT_S = 120.0


@dataclass
class Tally:
    """What all clicks took, and what went wrong."""

    took_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: int = 0
    errors: list[str] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        """Return the figures: of all clicks but the logins, and of each kind."""
        clicks = [ms for kind, values in self.took_ms.items() if kind != "log in" for ms in values]
        return {
            "clicks": spread(clicks),
            "refused_rightly": self.refused,
            "num_errors": len(self.errors),
            "errors": self.errors[:10],
            "by_kind": {kind: spread(values) for kind, values in sorted(self.took_ms.items())},
        }


class Visitor:
    """One person with a browser's connections: what they own, and the clicks they can make."""

    def __init__(self, name: str, http: httpx.AsyncClient, tally: Tally, seed: int) -> None:
        self.name = name
        self.is_teacher = name == "teacher"
        self.own_runs: list[str] = []
        self._http = http
        self._tally = tally
        self._random = random.Random(seed)  # noqa: S311 - whose turn it is, no secret

    async def log_in(self, password: str) -> None:
        """Log in as the form does."""

        async def send() -> httpx.Response:
            return await self._http.post("/login", data={"username": self.name, "password": password})

        await self._click("log in", send)

    async def start_run(self) -> None:
        """Start a run of one's own; it waits in the line when there is no room."""
        answer = await self._call("start a run", "start_run", RUN | {"name": f"{self.name} tries"}, False)
        if answer is not None:
            self.own_runs.append(answer["run_id"])

    async def click(self, all_runs: list[str]) -> None:
        """Do one thing, as likely as people do it."""
        run_id = self._random.choice(all_runs)
        looking: list[Callable[[], Awaitable[object]]] = [
            lambda: self._get("open the form", "/"),
            lambda: self._get("open the list", "/runs"),
            lambda: self._get("read the list", "/live/runs?since=-1"),
            lambda: self._get("open a run", f"/run?id={run_id}"),
            lambda: self._get("read a run", f"/live/runs/{run_id}/summary"),
            lambda: self._get("read its numbers", f"/live/runs/{run_id}/poll"),
            lambda: self._get("read a log", f"/live/runs/{run_id}/logs/torchrun", may_be_missing=True),
            lambda: self._get("open the line", "/queue"),
            lambda: self._call("read the line", "queue"),
            lambda: self._call("a run's status", "run_status", run_id),
        ]
        doing: list[Callable[[], Awaitable[object]]] = [
            lambda: (
                self._call("stop another's run", "stop_run", run_id, True, may_refuse=True)
                if not self.is_teacher and run_id not in self.own_runs
                else self._call("a run's status", "run_status", run_id)
            ),
        ]
        if self.own_runs:
            own = self._random.choice(self.own_runs)
            doing += [
                lambda: self._call("write a note", "edit_run", own, None, None, f"note {time.time():.0f}"),
                lambda: self._call("save a checkpoint", "checkpoint_run", own, may_refuse=True),
                self._start_anew,
            ]
        if self.is_teacher:
            doing += [
                lambda: self._call("move in the line", "move_in_queue", run_id, 1, may_refuse=True),
                lambda: self._call("stop a run", "stop_run", run_id, True, may_refuse=True),
            ]
        await self._random.choice(doing if self._random.random() < 0.3 else looking)()

    async def watch(self, run_id: str) -> None:
        """Hold a live stream open, as an open page does."""
        async with self._http.stream("GET", f"/live/runs/{run_id}/stream?since=-1") as response:
            if response.status_code != httpx.codes.OK:
                self._tally.errors.append(f"stream of {run_id}: {response.status_code}")
            async for _ in response.aiter_raw():
                pass

    async def _start_anew(self) -> None:
        """Stop a run of one's own and start another: the line stays as long as it was."""
        gone = self.own_runs.pop(0)
        await self._call("stop one's own run", "stop_run", gone, False, may_refuse=True)
        await self.start_run()

    async def _get(self, kind: str, path: str, *, may_be_missing: bool = False) -> None:
        await self._click(kind, lambda: self._http.get(path), may_refuse=may_be_missing)

    async def _call(self, kind: str, endpoint: str, *values: Any, may_refuse: bool = False) -> Any:
        response = await self._click(
            kind,
            lambda: self._http.post(f"/gradio_api/run/{endpoint}", json={"data": list(values)}),
            may_refuse=may_refuse,
        )
        return None if response is None else response.json()["data"][0]

    async def _click(
        self, kind: str, send: Callable[[], Awaitable[httpx.Response]], *, may_refuse: bool = False
    ) -> httpx.Response | None:
        """Send one request and note how long its whole answer took; None when it is not a success."""
        began = time.perf_counter()
        try:
            response = await send()
        except httpx.HTTPError as error:
            self._tally.errors.append(f"{kind}: {type(error).__name__} {error}")
            return None
        self._tally.took_ms[kind].append((time.perf_counter() - began) * 1000)
        if response.is_success or response.status_code == httpx.codes.SEE_OTHER:
            return response
        # A run that waits has no log yet.
        if may_refuse and ("error" in response.text or response.status_code == httpx.codes.NOT_FOUND):
            self._tally.refused += 1
        else:
            self._tally.errors.append(f"{kind}: {response.status_code} {response.text[:200]}")
        return None


async def crowd(address: str, secrets: dict[str, str], seconds: float, mean_wait_s: float) -> Tally:
    """Let everybody log in, start the runs, and click for so long."""
    tally = Tally()
    async with _visitors(address, secrets, tally) as visitors:
        await asyncio.gather(*(visitor.log_in(secrets[visitor.name]) for visitor in visitors))
        for visitor in visitors[:NUM_RUNS]:
            await visitor.start_run()
        started = [run_id for visitor in visitors for run_id in visitor.own_runs]
        streams = [asyncio.create_task(visitor.watch(started[0])) for visitor in visitors]
        until = time.monotonic() + seconds
        await asyncio.gather(*(_keep_clicking(visitor, visitors, until, mean_wait_s) for visitor in visitors))
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return tally


async def _keep_clicking(visitor: Visitor, visitors: list[Visitor], until: float, mean_wait_s: float) -> None:
    chance = random.Random(visitor.name)  # noqa: S311
    while True:
        await asyncio.sleep(chance.expovariate(1 / mean_wait_s))
        if time.monotonic() > until:
            return
        all_runs = [run_id for other in visitors for run_id in other.own_runs]
        await visitor.click(all_runs)


@asynccontextmanager
async def _visitors(address: str, secrets: dict[str, str], tally: Tally) -> AsyncIterator[list[Visitor]]:
    clients = [httpx.AsyncClient(base_url=address, timeout=60.0) for _ in secrets]
    try:
        pairs = zip(secrets, clients, strict=True)
        yield [Visitor(name, http, tally, seed) for seed, (name, http) in enumerate(pairs)]
    finally:
        for http in clients:
            await http.aclose()


def make_accounts(path: Path) -> dict[str, str]:
    """Write the accounts of a class and return everybody's password."""
    names = ["teacher", *(f"student-{number:02d}" for number in range(1, NUM_STUDENTS + 1))]
    made = {name: account_file.made_up() for name in names}
    with AccountFile(path).changing() as accounts:
        for name, password in made.items():
            role: Role = "teacher" if name == "teacher" else "student"
            accounts[name] = Account(name=name, role=role, password=account_file.hash_password(password))
    return made


def end_all_runs(runs_dir: Path) -> None:
    """Ask every run to end and wait until none is going on."""
    runs = [RunDirectory(path.parent) for path in runs_dir.glob("*/config.json")]
    for run in runs:
        if run.is_locked():
            run.append_command("stop", save=False)
    deadline = time.monotonic() + END_TIMEOUT_S
    while any(run.is_locked() for run in runs):
        if time.monotonic() > deadline:
            raise RuntimeError("a run did not end")
        time.sleep(0.2)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--clicks-an-hour", type=float, default=120.0, help="of each person")
    options = parser.parse_args()
    conditions = Conditions.note()
    seconds = options.minutes * 60
    mean_wait_s = seconds / options.clicks_an_hour
    with tempfile.TemporaryDirectory() as folder:
        runs_dir, auth_file = Path(folder) / "runs", Path(folder) / "accounts.json"
        secrets = make_accounts(auth_file)
        port = page_driver.free_port()
        command = [sys.executable, "app.py", "--no-browser", "--port", str(port), "--runs-dir", str(runs_dir)]
        command += ["--auth-file", str(auth_file), "--cpu-ranks", "2"]
        with page_driver.serve_command(command, port) as server:
            cpu = CpuMeter(server.process.pid)
            tally = asyncio.run(crowd(server.address, secrets, seconds, mean_wait_s))
            figures = {
                "people": len(secrets),
                "minutes": options.minutes,
                "clicks_an_hour_each": options.clicks_an_hour,
                **tally.report(),
                "runs": sorted(_states(runs_dir).items()),
                "server_cpu_percent": cpu.percent(),
                "server_resident_mb": resident_mb(server.process.pid),
                "conditions": conditions.report(),
            }
        end_all_runs(runs_dir)
    print(json.dumps(figures, indent=2))


def _states(runs_dir: Path) -> dict[str, int]:
    counted: dict[str, int] = defaultdict(int)
    for path in runs_dir.glob("*/config.json"):
        state = liveness.read_status(RunDirectory(path.parent)).state
        counted["going on" if state in events.LIVE_STATES and state != "queued" else state] += 1
    return counted


if __name__ == "__main__":
    main()
