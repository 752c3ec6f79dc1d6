"""One trial of a fault on a real run: play the scene, then check every invariant."""

from __future__ import annotations

import functools
import random
import re
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import checks
from tests.faults.watcher import Watcher
from tests.harness import REPOSITORY, Launcher, LiveRun, create_run, wait_until
from trainers.contract import events
from trainers.contract.rundir import RunDirectory, Status
from trainers.engines import liveness

# Saves often, so that a fault is likely to hit a save; runs until something ends it.
ENDLESS = {"num_epochs": 100_000, "checkpoint_every_steps": 100, "eval_every_steps": 400}
PATIENCE_S = 90.0
BUSY_START_S = 150.0
RESUME_SHARE = 0.25
_STEP = re.compile(rb'"kind":"step","step":(\d+)')


@dataclass
class Outcome:
    """The result of one trial of one fault."""

    fault: str
    seed: int
    lost_events: int = 0
    bad_checkpoints: int = 0
    processes_left: int = 0
    true_after_s: float | None = None
    complaints: list[str] = field(default_factory=list)


class Trial:
    """The environment of a scene: its random generator, its watched runs, and its checks."""

    def __init__(self, folder: Path, outcome: Outcome, repository: Path = REPOSITORY) -> None:
        self.folder = folder
        self.outcome = outcome
        self.dice = random.Random(f"{outcome.fault} {outcome.seed}")
        self.launcher = Launcher(folder / "runs", repository)
        self.watched: dict[str, tuple[RunDirectory, Watcher]] = {}
        self.struck_at = 0.0
        self.note = ""
        self._is_concluded = False
        self.page: Any = None
        self._left: set[checks.Identity] = set()

    @property
    def runs_dir(self) -> Path:
        return self.launcher.runs_dir

    def create(self, **values: Any) -> RunDirectory:
        """Create a run that trains until something ends it, and watch it."""
        run = create_run(self.runs_dir, **(ENDLESS | values))
        self.watch(run)
        return run

    def watch(self, run: RunDirectory) -> None:
        """Start watching this run."""
        self.watched[run.run_id] = (run, Watcher(run))

    def start(self, *, environment: dict[str, str] | None = None, **values: Any) -> LiveRun:
        """Start an endless run."""
        return self.launcher.start_run(self.create(**values), environment=environment)

    def start_and_wait(self, **values: Any) -> LiveRun:
        """Start an endless run and wait until it has saved a checkpoint."""
        live = self.start(**values)
        live.wait_for("checkpoint", timeout_s=BUSY_START_S)
        return live

    def start_and_wait_a_while(self, **values: Any) -> LiveRun:
        """Start an endless run and wait until a random moment, in one of five trials during start-up."""
        live = self.start(**values)
        if self.dice.random() < 0.2:
            wait_until("a status", live.run.status.exists, BUSY_START_S)
            time.sleep(self.dice.uniform(0.0, 5.0))
        else:
            live.wait_for("checkpoint", timeout_s=BUSY_START_S)
            time.sleep(self.dice.uniform(0.0, 2.0))
        return live

    def strike(self) -> None:
        """Record that the fault happens now."""
        self.struck_at = time.monotonic()

    def ends(self, run: RunDirectory, *states: str, says: str = "") -> Status:
        """Wait until no process remains and the state is final. Record the time and check the error."""

        def is_true() -> bool:
            self._left = self.watched[run.run_id][1].processes_left()
            return not self._left and liveness.read_status(run).state not in events.LIVE_STATES

        try:
            wait_until("an ended state with no process left", is_true, PATIENCE_S)
        except AssertionError:
            self.outcome.processes_left += len(self._left)
            raise
        self._note_seconds()
        status = liveness.read_status(run)
        self.expect(
            status.state in states, f"the state is {status.state}, not {' or '.join(states)}: {status}"
        )
        if status.state in ("failed", "lost"):
            sentence = status.error or ""
            begins_well = sentence.startswith("torchrun,") or sentence[:1].isupper()
            is_sentence = begins_well and sentence.endswith(".") and "Traceback" not in sentence
            self.expect(is_sentence, f"no plain sentence: {status.error!r}")
            self.expect(re.search(says, sentence), f"does not say {says!r}: {sentence}")
        return status

    def goes_on(self, live: LiveRun) -> None:
        """Check that the run trains on: wait for a later step."""
        before = last_step(live.run)
        wait_until("training going on", lambda: last_step(live.run) != before, PATIENCE_S)
        state = liveness.read_status(live.run).state
        self._note_seconds()
        self.expect(state == "running", f"it trains, but its state is {state}")

    def stop(self, live: LiveRun, **arguments: Any) -> Status:
        """Stop the run as the Stop button does, and wait for its end."""
        live.run.append_command("stop", **arguments)
        return self.ends(live.run, "stopped")

    def resumes(self, run: RunDirectory) -> None:
        """Resume from the latest checkpoint, as the page does, and wait for a later step."""
        newest = max(run.list_checkpoints(), key=lambda item: (item.saved_unix_s, item.step), default=None)
        if newest is None:
            return
        again = self.launcher.start_run(run, resume_step=newest.step)
        try:
            again.wait_for("step", lambda event: event["step"] > newest.step, timeout_s=BUSY_START_S)
        except AssertionError as error:
            self.outcome.bad_checkpoints += 1
            self.complain(f"step {newest.step} cannot be resumed: {error}")
            return
        run.append_command("stop", save=False)
        wait_until("the resumed run's end", lambda: again.supervisor.poll() is not None, PATIENCE_S)

    def expect(self, is_so: object, complaint: str) -> bool:
        """Record a complaint if a condition is false. Return the condition."""
        if not is_so:
            self.complain(complaint)
        return bool(is_so)

    def complain(self, text: str) -> None:
        """Record a deviation."""
        self.outcome.complaints.append(text[:2000])

    def is_true_now(self) -> None:
        """Record the time from the fault until now, when the state is correct."""
        self._note_seconds()

    def _note_seconds(self) -> None:
        took_s = time.monotonic() - self.struck_at
        self.outcome.true_after_s = max(self.outcome.true_after_s or 0.0, round(took_s, 2))

    def conclude(self, *, is_resumed: bool = True) -> None:
        """Check all invariants after the runs have ended. Repeated calls do nothing.

        Args:
            is_resumed: resume some of the runs; False if nothing can be written any more.
        """
        if self._is_concluded:
            return
        self._is_concluded = True
        for _, watcher in self.watched.values():
            left = watcher.processes_left()
            if left:
                self.complain(f"processes left: {sorted(left)}")
            self.outcome.processes_left += len(left)
        for run, _ in self.watched.values():
            if (
                is_resumed
                and run.path.exists()
                and self.dice.random() < RESUME_SHARE
                and liveness.read_status(run).state != "finished"
            ):
                self.resumes(run)
        for run, watcher in self.watched.values():
            watcher.close()
            if not run.path.exists():
                continue
            self.outcome.lost_events += checks.lost_events(run, watcher.seen())
            bad = checks.bad_checkpoints(run)
            self.outcome.bad_checkpoints += len(bad)
            self.outcome.complaints += bad
            if not watcher.seen().num_events and run.events.exists():
                self.complain("the watcher saw no event, so that none could be missed")

    def stop_watching(self) -> None:
        """Close the readers, because a file system in use cannot be unmounted."""
        for _, watcher in self.watched.values():
            watcher.close()

    def close(self) -> None:
        """End all runs and readers."""
        self.launcher.close()
        self.stop_watching()


class CannotBePlayedError(RuntimeError):
    """This machine lacks a requirement of the fault, such as root for a mount or a compiler for a shim."""


Scene = Callable[[Trial], None]


def play(name: str, scene: Scene, seed: int, folder: Path, repository: Path = REPOSITORY) -> Outcome:
    """Play a scene in a new folder and return its outcome. The folder is deleted afterwards."""
    outcome = Outcome(fault=name, seed=seed)
    folder.mkdir(parents=True)
    trial = Trial(folder, outcome, repository)
    try:
        scene(trial)
        trial.conclude()
    except CannotBePlayedError:
        raise
    except Exception as error:  # noqa: BLE001
        # Any exception is a finding of this trial; the next trials still run.
        told = "" if isinstance(error, AssertionError) else traceback.format_exc()
        trial.complain(f"{type(error).__name__}: {error}\n{told}")
    finally:
        trial.close()
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


@functools.cache
def _shared() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="faults-shared-")


def shared_folder(name: str) -> Path:
    """Return a folder for all trials of this process, which is removed at its end."""
    folder = Path(_shared().name) / name
    folder.mkdir(exist_ok=True)
    return folder


def last_step(run: RunDirectory) -> int:
    """Return the latest step near the end of the events, or 0."""
    try:
        with run.events.open("rb") as file:
            file.seek(max(0, run.events.stat().st_size - 256 * 1024))
            found = _STEP.findall(file.read())
    except FileNotFoundError:
        return 0
    return int(found[-1]) if found else 0
