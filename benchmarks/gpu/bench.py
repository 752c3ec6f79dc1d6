"""State shared by all checks of a case: data, runs, durations of the measurements."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu import job
from benchmarks.gpu.cases import CASES, TINY_CASES, Case
from benchmarks.gpu.filling import Filled, fill
from benchmarks.gpu.job import JOB_TIMEOUT_S, OutOfMemoryError, Window
from tests.harness import REPOSITORY, Launcher

PROBED_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Durations of the measurements.

    Attributes:
        traced_warm_up, traced_steps: for the trace that is searched for waits. After the warm-up the
            interval of reports is stable.
        block_s: of training with watching, and of training without.
    """

    rounds: int
    window: Window
    traced_warm_up: int
    traced_steps: int
    block_s: float


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One case on one device."""

    name: str
    device: str
    is_tiny: bool
    compile_mode: str | None
    wanted_batch: int | None
    effort: Effort
    folder: Path
    launcher: Launcher = field(repr=False)

    @property
    def case(self) -> Case:
        return (TINY_CASES if self.is_tiny else CASES)[self.name]

    @functools.cached_property
    def data(self) -> Path:
        """The data, written and prepared once for all runs."""
        folder = self.folder / self.name
        folder.mkdir(parents=True)
        path = self.case.write(folder)
        self.case.dataset(path).spec()
        return path

    @functools.cached_property
    def filled(self) -> Filled:
        """The batch that fills the card, or the requested one."""
        if self.wanted_batch is not None:
            notes = self.run_probe(self.wanted_batch, "memory", num_steps=PROBED_STEPS)
            share = round(notes["share_in_use"], 3)
            return Filled(batch_size=self.wanted_batch, share_of_memory=share, why="it was asked for")
        return fill(self._share_in_use, self.case.first_batch, self.case.most_batch)

    def _share_in_use(self, batch_size: int) -> float | None:
        try:
            notes = self.run_probe(batch_size, "memory", num_steps=PROBED_STEPS)
        except OutOfMemoryError:
            print(f"{self.name}: a batch of {batch_size} is out of memory", file=sys.stderr, flush=True)
            return None
        share = float(notes["share_in_use"])
        words = f"{self.name}: a batch of {batch_size} takes {share:.0%} of the memory"
        print(words, file=sys.stderr, flush=True)
        return share

    def config(self, batch_size: int) -> dict[str, Any]:
        """Return the job's configuration."""
        return self.case.config(
            self.data,
            batch_size=batch_size,
            device=self.device,
            is_compiled=self.compile_mode is not None,
        )

    def run_probe(self, batch_size: int, probe: str, **settings: Any) -> dict[str, Any]:
        """Run the job and probe its rank."""
        return job.run_probe(self.launcher.runs_dir, self.config(batch_size), probe, **settings)

    def run_beside(self, module: str, *arguments: str) -> Any:
        """Run a module in a subprocess that uses the device alone. Return the JSON it writes.

        Raises:
            RuntimeError: it failed.
        """
        out = self.folder / f"{module}.json"
        out.unlink(missing_ok=True)
        command = [sys.executable, "-m", module, "--device", self.device, "--out", str(out), *arguments]
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{module} ended with {done.returncode}: {done.stderr[-3000:]}")
        return json.loads(out.read_text())
