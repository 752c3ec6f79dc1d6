"""The system clock jumps forward or back during a run, and between stop and resume."""

from __future__ import annotations

import time
from itertools import pairwise

from ddp_gui.events.event_reader import Digest
from tests.faults import shims
from tests.faults.registry import add
from tests.faults.trial import BUSY_START_S, Trial
from tests.harness import all_events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

JUMPS_S = (-86_400, -3_600, -30, 30, 3_600, 86_400 * 365)


def _while_it_goes_on(trial: Trial) -> None:
    trial.folder.mkdir(exist_ok=True)
    clock = shims.Clock(trial.folder)
    began = time.monotonic()
    live = trial.start(environment=clock.environment)
    live.wait_for("checkpoint", timeout_s=BUSY_START_S)
    time.sleep(trial.dice.uniform(0.0, 1.0))
    trial.strike()
    clock.set(trial.dice.choice(JUMPS_S))
    trial.goes_on(live)
    saved = len(live.events("checkpoint"))
    live.wait_for("checkpoint", lambda event: event["seq"] > live.events("checkpoint")[saved - 1]["seq"])
    trial.strike()
    trial.stop(live)
    _times_are_in_order(trial, live.run, time.monotonic() - began)


def _between_two_starts(trial: Trial) -> None:
    trial.folder.mkdir(exist_ok=True)
    clock = shims.Clock(trial.folder)
    began = time.monotonic()
    live = trial.start(environment=clock.environment)
    live.wait_for("checkpoint", timeout_s=BUSY_START_S)
    trial.strike()
    trial.stop(live)
    last = max(item.step for item in live.run.list_checkpoints())
    clock.set(trial.dice.choice(JUMPS_S))
    trial.strike()
    again = trial.launcher.start_run(live.run, resume_step=last, environment=clock.environment)
    again.wait_for("step", lambda event: event["step"] > last, timeout_s=BUSY_START_S)
    again.ask("checkpoint")
    trial.strike()
    trial.stop(again)
    _times_are_in_order(trial, live.run, time.monotonic() - began)


def _times_are_in_order(trial: Trial, run: RunDirectory, at_most_s: float) -> None:
    """Check that times, durations and the order of checkpoints are unaffected by the jump."""
    times: list[float] = []
    for event in all_events(run):
        if event["kind"] == "state" and event["state"] == "starting":
            times = []
        times.append(event["time_unix_s"])
        trial.expect(len(times) < 2 or times[-1] >= times[-2] - 0.5, f"time goes back at {event['seq']}")
    digest = Digest()
    digest.catch_up(run.events)
    took_s = digest.took_s or -1.0
    trial.expect(0 < took_s < at_most_s + 1, f"the run says it took {took_s} s of {at_most_s:.1f}")
    by_time = sorted(run.list_checkpoints(), key=lambda item: item.saved_unix_s)
    steps = [item.step for item in by_time]
    trial.expect(all(one < other for one, other in pairwise(steps)), f"saved in the order {steps}")
    status = liveness.read_status(run)
    assert status.started_unix_s is not None and status.ended_unix_s is not None
    took_s = status.ended_unix_s - status.started_unix_s
    trial.expect(0 <= took_s < at_most_s + 1, f"the status says it took {took_s} s")


add("the clock jumps while a run goes on (a shim)", _while_it_goes_on, times=10)
add("the clock jumps between stop and resume (a shim)", _between_two_starts, times=8)
