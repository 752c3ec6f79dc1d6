"""This project's job, started as a user does, and the rates computed from its events."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.rank import LOOK, OUT_OF_MEMORY
from tests.harness import REPOSITORY, Launcher, LiveRun
from trainers.contract import config as config_module
from trainers.contract import events, rundir
from trainers.contract.events import Event
from trainers.contract.rundir import RunDirectory
from trainers.engines.local import torchrun
from trainers.engines.local.torchrun import torchrun_options

POLL_EVERY_S = 0.5
START_TIMEOUT_S = 600.0  # includes compilation
JOB_TIMEOUT_S = 1800.0


class OutOfMemoryError(RuntimeError):
    """The device is out of memory."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The measured steps: those of this number of seconds after the warm-up.

    Attributes:
        waits_for_sample: measure only after the model's first sample, which allocates memory.
    """

    warm_up: int
    seconds: float
    waits_for_sample: bool


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Samples per second in wall-clock time and within steps, and the last loss.

    Samples of the model's output for the page are included in the first and excluded from the second.
    """

    samples_per_s: float
    samples_per_s_in_steps: float
    last_loss: float


def rates(everything: Sequence[Event], window: Window, batch_size: int) -> Rates | None:
    """Return a run's rates within the window, or None until it is full."""
    if window.waits_for_sample:
        first = next((place for place, event in enumerate(everything) if _is_sample(event)), None)
        if first is None:
            return None
        everything = everything[first:]
    steps = [event for event in everything if event["kind"] == "step" and event["step"] > window.warm_up]
    if not steps:
        return None
    # Steps that are reported together have the time of the report, at which the last of them ended.
    began, over = steps[0]["time_unix_s"], steps[-1]["time_unix_s"]
    counted = [event for event in steps if event["time_unix_s"] > began]
    if over - began < window.seconds or not counted:
        return None
    if not all(math.isfinite(event["loss"]) for event in counted):
        raise ValueError("the loss is no number any more")
    num_samples = len(counted) * batch_size
    return Rates(
        samples_per_s=num_samples / (over - began),
        samples_per_s_in_steps=num_samples / sum(event["step_time_s"] for event in counted),
        last_loss=counted[-1]["loss"],
    )


def _is_sample(event: Event) -> bool:
    """True for a sample of the model's output, or its failure: a full card may lack memory for one."""
    return event["kind"] == "sample" or event.get("code") == "no_sample"


def measure(launcher: Launcher, config: dict[str, Any], window: Window) -> Rates:
    """Start a run under its supervisor, let it train until the window is full, and stop it.

    Raises:
        RuntimeError: it ended before that, or was not compiled despite the configuration.
    """
    live = launcher.start(**config)
    deadline = time.monotonic() + JOB_TIMEOUT_S
    while (found := rates(live.events(), window, config["batch_size"])) is None:
        if live.supervisor.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the run did not come to the end of its measurement: {live.story()}")
        time.sleep(POLL_EVERY_S)
    stop(live)
    require_compiled(live.run)
    return found


def checkpoint_stalls(launcher: Launcher, config: dict[str, Any], times: int) -> tuple[list[float], int]:
    """Return the time for which each checkpoint blocked training, and the size of one."""
    live = launcher.start(**config)
    live.wait_for("step", timeout_s=START_TIMEOUT_S)
    for _ in range(times):
        answer = live.ask("checkpoint")
        if not answer["accepted"]:
            raise RuntimeError(answer["message"])
    saved = live.events("checkpoint")
    stop(live)
    return [event["stall_s"] for event in saved], saved[-1]["size_bytes"]


def stop(live: LiveRun) -> None:
    """Stop a run without saving, and wait for its end."""
    live.run.append_command("stop", save=False)
    status = live.wait_for_end(JOB_TIMEOUT_S)
    if status.state != "stopped":
        raise RuntimeError(f"the run could not be stopped: {live.story()}")


def require_compiled(run: RunDirectory) -> None:
    """Raise if the job fell back to uncompiled training.

    Raises:
        OutOfMemoryError: because of a lack of memory.
        RuntimeError: for another reason.
    """
    for event in events.read_all(run.events):
        if event["kind"] == "warning" and event["code"] == "compile_failed":
            kind = OutOfMemoryError if "OutOfMemory" in event["message"] else RuntimeError
            raise kind(event["message"])


def run_probe(runs_dir: Path, config: dict[str, Any], probe: str, **settings: Any) -> dict[str, Any]:
    """Run the job by torchrun with a probe in its rank. Return the probe's results.

    Raises:
        OutOfMemoryError: the device is out of memory.
        RuntimeError: the job failed for another reason.
    """
    run = rundir.create(runs_dir, config_module.parse(config))
    out = run.path / "notes.json"
    if probe == "waits":
        settings["trace"] = str(run.path / "trace.json")
    arguments = torchrun.worker_arguments(run.read_config(), run.path)
    arguments[arguments.index("trainers.worker")] = "benchmarks.gpu.rank"
    chosen = json.dumps({"probe": probe, "settings": settings, "out": str(out)})
    log_path = run.logs / "torchrun.log"
    with log_path.open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **torchrun_options(run.logs / "torchrun"), LOOK: chosen},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )
    notes: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    if notes.get(OUT_OF_MEMORY):
        raise OutOfMemoryError(f"a batch of {config['batch_size']}")
    require_compiled(run)
    if done.returncode or not notes:
        logs = [log_path, run.rank_log(0)]
        ends = "\n".join(path.read_text(errors="replace")[-2000:] for path in logs if path.exists())
        raise RuntimeError(f"the job ended with {done.returncode}: {ends}")
    return notes
