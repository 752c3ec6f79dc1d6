"""User actions: repeated, too early, at the wrong moment, on two pages; page crashes; a reboot."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from functools import partial
from typing import Any

import psutil
from gradio_client import Client
from gradio_client.exceptions import AppError

from tests.faults import shims
from tests.faults.registry import add
from tests.faults.trial import BUSY_START_S, ENDLESS, PATIENCE_S, Trial, last_step
from tests.harness import SMALL, LiveRun, processes_of, wait_until
from tools import page_driver
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

# Python internals that must not appear in an error of an endpoint.
NOT_PLAIN = re.compile(r"Traceback|Errno|\w+Error:|None")


# Starting a page is slow on a machine with many concurrent trials; that is not a finding.
serve = partial(page_driver.serve, timeout_s=300.0)


def ask(page: Client, endpoint: str, *arguments: Any) -> tuple[Any, str]:
    """Return an endpoint's response and "", or None and the text of its error."""
    try:
        return page.predict(*arguments, api_name=endpoint), ""
    except AppError as error:
        return None, str(error)


def start_on(trial: Trial, page: Client, **values: Any) -> RunDirectory:
    """Start an endless run as the Start button does, and watch it."""
    run_id = page.predict(SMALL | ENDLESS | values, api_name="/start_run")["run_id"]
    run = RunDirectory(trial.runs_dir / run_id)
    trial.watch(run)
    return run


def wait_until_saved(run: RunDirectory) -> None:
    """Wait until a run started by a page has saved a checkpoint."""
    wait_until("a checkpoint", run.list_checkpoints, BUSY_START_S)


def _stop(trial: Trial, live: LiveRun, times: int = 1) -> None:
    trial.strike()
    for _ in range(times):
        live.run.append_command("stop", save=trial.dice.random() < 0.5)
        time.sleep(trial.dice.choice((0.0, 0.05, 1.0)))
    trial.ends(live.run, "stopped")


def _stop_during_start(trial: Trial) -> None:
    live = trial.start()
    wait_until("a status", live.run.status.exists, BUSY_START_S)
    time.sleep(trial.dice.uniform(0.0, 6.0))
    _stop(trial, live)


def _stop_during_a_checkpoint(trial: Trial) -> None:
    live = trial.start(environment=shims.slow(write_ms=0, sync_ms=300))
    live.wait_for("checkpoint", timeout_s=BUSY_START_S)
    wait_until("a save", lambda: list(live.run.checkpoints.glob(".step_*.partial")), PATIENCE_S)
    time.sleep(trial.dice.uniform(0.0, 0.5))
    _stop(trial, live)


def _stop_during_evaluation(trial: Trial) -> None:
    live = trial.start(eval_every_steps=1)
    live.wait_for("eval", timeout_s=BUSY_START_S)
    time.sleep(trial.dice.uniform(0.0, 1.0))
    _stop(trial, live)


def _stop_twice(trial: Trial) -> None:
    _stop(trial, trial.start_and_wait_a_while(), times=2)


def _checkpoint_during_stop(trial: Trial) -> None:
    live = trial.start_and_wait()
    trial.strike()
    live.run.append_command("stop")
    live.run.append_command("checkpoint")
    trial.ends(live.run, "stopped")


def _double_click_on_start(trial: Trial) -> None:
    """A double click in a real browser starts exactly one run."""
    with serve(trial.runs_dir) as server, page_driver.open_browser() as browser:
        page = page_driver.open_page(browser, server.address)
        page.evaluate("localStorage.setItem('ddp:tour', 'seen')")
        page.reload()
        page.locator(".ddp-equation").filter(has_text="128").wait_for(timeout=60_000)
        button = page.get_by_role("button", name="Start", exact=True)
        trial.strike()
        button.dblclick(delay=trial.dice.choice((0, 30, 120)))
        page.wait_for_url("**/run?id=*", timeout=60_000)
        time.sleep(3.0)  # wait for a possible second run
        made = [path.name for path in trial.runs_dir.iterdir() if (path / "config.json").exists()]
        trial.is_true_now()
        trial.expect(len(made) == 1, f"a double click made {made}")
        for name in made:
            run = RunDirectory(trial.runs_dir / name)
            trial.watch(run)
            wait_until("a first event", run.events.exists, BUSY_START_S)
            run.append_command("stop", save=False)
            trial.strike()
            trial.ends(run, "stopped")


def _resume_a_running_run(trial: Trial) -> None:
    with serve(trial.runs_dir) as server:
        page = Client(server.address, verbose=False)
        run = start_on(trial, page)
        wait_until_saved(run)
        trial.strike()
        answer, words = ask(page, "/resume_run", run.run_id)
        trial.expect(answer is None and "is running" in words, f"{answer} {words}")
        trial.expect(not NOT_PLAIN.search(words), f"not plain: {words}")
        _is_running_on(trial, run)
        _stop_by(trial, page, run)


def _two_pages(trial: Trial) -> None:
    """Two pages list a run, one stops it, and both resume it simultaneously: exactly one succeeds."""
    with serve(trial.runs_dir) as one, serve(trial.runs_dir) as other:
        pages = [Client(server.address, verbose=False) for server in (one, other)]
        run = start_on(trial, pages[0])
        wait_until_saved(run)
        trial.strike()
        states = [ask(page, "/run_status", run.run_id)[0]["state"] for page in pages]
        trial.expect(states == ["running", "running"], f"they say {states}")
        _stop_by(trial, pages[1], run)
        answers: list[tuple[Any, str]] = []
        both = [
            threading.Thread(target=lambda p=page: answers.append(ask(p, "/resume_run", run.run_id)))
            for page in pages
        ]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        refused = [words for answer, words in answers if answer is None]
        trial.expect(len(refused) == 1, f"one should have won: {answers}")
        trial.expect(not any(NOT_PLAIN.search(words) for words in refused), f"not plain: {refused}")
        trial.strike()
        _is_running_on(trial, run)
        starts = sum(
            event["kind"] == "state" and event["state"] == "starting" for event in events.read_all(run.events)
        )
        trial.expect(starts == 2, f"{starts} starts")
        _stop_by(trial, pages[0], run)


def _signal_to_the_page(trial: Trial, name: str) -> None:
    """The run continues after a signal to the page; a new page shows the run and can stop it."""
    with serve(trial.runs_dir) as server:
        run = start_on(trial, Client(server.address, verbose=False))
        if trial.dice.random() < 0.7:
            wait_until_saved(run)
        time.sleep(trial.dice.uniform(0.0, 2.0))
        trial.strike()
        server.process.send_signal(signal.Signals[name])
        if name != "SIGSTOP":
            server.process.wait(30)
        with serve(trial.runs_dir) as again:
            page = Client(again.address, verbose=False)
            wait_until("the run's first checkpoint", run.list_checkpoints, BUSY_START_S)
            trial.strike()
            status = ask(page, "/run_status", run.run_id)[0]
            trial.expect(status["state"] == "running", f"the new page says {status}")
            _is_running_on(trial, run)
            _stop_by(trial, page, run)
        if name == "SIGSTOP":
            server.process.send_signal(signal.SIGCONT)


def _reboot(trial: Trial) -> None:
    """All processes are killed.

    A new page lists the correct states, and runs with a checkpoint can be resumed.
    """
    with serve(trial.runs_dir) as server:
        page = Client(server.address, verbose=False)
        first = start_on(trial, page)
        wait_until_saved(first)
        second = start_on(trial, page, nproc_per_node=1)
        time.sleep(trial.dice.uniform(0.5, 12.0))
        trial.strike()
        server.process.kill()
        for run in (first, second):
            for process in processes_of(run):
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended together with another process
                    process.kill()
        server.process.wait()
    with serve(trial.runs_dir) as server:
        page = Client(server.address, verbose=False)
        trial.strike()
        rows = {row["run_id"]: row for row in page.predict(api_name="/list_runs")}
        trial.is_true_now()
        for run in (first, second):
            row = rows[run.run_id]
            trial.expect(row["state"] == "lost" and "gone" in row["error"], f"the list says {row}")
            if run.list_checkpoints():
                before = last_step(run)
                answer, words = ask(page, "/resume_run", run.run_id)
                trial.expect(answer is not None, f"cannot be resumed: {words}")
                wait_until(
                    "the resumed run", lambda run=run, before=before: last_step(run) != before, BUSY_START_S
                )
                _stop_by(trial, page, run)


def _is_running_on(trial: Trial, run: RunDirectory) -> None:
    before = last_step(run)
    wait_until("training going on", lambda: last_step(run) != before, BUSY_START_S)
    trial.expect(liveness.read_status(run).state == "running", f"it is {liveness.read_status(run)}")


def _stop_by(trial: Trial, page: Client, run: RunDirectory) -> None:
    trial.strike()
    answer, words = ask(page, "/stop_run", run.run_id)
    trial.expect(answer is not None, f"Stop was refused: {words}")
    trial.ends(run, "stopped")


add("Stop during start", _stop_during_start, times=12)
add("Stop during a checkpoint", _stop_during_a_checkpoint, times=10)
add("Stop during evaluation", _stop_during_evaluation, times=10)
add("Stop twice", _stop_twice, times=10)
add("Checkpoint during Stop", _checkpoint_during_stop, times=10)
add("double click on Start", _double_click_on_start, times=6)
add("Resume of a running run", _resume_a_running_run, times=6)
add("two pages on one runs directory, both resume", _two_pages, times=6)
for _name in ("SIGKILL", "SIGTERM", "SIGSTOP"):
    add(f"{_name} to the page", partial(_signal_to_the_page, name=_name), times=6)
add("the machine reboots", _reboot, times=6)
