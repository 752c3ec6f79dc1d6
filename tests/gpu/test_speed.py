"""The checks of benchmarks/gpu, up to ten minutes each: speed, watching, synchronization, checkpoints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import CHECKS
from benchmarks.gpu.checks import SMOKE
from tests.gpu.place import Place
from tests.harness import run_to_end
from trainers.machine import nvml

WITHIN_S = 600.0
GIB = 2**30
# Least memory, and batch sizes of GPT (1,024 tokens) and ResNet: searching for the largest takes long.
BATCHES = ((70 * GIB, 32, 1024), (20 * GIB, 8, 256), (0, 2, 64))


def options(place: Place) -> list[str]:
    """Return options for a few short rounds, with a batch size that fits."""
    if not place.is_gpu:
        return ["--device", "cpu", "--tiny"]
    total = nvml.read_gpu(nvml.gpu_handle(place.uuids[0])).memory_total_bytes or 0
    gpt, resnet = next((gpt, resnet) for least, gpt, resnet in BATCHES if total >= least)
    return ["--rounds", "3", "--seconds", "15", "--gpt-batch", str(gpt), "--resnet-batch", str(resnet)]


@pytest.mark.real_gpu("it measures speed")
@pytest.mark.parametrize("check", CHECKS)
def test_check_meets_its_target(place: Place, tmp_path: Path, check: str) -> None:
    """`checkpoint` verifies that a save blocks training for at most 1.2 copies of the saved data."""
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--checks", check, "--json", str(out), *options(place)]
    _, said = run_to_end(command, WITHIN_S)
    said = said[-5000:]
    assert out.exists(), said
    found = json.loads(out.read_text(encoding="utf-8"))["checks"][check]
    assert found["verdict"] == ("met" if place.is_gpu else SMOKE), said
