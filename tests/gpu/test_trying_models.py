"""A trained model answers on a GPU while no run needs it, and on the CPU as soon as one does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_gui.background.torch_template import TorchTemplate
from ddp_gui.run.model_process import WANTS_GPU, ModelProcesses
from tests.gpu.place import Place
from tests.harness import wait_until
from tests.unit.trained_runs import leave_trained_run
from trainers.machine import nvml

pytestmark = pytest.mark.gpu

OPTIONS = {"temperature": 1.0, "top_k": None, "num_tokens": 12, "seed": 1}
WITHIN_S = 60.0


class Writer:
    """A language model and the processes that run it; `free` are the UUIDs of the free GPUs."""

    def __init__(self, runs_dir: Path) -> None:
        self.handle = nvml.visible_gpus()[0].handle
        self.free = [nvml.visible_gpus()[0].uuid]
        self.processes = ModelProcesses(TorchTemplate(), with_free_gpus=lambda use: use(self.free))
        run, _, _ = leave_trained_run(runs_dir, "austen", "gpt")
        self._question = {"run_dir": str(run.path), "step": 1, "do": "generate", "prompt": "It"}

    def tokens(self, *, wants_gpu: bool) -> Iterator[str]:
        """Yield the tokens of a text."""
        question = self._question | {"options": OPTIONS, WANTS_GPU: wants_gpu}
        for answer in self.processes.stream("", question):
            if "token" in answer:
                yield answer["token"]["text"]

    def on_gpu(self) -> set[int]:
        """Return the processes on the GPU, as the driver reports them."""
        return {process.pid for process in nvml.gpu_processes(self.handle) or []}


@pytest.fixture
def writer(gpu: Place, seen: Place, tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path)
    yield made
    made.processes.close()


def test_a_text_begun_on_a_gpu_is_continued_on_the_cpu_when_a_run_gets_the_gpu(writer: Writer) -> None:
    before = writer.on_gpu()
    on_cpu = list(writer.tokens(wants_gpu=False))
    assert writer.on_gpu() == before
    assert list(writer.tokens(wants_gpu=True)) == on_cpu
    [pid] = writer.processes.processes()
    assert writer.on_gpu() == {*before, pid}
    begun = writer.tokens(wants_gpu=True)
    text = [next(begun)]
    writer.processes.reclaim_gpus(writer.free)
    wait_until("its end", lambda: writer.on_gpu() == before, WITHIN_S)
    assert [*text, *begun] == on_cpu
    assert list(writer.tokens(wants_gpu=True)) == on_cpu
    assert writer.on_gpu() == before and writer.processes.processes() == {}
