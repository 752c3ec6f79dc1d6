"""Two GPUs or more: placement of processes, resuming on fewer, blame for hangs, overlap, memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.misbehaving import misbehaving
from tests.faults.test_bad_plugin import CopyWith, copy_with
from tests.faults.test_hang import LIMIT_S, dump_of
from tests.gpu.clicks import served
from tests.gpu.place import Place, somebody_on
from tests.gpu.probed import overlapped, run_probed
from tests.harness import ANSWER_TIMEOUT_S, Launcher, LiveRun, wait_until
from trainers.contract.heartbeats import BUSY_FACTOR
from trainers.machine import nvml, threads

__all__ = ["copy_with"]

NEVER = 10**9
# CPU ranks only show that a test works, so they use the smallest model.
MLP = {"dataset": "digits", "model": "mlp", "batch_size": 16, "num_epochs": 100_000}
GPT = {"dataset": "austen", "model": "gpt", "batch_size": 16, "num_epochs": 100_000}
QUIET = {"eval_every_steps": NEVER, "checkpoint_every_steps": NEVER, "keep_best_checkpoint": False}
STRATEGIES = {
    "ddp": 2,
    "zero1": 2,
    "zero2": 2,
    "zero3": 2,
    "tensor": 2,
    "pipeline": 2,
    "data_tensor": 4,
}
# Strategies with parameters that every rank holds completely; in the others each rank holds only its shard.
REPLICATED = ("ddp", "zero1", "tensor")
# Half as many ranks sum in another order.
ON_HALF = 2e-3
# On GPUs a hang is reported within the documented time, plus some seconds for stacks and termination.
HANG_S = LIMIT_S + 60.0
# A kernel that never ends looks like a long step; only silence for many times the limit reveals it.
SPIN_S = BUSY_FACTOR * LIMIT_S + 60.0
# The longest time for which one call lets a kernel spin; the run is terminated long before.
SPIN = '__import__("torch").cuda._sleep(2**62)'
SLEEP = "time.sleep(3600)"


def on_many(chosen: str, strategies: Iterable[str]) -> list[Any]:
    """Return parameters, of which `chosen` also runs on more than two simulated GPUs."""
    marks = {chosen: [pytest.mark.many_gpus]}
    return [pytest.param(strategy, marks=marks.get(strategy, [])) for strategy in strategies]


def need(place: Place, num: int) -> None:
    if place.is_gpu and place.num < num:
        pytest.skip(f"torch sees {place.num} GPUs here, and this needs {num}")


@pytest.mark.many_gpus
def test_a_run_is_on_the_gpu_it_was_granted_while_the_first_is_somebody_else_s(
    seen: Place, two_gpus: Place, page_packages: None, tmp_path: Path
) -> None:
    """With standby ranks: the run uses the granted GPU and does not touch GPU 0."""
    first = nvml.visible_gpus()[0]  # the page prefers the free GPU that NVML counts first
    with somebody_on(first.uuid) as other, served(tmp_path / "runs") as page:
        told = "the driver naming who is on the first GPU"
        wait_until(told, lambda: other in seen.users(first.uuid), ANSWER_TIMEOUT_S)
        page.open_form(1)
        page.wait_for_template()
        live = page.start(**GPT, **QUIET, nproc_per_node=1, device="cuda")
        assert live.answer["place"] is None, live.answer
        live.wait_for_step(5)
        (granted,) = live.granted()
        (rank,) = live.ranks().values()
        assert granted != first.uuid
        assert seen.gpus_of(rank) == {granted}
        (device,) = live.events("devices")[-1]["devices"]
        assert device["index"] != first.index, "what the page shows is the GPU that is used"
        live.checkpoint()
        assert seen.gpus_of(rank) == {granted}
        live.stop()


@pytest.mark.parametrize("strategy", on_many("data_tensor", STRATEGIES))
def test_each_process_is_on_exactly_one_gpu(
    launcher: Launcher, seen: Place, two: Place, strategy: str
) -> None:
    """Also during a checkpoint, an evaluation and a sample: no thread opens a context on GPU 0."""
    num_ranks = STRATEGIES[strategy]
    need(two, num_ranks)
    values = GPT | {"nproc_per_node": num_ranks, "strategy": strategy, "device": two.device}
    live = launcher.start(**values, eval_every_steps=20, checkpoint_every_steps=10)
    live.wait_for("eval")
    live.wait_for("checkpoint")
    assert live.ask("checkpoint")["accepted"]
    ranks = live.ranks()
    assert sorted(ranks) == list(range(num_ranks))
    found = {rank: two.gpus_of(pid) for rank, pid in ranks.items()}
    assert found == {rank: {two.uuids[rank]} if two.is_gpu else set() for rank in ranks}
    assert not seen.users() & {live.torchrun().pid, live.supervisor.pid}
    live.ask("stop", save=False)
    assert live.wait_for_end().state == "stopped", live.story()


@pytest.mark.parametrize("strategy", on_many("zero3", ["ddp", "zero1", "zero2", "zero3"]))
def test_resume_on_the_same_number_and_on_half(
    two: Place, page_packages: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """The same bits on the same number of ranks; on half, with the same global batch, similar losses."""
    monkeypatch.setenv(threads.GIVEN, "1")  # other free cores at a start would round sums in another way
    num_ranks = 2 * (two.num // 2)
    config = (GPT if two.is_fast else MLP) | QUIET
    config |= {"nproc_per_node": num_ranks, "strategy": strategy, "device": two.device}
    config |= {"deterministic": True, "max_steps": 60, "checkpoint_every_steps": 30}
    config |= {"keep_last_checkpoints": None}
    with served(tmp_path / "runs", "--no-standby") as page:
        live = page.start(**config)
        live.wait_for_end("finished")
        whole = live.losses()
        found: list[dict[int, float]] = []
        for ranks in (num_ranks, num_ranks // 2):
            before = len(live.events("step"))
            live.resume_to_end(30, ranks, "keep")
            found.append({event["step"]: event["loss"] for event in live.events("step")[before:]})
    same, half = found
    rest = {step: loss for step, loss in whole.items() if step > 30}
    assert same == rest
    assert half == pytest.approx(rest, abs=ON_HALF)


def hanging(copy: CopyWith, place: Place, statement: str) -> LiveRun:
    """Start a run whose rank 1 executes a statement at its fifth step."""
    launcher = copy(misbehaving(statement))
    return launcher.start(model="misbehaves", hang_timeout_s=LIMIT_S, device=place.device)


def test_the_rank_whose_kernel_never_ends_is_named(copy_with: CopyWith, two_gpus: Place) -> None:
    """All hosts have enqueued the collective; only rank 1's GPU has not finished its previous work."""
    live = hanging(copy_with, two_gpus, SPIN)
    live.wait_for("step", lambda event: event["step"] >= 1)
    status = live.is_over_within(SPIN_S)
    assert status.state == "failed", live.story()
    (error,) = live.events("error")
    assert (error["code"], error["rank"]) == ("hang", 1), error
    assert "the GPU of rank 1 never finished" in error["message"]


def test_a_rank_that_blocks_on_a_full_launch_queue_is_not_blamed(
    copy_with: CopyWith, two_gpus: Place
) -> None:
    """Rank 0 enqueues more of the next step than its GPU's queue holds, behind the waiting all-reduce."""
    launches = (
        'if os.environ["RANK"] == "0" and self.num_steps > 15:\n'
        "            for _ in range(5000):\n"
        "                x = x + x\n"
        "        return self.network(x)"
    )
    # In the first ten steps and in every hundredth, DDP synchronizes to measure the GPU, so no queue fills.
    behaves = misbehaving(SLEEP, step=15).items()
    files = {name: text.replace("return self.network(x)", launches) for name, text in behaves}
    live = copy_with(files).start(model="misbehaves", hang_timeout_s=LIMIT_S, device="cuda")
    live.wait_for("step", lambda event: event["step"] >= 1)
    assert live.is_over_within(HANG_S).state == "failed", live.story()
    (error,) = live.events("error")
    assert (error["code"], error["rank"]) == ("hang", 1), error
    assert "rank 1 is stuck, and the others wait" in error["message"], error
    of_rank_0, _of_rank_1 = dump_of(live).split("===== rank 1")
    assert "misbehaves.py" in of_rank_0, f"it blocks where it launches: {of_rank_0}"


def test_a_trace_tells_products_computed_while_gradients_travel() -> None:
    """Tests the counting on a synthetic trace: one of three products overlaps with a collective."""
    kernels = [("ncclDevKernel_AllReduce", 10, 5), ("sm90_gemm", 8, 1), ("nvjet_h", 12, 10), ("gemm", 15, 1)]
    trace = [{"cat": "kernel", "name": name, "ts": ts, "dur": dur} for name, ts, dur in kernels]
    trace.append({"cat": "cpu_op", "name": "aten::gemm", "ts": 11, "dur": 2})
    assert overlapped(trace) == {"num_collectives": 1, "num_products": 3, "num_products_meanwhile": 1}


@pytest.mark.real_gpu("it reads kernels from a trace of CUPTI")
def test_compiled_ddp_computes_while_gradients_travel(launcher: Launcher, two: Place) -> None:
    """If DDP wraps the model before compilation, the graph is split at its buckets and backward overlaps."""
    values = GPT | QUIET | {"nproc_per_node": 2, "device": two.device, "max_steps": 30}
    values |= {"model_size": "medium" if two.is_gpu else "small", "compile": two.is_gpu, "bucket_cap_mb": 1}
    for found in run_probed(launcher.runs_dir, "overlap", **values):
        assert found["step"] == 30
        if two.is_gpu:
            assert found["num_collectives"] >= 30
            assert found["num_products_meanwhile"] >= 30, f"at least one a step: {found}"


def test_zero3_needs_less_memory_in_bf16_than_in_fp32(launcher: Launcher, two_gpus: Place) -> None:
    """Layers are gathered in bf16 and freed; no bf16 copy of the complete model exists in addition."""
    peaks = {}
    # Memory is also exact on simulated GPUs, from the second step.
    size = {"model_size": "124m", "sequence_length": 256, "batch_size": 8}
    if not two_gpus.is_fast:
        size = {"model_size": "medium", "sequence_length": 64, "batch_size": 2}
    num_steps = 20 if two_gpus.is_fast else 3
    for precision in ("fp32", "bf16"):
        values = GPT | QUIET | {"nproc_per_node": 2, "device": "cuda", "strategy": "zero3"}
        live = launcher.start(**values | size, precision=precision)
        live.wait_for_step(num_steps)
        told = live.wait_for("ranks", lambda event: event["ranks"][0]["step"] >= num_steps)["ranks"]
        peaks[precision] = max(rank["peak_memory_bytes"] for rank in told)
        live.ask("stop", save=False)
        assert live.wait_for_end().state == "stopped", live.story()
    assert peaks["bf16"] < peaks["fp32"], peaks


@pytest.mark.parametrize("strategy", REPLICATED)
def test_replicated_weights_have_the_same_bits_after_many_steps(
    launcher: Launcher, two: Place, strategy: str
) -> None:
    """After 500 steps on GPUs the hashes of all replicated parameters are equal."""
    num_steps = 500 if two.is_fast else 20
    values = (
        GPT | QUIET | {"nproc_per_node": STRATEGIES[strategy], "strategy": strategy, "device": two.device}
    )
    first, *others = run_probed(launcher.runs_dir, "weights", **values, max_steps=num_steps)
    assert first["step"] == num_steps and first["hashes"]
    for other in others:
        different = [name for name, value in first["hashes"].items() if other["hashes"].get(name) != value]
        assert not different
        assert other["hashes"].keys() == first["hashes"].keys()


@pytest.mark.many_gpus
def test_groups_of_some_ranks_wait_as_long_as_the_job(launcher: Launcher, two: Place) -> None:
    """Each rank has two groups, one per dimension. Torch's default is 10 minutes (NCCL) or 30 (gloo)."""
    need(two, 4)
    values = GPT | QUIET | {"nproc_per_node": 4, "strategy": "data_tensor", "device": two.device}
    for found in run_probed(launcher.runs_dir, "timeouts", **values, max_steps=2):
        assert found["step"] == 2
        assert found["groups_s"] == [found["job_s"]] * 2, found
