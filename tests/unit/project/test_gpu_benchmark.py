"""The check of speed on a GPU, in its parts: what it concludes from rates, traces and memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import bare, cards, cases, checks, copying, filling, job, looks, rank, traces
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.job import Window
from trainers import registry
from trainers.data.dataset import LANGUAGE_MODELLING, DataSpec
from trainers.job import Job
from trainers.models.gpt import SHAPES
from trainers.registry import ModelOptions


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA H200", 989.0),
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H20", None),
        ("CPU", None),
    ],
)
def test_a_card_is_known_by_all_the_words_of_its_name(card: str, peak: float | None) -> None:
    assert cards.peak_tflops(card) == peak


def test_flop_of_a_gpt_are_those_of_the_well_known_formula() -> None:
    """6 for each weight of a matrix and token, and 12 x layers x length x width for attention (PaLM, B)."""
    registry.discover_all()
    length, vocabulary, shape = 32, 50, SHAPES["small"]
    spec = text_spec(vocabulary, length)
    weights = shape.num_layers * 12 * shape.width**2 + shape.width * vocabulary
    expected = length * (6 * weights + 12 * shape.num_layers * length * shape.width)
    assert cards.flop_per_sample("gpt", "small", spec) == expected


def test_the_gpt_of_the_check_has_about_124_million_parameters() -> None:
    registry.discover_all()
    with torch.device("meta"):
        network = registry.models()["gpt"].build(text_spec(24_576, 1024), ModelOptions(size="124m"))
    assert sum(weight.numel() for weight in network.parameters()) == pytest.approx(124e6, rel=0.01)


def text_spec(vocabulary_size: int, length: int) -> DataSpec:
    return DataSpec(
        task=LANGUAGE_MODELLING,
        input_shape=(length,),
        num_classes=vocabulary_size,
        class_names=(),
        num_train=1,
        num_validation=1,
        sample_unit="passages",
        description="",
        source="",
        vocabulary_size=vocabulary_size,
    )


def test_utilisation_is_a_share_of_the_peak() -> None:
    assert cards.utilisation(100.0, int(4.945e12), "NVIDIA H200") == pytest.approx(0.5)
    assert cards.utilisation(100.0, 10**12, "a card nobody knows") is None


@pytest.mark.parametrize(
    ("most_that_fits", "bytes_each", "batch_size", "why"),
    [(63, 0.01, 32, "out of memory"), (1000, 0.05, 32, "90% of the memory"), (1000, 0.001, 256, "not tried")],
)
def test_the_batch_is_doubled_until_the_card_is_full(
    most_that_fits: int, bytes_each: float, batch_size: int, why: str
) -> None:
    def share(batch: int) -> float | None:
        return None if batch > most_that_fits else min(1.0, batch * bytes_each)

    found = filling.fill(share, 8, 256)
    assert found.batch_size == batch_size
    assert why in found.why


def test_a_card_on_which_nothing_fits_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="not even a batch of 8"):
        filling.fill(lambda _: None, 8, 256)


def a_range(name: str, began: float, duration: float) -> dict[str, Any]:
    return {"cat": "user_annotation", "name": name, "ts": began, "dur": duration}


def a_call(name: str, moment: float, correlation: int = 0) -> dict[str, Any]:
    return {"cat": "cuda_runtime", "name": name, "ts": moment, "args": {"correlation": correlation}}


def test_waits_are_counted_in_the_step_that_asked_for_them() -> None:
    trace = [
        a_range(traces.QUIET, 100, 50),
        a_range(traces.REPORTED, 200, 50),
        a_range("something else", 0, 1000),
        a_call("cudaLaunchKernel", 110),
        a_call("cudaStreamSynchronize", 120),
        a_call("cudaStreamSynchronize", 170),  # between the steps
        a_call("cudaDeviceSynchronize", 210),
        a_call("cudaMemcpyAsync", 130, correlation=7),
        a_call("cudaMemcpyAsync", 140, correlation=8),
        # The GPU comes to it while the host is in the next step.
        {
            "cat": "gpu_memcpy",
            "name": "Memcpy DtoH (Device -> Pinned)",
            "ts": 220,
            "args": {"correlation": 7},
        },
        {
            "cat": "gpu_memcpy",
            "name": "Memcpy HtoD (Pinned -> Device)",
            "ts": 225,
            "args": {"correlation": 8},
        },
    ]
    found = traces.count_waits(trace)
    assert found[traces.QUIET].num_steps == 1
    assert found[traces.QUIET].calls == {"cudaStreamSynchronize": 1, traces.TO_HOST: 1}
    assert found[traces.REPORTED].calls == {"cudaDeviceSynchronize": 1}
    as_text = json.dumps({name: waits.as_json() for name, waits in found.items()})
    assert {name: traces.Waits(**fields) for name, fields in json.loads(as_text).items()} == found


def test_steps_are_told_apart_in_a_real_trace(tmp_path: Path) -> None:
    reports = iter([False, False, True, False, False, True])
    fake = SimpleNamespace(
        world=SimpleNamespace(device=torch.device("cpu")),
        meter=SimpleNamespace(is_report_due=lambda: next(reports), has_unread_report=False),
    )
    found: dict[str, Any] = {}
    go_on = looks.stepped(
        looks.waits(cast(Job, fake), warm_up=2, num_steps=4, trace=str(tmp_path / "trace.json")),
        found.update,
    )
    for _ in range(9):
        go_on()
        torch.ones(4, 4).mm(torch.ones(4, 4))
    assert found[traces.QUIET]["num_steps"] == 4
    assert found[traces.REPORTED]["num_steps"] == 2, (
        "four steps were asked for: it goes on until there are two"
    )


def test_a_trace_in_which_nothing_is_reported_ends_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "MOST_TRACED_STEPS", 3)
    fake = SimpleNamespace(
        world=SimpleNamespace(device=torch.device("cpu")),
        meter=SimpleNamespace(is_report_due=lambda: False, has_unread_report=False),
    )
    go_on = looks.stepped(
        looks.waits(cast(Job, fake), warm_up=0, num_steps=2, trace=str(tmp_path / "trace.json")), print
    )
    for _ in range(3):
        go_on()
    with pytest.raises(RuntimeError, match="of 3 traced steps 0 had a report"):
        go_on()


def a_wait_after(num_launches: int, name: str = "cudaEventSynchronize") -> dict[str, traces.Waits]:
    """Return what a made-up trace says: a quiet step of ten launches, and a wait after so many."""
    quiet = [a_call("cudaLaunchKernel", 100 + number) for number in range(10)]
    later = [a_call("cudaLaunchKernel", 200 + number) for number in range(num_launches)]
    to_host = {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "ts": 300}
    return traces.count_waits(
        [
            a_range(traces.QUIET, 100, 50),
            a_range(traces.REPORTED, 190, 50),
            *quiet,
            a_call("cudaMemcpyAsync", 195, correlation=7),
            to_host | {"args": {"correlation": 7}},
            *later,
            a_call(name, 230),
        ]
    )


def test_a_report_may_be_waited_for_only_while_the_gpu_has_a_step_to_do() -> None:
    assert traces.waits_with_work_ahead(a_wait_after(9))
    assert not traces.waits_with_work_ahead(a_wait_after(2)), "too little is handed out"
    assert not traces.waits_with_work_ahead(a_wait_after(9, "cudaDeviceSynchronize")), "for all there is"


def a_step(number: int, reported_at: float, step_time_s: float = 0.4) -> dict[str, Any]:
    return {
        "kind": "step",
        "step": number,
        "time_unix_s": reported_at,
        "step_time_s": step_time_s,
        "loss": 1.0,
    }


def test_rates_count_whole_reports_after_the_warm_up() -> None:
    window = Window(warm_up=2, seconds=2.0, waits_for_sample=False)
    steps = [a_step(1, 1.0), a_step(2, 2.0), a_step(3, 3.0), a_step(4, 4.0), a_step(5, 4.0)]
    assert job.rates(steps, window, 10) is None
    found = job.rates([*steps, a_step(6, 5.0)], window, 10)
    assert found is not None
    assert found.samples_per_s == pytest.approx(3 * 10 / 2.0)
    assert found.samples_per_s_in_steps == pytest.approx(10 / 0.4)


def test_rates_wait_for_what_the_model_shows_first() -> None:
    window = Window(warm_up=0, seconds=1.0, waits_for_sample=True)
    steps = [a_step(number, float(number)) for number in range(1, 6)]
    assert job.rates(steps, window, 1) is None
    sample = {"kind": "sample", "time_unix_s": 3.5}
    found = job.rates([*steps[:3], sample, *steps[3:]], window, 1)
    assert found is not None
    assert found.samples_per_s == 1.0


def test_a_loss_that_is_no_number_is_no_speed() -> None:
    steps = [a_step(1, 1.0), {**a_step(2, 3.0), "loss": float("nan")}]
    with pytest.raises(ValueError, match="no number"):
        job.rates(steps, Window(warm_up=0, seconds=1.0, waits_for_sample=False), 1)


def test_without_a_gpu_it_says_so_and_passes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["gpu", "--json", str(out)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu.main()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert said[0].startswith("no GPU here: ")
    assert json.loads(out.read_text()) == {"skipped": said[0]}


def test_a_check_that_fails_is_told_as_failed() -> None:
    def check(_: Bench) -> dict[str, Any]:
        raise RuntimeError("the run did not come to its end")

    found = gpu.told(check, cast(Bench, None))
    assert found == {"verdict": gpu.FAILED, "error": "RuntimeError: the run did not come to its end"}


@pytest.mark.parametrize(
    ("error", "is_meant"),
    [
        (torch.OutOfMemoryError("CUDA tried to allocate"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("a shape does not fit"), False),
    ],
)
def test_want_of_memory_is_told_from_other_errors(error: RuntimeError, is_meant: bool) -> None:
    assert rank.is_out_of_memory(error) == is_meant


def test_a_gpu_that_torch_cannot_use_is_named() -> None:
    assert "this machine has 2" in str(gpu.why_skipped("cuda", False, 2))
    assert gpu.why_skipped("cuda", True, 2) is None
    assert gpu.why_skipped("cpu", False, 0) is None


@pytest.mark.parametrize(
    ("device", "is_tiny", "is_met", "verdict"),
    [
        ("cuda", False, True, "met"),
        ("cuda", False, False, "missed"),
        ("cuda", True, True, checks.SMOKE),
        ("cpu", True, True, checks.SMOKE),
    ],
)
def test_only_what_ran_on_a_gpu_in_full_size_is_judged(
    device: str, is_tiny: bool, is_met: bool, verdict: str
) -> None:
    options = SimpleNamespace(device=device, is_tiny=is_tiny)
    assert checks._verdict(cast(Bench, options), is_met=is_met) == verdict


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_the_bare_loop_learns(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared_elsewhere: None
) -> None:
    case = cases.TINY_CASES[name]
    data = case.write(tmp_path)
    if name == "gpt":
        data.write_text("abcdefgh" * 1000)  # of characters drawn at random there is nothing to learn
    monkeypatch.setattr(cases, "LEARNING_RATE", 0.01)
    step = bare.step_of(case, data, 8, torch.device("cpu"), None)
    losses = [step().item() for _ in range(12)]
    assert min(losses[-3:]) < losses[0]


@pytest.fixture
def prepared_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prepared").mkdir()
    monkeypatch.setenv("TRAINERS_CACHE", str(tmp_path / "prepared"))


def test_copies_are_timed_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "copies.json"
    arguments = ["copying", "--bytes", "100000", "--device", "cpu", "--times", "3", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    copying.main()
    took_s = json.loads(out.read_text())
    assert len(took_s) == 3
    assert min(took_s) > 0
