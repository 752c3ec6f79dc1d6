"""Fixtures of the tests of the paper GPU: `make paper-gpu` runs them in a process with paper GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import REPOSITORY
from tests.paper_gpu import BUILD, environment

WITHIN_S = 300.0
# Runs a program on separate GPUs and returns the JSON in the last line of its output.
OnGpus = Callable[..., Any]


@pytest.fixture(scope="session")
def build() -> Path:
    """Return the folder of the built libraries."""
    if BUILD not in os.environ:
        pytest.skip("no paper GPUs here: `make paper-gpu` makes their environment and runs these tests")
    return Path(os.environ[BUILD])


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return the folder that the processes on the test's GPUs share."""
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def on_gpus(build: Path, state: Path) -> OnGpus:
    """Return a function that runs Python code on GPUs that only this test uses."""

    def run(gpus: str, code: str, *, driver: int = 580, num_ranks: int = 1, **variables: str) -> Any:
        command = [sys.executable, "-c", code]
        if num_ranks > 1:
            script = state.with_name("program.py")
            script.write_text(code)
            options = ["--standalone", "--nproc-per-node", str(num_ranks)]
            command = [sys.executable, "-m", "torch.distributed.run", *options, str(script)]
        variables = {"OMP_NUM_THREADS": "1", **variables}
        found = os.environ | environment(gpus, build, state, driver=driver, **variables)
        done = subprocess.run(
            command, cwd=REPOSITORY, env=found, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        (state.parent / "stderr.txt").write_text(done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1])

    return run
