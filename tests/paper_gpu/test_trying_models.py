"""A trained model for which the GPU has too little memory."""

from __future__ import annotations

from tests.paper_gpu.conftest import OnGpus


def test_the_cpu_answers(on_gpus: OnGpus) -> None:
    code = """
import json, tempfile
from pathlib import Path
from tests.gpu.test_trying_models import Writer
writer = Writer(Path(tempfile.mkdtemp()))
on_cpu = list(writer.tokens(wants_gpu=False))
print(json.dumps([list(writer.tokens(wants_gpu=True)) == on_cpu, sorted(writer.on_gpu())]))
writer.processes.close()
"""
    assert on_gpus("T4x1", code, PAPER_MEMORY_MIB="2") == [True, []]
