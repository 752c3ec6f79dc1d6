"""A served page and its named endpoints: the effect of a click, without a browser."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.harness import ANSWER_TIMEOUT_S, START_TIMEOUT_S, all_events, processes_of, ranks_of, wait_until
from tests.integration.test_standby import template_of
from trainers.contract import tickets
from trainers.contract.events import Event
from trainers.contract.rundir import RunDirectory, Status
from trainers.engines import liveness

# In the command line of a supervisor without a run.
WAITING = {"trainers.engines.local.supervisor", "--wait"}
# The form's labels of the number of ranks, with GPUs and without.
NUM_RANKS_LABELS = ("GPUs (up to", "CPU ranks (up to")
END_S = 600.0
ENDED = ("failed", "stopped", "finished")


class ClickedRun:
    """A run started by the page."""

    def __init__(self, page: Clicks, run: RunDirectory, answer: dict[str, Any]) -> None:
        self.page = page
        self.run = run
        self.answer = answer

    def events(self, kind: str) -> list[Event]:
        return [event for event in all_events(self.run) if event["kind"] == kind]

    def losses(self) -> dict[int, float]:
        return {event["step"]: event["loss"] for event in self.events("step")}

    def state(self) -> str:
        return str(self.page.ask("run_status", self.run.run_id)["state"])

    def click(self, endpoint: str, *arguments: Any) -> dict[str, Any]:
        """Press one of the run's buttons."""
        return self.page.ask(endpoint, self.run.run_id, *arguments)

    def wait_for_state(self, *wanted: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait for one of these states. Fails immediately if the run has ended in another."""

        def is_there() -> bool:
            state = self.state()
            assert state in wanted or state not in ENDED, self.story()
            return state in wanted

        wait_until(f"run {self.run.run_id} being {' or '.join(wanted)}", is_there, timeout_s)

    def wait_for_step(self, step: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until this step was reported. Fails immediately if the run has ended."""

        def is_there() -> bool:
            is_over = self.state() in ENDED
            has_come = max(self.losses(), default=0) >= step
            assert has_come or not is_over, self.story()
            return has_come

        wait_until(f"step {step}", is_there, timeout_s)

    def pause(self) -> int:
        """Press Pause. Return the step after which the run is paused."""
        self.click("pause_run")
        self.wait_for_state("paused", timeout_s=ANSWER_TIMEOUT_S)
        return self._paused_step()

    def pause_at_start(self) -> int:
        """Pause the run as soon as it trains. Return the step after which it is paused."""
        wait_until("the ranks being started", self.run.rank_log(0).exists, START_TIMEOUT_S)
        self.click("pause_run")
        self.wait_for_state("paused")
        return self._paused_step()

    def _paused_step(self) -> int:
        """Return the step named in the answer to Pause: the last losses are reported a little later."""
        return max(int(event["step"]) for event in self.events("command") if event["name"] == "pause")

    def checkpoint(self) -> None:
        """Press Checkpoint and wait for the checkpoint."""
        before = len(self.run.list_checkpoints())
        self.click("checkpoint_run")
        wait_until("a checkpoint", lambda: len(self.run.list_checkpoints()) > before, ANSWER_TIMEOUT_S)

    def stop(self, *, save: bool = True) -> Status:
        """Press Stop and wait for the end."""
        self.click("stop_run", save)
        return self.wait_for_end("stopped")

    def wait_for_end(self, state: str) -> Status:
        """Wait until the run has ended in this state and no process of it remains."""
        self.wait_for_state(state, timeout_s=END_S)
        wait_until("no process of the run being left", lambda: not processes_of(self.run), ANSWER_TIMEOUT_S)
        status = liveness.read_status(self.run)
        assert status.state == state, self.story()
        return status

    def resume_to_end(self, *arguments: Any) -> None:
        """Resume a run that has ended, and wait until it has finished."""
        before = self._num_starts()
        self.click("resume_run", *arguments)
        wait_until("its next start", lambda: self._num_starts() > before, START_TIMEOUT_S)
        self.wait_for_end("finished")

    def _num_starts(self) -> int:
        return sum(event["state"] == "starting" for event in self.events("state"))

    def ranks(self) -> dict[int, int]:
        """Return the PID of each rank."""
        return ranks_of(self.run)

    def started_from(self) -> str:
        """Return how the latest start of the run describes its ranks."""
        return str([event for event in self.events("state") if event["state"] == "starting"][-1]["reason"])

    def waited_s(self) -> float:
        """Return the time the run waited in the queue."""
        ticket = tickets.read_granted(self.run)
        assert ticket is not None and ticket.grant is not None
        return ticket.grant.granted_unix_s - ticket.asked_unix_s

    def granted(self) -> list[str]:
        """Return the UUIDs of the GPUs it was granted."""
        ticket = tickets.read_granted(self.run)
        assert ticket is not None and ticket.grant is not None
        return [gpu.uuid for gpu in ticket.grant.gpus]

    def story(self) -> str:
        """Return the status and the ends of all logs, for a failure's message."""
        ends = [f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in self._logs()]
        return "\n".join([str(liveness.read_status(self.run)), *ends])

    def _logs(self) -> list[Path]:
        return sorted(self.run.logs.glob("*.log"))


class Clicks:
    """A served page."""

    def __init__(self, address: str, pid: int, runs_dir: Path) -> None:
        from gradio_client import Client

        self._client = Client(address, verbose=False)
        self._address = address
        self._pid = pid
        self._runs_dir = runs_dir

    def ask(self, endpoint: str, *arguments: Any) -> Any:
        """Call a named endpoint."""
        return self._client.predict(*arguments, api_name=f"/{endpoint}")

    def start(self, **config: Any) -> ClickedRun:
        """Press Start."""
        answer = self.ask("start_run", config)
        return ClickedRun(self, RunDirectory(self._runs_dir / answer["run_id"]), answer)

    def open_form(self, num_ranks: int) -> None:
        """Send the form for this number of ranks as a browser does.

        The server then keeps standby ranks for it.
        """
        with urllib.request.urlopen(f"{self._address}/config", timeout=60) as answer:
            config = json.load(answer)
        about = {item["id"]: item["props"] for item in config["components"]}
        preview = max(
            (item for item in config["dependencies"] if (item["api_name"] or "").startswith("_preview")),
            key=lambda item: len(item["inputs"]),
        )
        values = {field: about[field].get("value") for field in preview["inputs"]}
        (ranks,) = [field for field in values if str(about[field].get("label")).startswith(NUM_RANKS_LABELS)]
        body = {
            "data": [*(values | {ranks: num_ranks}).values()],
            "fn_index": preview["id"],
            "session_hash": "gputests",
        }
        request = urllib.request.Request(
            f"{self._address}/gradio_api/run/predict",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200

    def wait_for_template(self) -> set[int]:
        """Wait until the template has imported torch. Return its PID and that of its supervisor."""

        def are_there() -> set[int]:
            below = psutil.Process(self._pid).children()
            holder = next((each for each in below if set(_words(each)) >= WAITING), None)
            return set() if holder is None else {holder.pid, template_of(holder).pid}

        found: set[int] = wait_until("a template", are_there, START_TIMEOUT_S)
        return found

    def kill_runs(self) -> None:
        """Kill all remaining processes of the runs."""
        for path in self._runs_dir.iterdir() if self._runs_dir.is_dir() else []:
            for process in processes_of(RunDirectory(path)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@contextlib.contextmanager
def served(runs_dir: Path, *options: str) -> Iterator[Clicks]:
    """Serve a page until the block ends, then kill its runs."""
    from tools import page_driver

    with page_driver.serve(runs_dir, *options, timeout_s=START_TIMEOUT_S) as server:
        clicks = Clicks(server.address, server.process.pid, runs_dir)
        try:
            yield clicks
        finally:
            clicks.kill_runs()
