"""Trained models answer on a GPU that no run needs, and on the CPU as soon as one needs it."""

from __future__ import annotations

from tests.paper_gpu.conftest import OnGpus

# `ask` answers a question as the page does; `on_gpu` lists the processes that NVML sees on the GPU.
PREPARED = """
import json, tempfile
from pathlib import Path
from ddp_gui.background.torch_template import TorchTemplate
from ddp_gui.run.model_process import WANTS_GPU, ModelProcesses
from tests.harness import wait_until
from tests.unit.trained_runs import leave_trained_run
from trainers.machine import hardware
runs = Path(tempfile.mkdtemp())
run = leave_trained_run(runs, "austen", "gpt")[0]
[gpu] = hardware.visible_gpus()
free = [gpu.uuid]
made = ModelProcesses(TorchTemplate(), with_free_gpus=lambda use: use(free))
options = {"temperature": 1.0, "top_k": None, "num_tokens": 12, "seed": 1}
question = {"run_dir": str(run.path), "step": 1, "do": "generate", "prompt": "It", "options": options}

def tokens(wants_gpu):
    for answer in made.stream("", question | {WANTS_GPU: wants_gpu}):
        if "token" in answer:
            yield answer["token"]["text"]

def on_gpu():
    return [process.pid for process in hardware.gpu_processes(gpu.handle)]

"""


def test_a_text_that_a_gpu_has_begun_is_continued_on_the_cpu_when_a_run_gets_the_gpu(on_gpus: OnGpus) -> None:
    code = """
on_cpu = list(tokens(False))
assert on_gpu() == []
assert list(tokens(True)) == on_cpu
assert on_gpu() == list(made.processes()) and len(on_gpu()) == 1
begun = tokens(True)
text = [next(begun)]
made.take_back(free)
wait_until("its end", lambda: not on_gpu(), 30.0)
text += begun
assert list(tokens(True)) == on_cpu, "no GPU is used for some time"
print(json.dumps([text == on_cpu, on_gpu(), list(made.processes())]))
made.close()
"""
    assert on_gpus("T4x1", PREPARED + code) == [True, [], []]


def test_a_process_leaves_a_gpu_that_is_not_free_any_more(on_gpus: OnGpus) -> None:
    code = """
on_cpu = list(tokens(False))
list(tokens(True))
[pid] = on_gpu()
free.clear()
print(json.dumps([list(tokens(True)) == on_cpu, on_gpu()]))
made.close()
"""
    assert on_gpus("T4x1", PREPARED + code) == [True, []]


def test_without_enough_memory_on_the_gpu_the_cpu_answers(on_gpus: OnGpus) -> None:
    code = """
on_cpu = list(tokens(False))
print(json.dumps([list(tokens(True)) == on_cpu, on_gpu()]))
made.close()
"""
    assert on_gpus("T4x1", PREPARED + code, PAPER_MEMORY_MIB="2") == [True, []]
