"""Tests of the machine check without its jobs: limits, free resources, comparison and wording."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainers.check_machine import __main__ as check_machine
from trainers.check_machine.checks import all_reduce, devices, driver, training
from trainers.check_machine.checks.bench import Bench
from trainers.check_machine.checks.cancelling import CancellableWait
from trainers.check_machine.checks.devices import CheckDevices, GpusNow
from trainers.check_machine.checks.driver import Nvidia, Probe
from trainers.check_machine.checks.findings import Finding, Outcome, Value, compare
from trainers.machine import nvml
from trainers.machine.cuda_environment import Obstacle
from trainers.machine.nvml import VisibleGpu

FREE, DESKTOP = VisibleGpu(index=0, uuid="GPU-a", handle="0"), VisibleGpu(index=1, uuid="GPU-b", handle="1")
USED, BLIND = VisibleGpu(index=2, uuid="GPU-c", handle="2"), VisibleGpu(index=3, uuid="GPU-d", handle="3")
UNSEEN = VisibleGpu(index=4, uuid="GPU-e", handle="4")
PART = VisibleGpu(index=5, uuid="MIG-f", handle=None, is_part=True)
DIVIDED = VisibleGpu(index=6, uuid="GPU-g", handle="6", is_part=True)


class FakeNvml:
    """Simulated NVML: processes per GPU handle, and memory use."""

    NVMLError = RuntimeError
    nvmlMemory_v2 = 0x02000028  # noqa: N815

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802 - NVML's names
        if handle == "3":
            raise RuntimeError("Not Supported")
        return [SimpleNamespace(pid=77, usedGpuMemory=10**9)] if handle == "2" else []

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        if handle == "3":
            raise RuntimeError("Not Supported")
        return [SimpleNamespace(pid=88, usedGpuMemory=10**8)] if handle == "1" else []

    def nvmlSystemGetProcessName(self, pid: int) -> str:  # noqa: N802
        return "python"

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int = 1) -> Any:  # noqa: N802
        used = 30 * 10**9 if handle == "4" else 10**8
        reserved = 6 * 10**9  # above the threshold that indicates another user
        return SimpleNamespace(
            used=used if version == self.nvmlMemory_v2 else used + reserved, total=80 * 10**9
        )

    def nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:  # noqa: N802
        return int(handle == "6"), 0

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:  # noqa: N802
        return {"MIG-f": "9"}[handle]

    def nvmlDeviceGetIndex(self, handle: str) -> int:  # noqa: N802
        return int(handle)

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return "NVIDIA A30"

    def _nothing(self, *_: object) -> Any:
        raise RuntimeError("Not Supported")

    nvmlDeviceGetUtilizationRates = _nothing  # noqa: N815
    nvmlDeviceGetPowerUsage = nvmlDeviceGetTemperature = _nothing  # noqa: N815


@pytest.fixture
def patience() -> CancellableWait:
    return CancellableWait()


def use_gpus(monkeypatch: pytest.MonkeyPatch, *gpus: VisibleGpu) -> None:
    monkeypatch.setattr(nvml, "_nvml", FakeNvml)
    monkeypatch.setattr(nvml, "visible_gpus", lambda: list(gpus))


def test_only_gpus_that_nobody_computes_on_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, FREE, DESKTOP, USED, BLIND, UNSEEN, PART, DIVIDED)
    found = devices.sample()
    assert found.free == (FREE, DESKTOP), "a desktop leaves room"
    assert found.in_use == (
        "GPU 2 is in use",
        "GPU 3 does not report its users",
        "GPU 4 has memory in use by a process that is not visible to this program",
        "A MIG instance of GPU 9 (NVIDIA A30) cannot be queried",
        "GPU 6 is in MIG mode, but its instances are unknown",
    )
    on = devices.choose("auto", None, found, None)
    assert (on.kind, on.num_ranks, on.uuids) == ("cuda", 2, ("GPU-a", "GPU-b"))
    assert on.environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert "skipped: GPU 2 is in use" in on.description


def test_with_no_gpu_free_or_usable_ranks_are_on_the_cpu_and_it_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_gpus(monkeypatch, USED)
    on = devices.choose("auto", None, devices.sample(), None)
    assert (on.kind, on.num_ranks) == ("cpu", 2)
    assert on.description == "2 CPU ranks, because no GPU can be used: GPU 2 is in use"
    assert on.environment["CUDA_VISIBLE_DEVICES"] == "", "they see no GPU at all"
    broken = devices.choose("auto", None, GpusNow(free=(FREE,)), "the driver is too old")
    assert broken.description == "2 CPU ranks, because no GPU can be used: the driver is too old"
    assert devices.choose("auto", None, GpusNow(), None).description == "2 CPU ranks"
    with_one = devices.choose("auto", 3, GpusNow(free=(FREE,), in_use=("GPU 2 is in use",)), None)
    assert with_one.kind == "cpu"
    assert with_one.description.endswith(
        "that many were requested and only 1 GPU can be used: GPU 2 is in use"
    )
    with pytest.raises(ValueError, match="1 GPU requested, but only 0 can be used: GPU 2 is in use"):
        devices.choose("cuda", None, devices.sample(), None)


def test_a_gpu_that_was_granted_to_a_job_which_has_not_opened_it_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_gpus(monkeypatch, FREE, DESKTOP)
    found = devices.sample(("GPU-a", "GPU-elsewhere"))
    assert (found.free, found.in_use) == ((DESKTOP,), ("GPU 0 is reserved for another job",))


def test_gpus_to_be_left_alone_are_named_by_uuid(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["check_machine", "--runs-dir", str(tmp_path), "--except-gpus"]
    monkeypatch.setattr("sys.argv", [*command, "GPU-a, MIG-b,"])
    assert check_machine._options().except_gpus == ("GPU-a", "MIG-b")
    monkeypatch.setattr("sys.argv", [*command, "GPU-a,1"])
    with pytest.raises(SystemExit):
        check_machine._options()
    assert "'1' is not a UUID" in capsys.readouterr().err


def test_a_job_is_not_started_on_a_gpu_that_was_taken_but_waits_for_its_last_one_to_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, patience: CancellableWait
) -> None:
    on = CheckDevices(kind="cuda", num_ranks=1, uuids=("GPU-a",), description="")
    checks = Bench(tmp_path, on, patience, limit_s=1.0)
    looks = iter([GpusNow(in_use=("GPU 0 is in use",)), GpusNow(free=(FREE,))])
    monkeypatch.setattr(devices, "sample", lambda: next(looks))
    assert checks.run_guarded(lambda: Outcome.passed("It was started.")).state == "passed"
    assert next(looks, None) is None, "it looked again until its own last job had gone"

    monkeypatch.setattr("trainers.check_machine.checks.bench.TEARDOWN_S", 0.0)
    monkeypatch.setattr(devices, "sample", lambda: GpusNow(in_use=("GPU 0 is in use",)))
    found = checks.run_guarded(lambda: pytest.fail("a job was started on somebody's GPU"))
    assert (found.state, found.words) == ("not_checked", "Skipped: GPU 0 is in use.")


GOOD = Probe(torch="2.11.0+cu130", cuda="13.0", uuids=("GPU-a",))
OLD = Probe(torch="2.11.0", cuda="13.0", obstacle=Obstacle(reason="The driver is old.", remedy="A newer."))
ONE_CARD = Nvidia(num_cards=1, problem=None, driver="580.65", cuda="13.1")
NO_DRIVER = Nvidia(num_cards=1, problem="no_driver", driver=None, cuda=None)


@pytest.mark.parametrize(
    ("nvidia", "probe", "num_free", "fits", "words"),
    [
        (ONE_CARD, GOOD, 1, True, "Torch can use the free card"),
        (ONE_CARD, GOOD, 0, True, "are in use, so they were not checked"),
        (NO_DRIVER, GOOD, 0, False, "no driver responds"),
        (ONE_CARD, Probe(torch="2.11.0+cpu"), 0, False, "for CPUs only"),
        (ONE_CARD, OLD, 1, False, "The driver is old."),
    ],
)
def test_driver_wheel_and_card_are_held_against_each_other(
    nvidia: Nvidia, probe: Probe, num_free: int, fits: bool, words: str
) -> None:
    outcome, why_no_gpu = driver.judge(nvidia, probe, num_free=num_free)
    assert outcome.state == ("passed" if fits else "failed")
    assert words in f"{outcome.words} {outcome.detail}"
    assert (why_no_gpu is None) == fits
    assert bool(outcome.hint) != fits, "what does not fit says what to do"


@pytest.mark.parametrize(
    ("program", "torch", "error"),
    [
        ("print(1); warn('old'); print(ANSWER); print('bye', end=''); warn('odd exit')", "9.9", None),
        ("warn('first'); warn('ImportError: no torch'); sys.exit(1)", None, "ImportError: no torch"),
        ("print(ANSWER); sys.exit(3)", None, "it ended with exit code 3."),
        ("print('{}')", None, "it ended with exit code 0."),
    ],
)
def test_what_torch_says_is_found_among_warnings(
    program: str,
    torch: str | None,
    error: str | None,
    patience: CancellableWait,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = json.dumps({"torch": "9.9", "obstacle": None, "strategies": []})
    begin = f"import sys; ANSWER = {answer!r}; warn = lambda text: print(text, file=sys.stderr, flush=True); "
    monkeypatch.setattr(driver, "PROBE", ("-c", begin + program))
    found = driver.ask_torch({}, patience)
    assert (found.torch, found.error) == (torch, error)


def finding(state: Any = "passed", **values: float) -> Finding:
    measured = tuple(Value(name=name, value=value, unit="s") for name, value in values.items())
    return Finding(id="x", title="X", state=state, values=measured)


@pytest.mark.parametrize(
    ("now", "last", "words"),
    [
        (finding("passed", start=2.0), finding("passed", start=1.0), "start: 2.0 × slower"),
        (finding("passed", a=1.0, b=9.0), finding("passed", a=2.0, b=1.0), "b: 9.0 × slower"),
        (finding("failed"), finding("passed"), "passed last time"),
        (finding("passed"), finding("failed"), "failed last time"),
        (finding("passed"), None, ""),
    ],
)
def test_a_finding_is_compared_with_the_last_time(now: Finding, last: Finding | None, words: str) -> None:
    before = None if last is None else json.loads(json.dumps(last.to_json()))
    assert compare(now, before, are_times_comparable=True) == words


def test_more_bytes_a_second_are_faster_and_times_beside_runs_are_not_compared() -> None:
    now, last = (
        Finding(
            id="x", title="X", state="passed", values=(Value(name="writing", value=speed, unit="bytes/s"),)
        )
        for speed in (2e9, 1e9)
    )
    assert compare(now, last.to_json(), are_times_comparable=True) == "writing: 2.0 × faster"
    assert compare(now, last.to_json(), are_times_comparable=False) == "also passed last time"
    odd = last.to_json() | {"values": [{"name": "writing", "value": "much"}]}
    assert compare(now, odd, are_times_comparable=True) == "the same", "a damaged file costs no check"


def test_losses_are_compared_to_the_last_bit_and_strategies_within_rounding() -> None:
    unbroken = {1: 2.3, 2: 2.2, 3: 2.1, 4: None}
    assert training.first_difference(unbroken, [{1: 2.3, 2: 2.2}, {3: 2.1, 4: None, 9: 1.0}]) is None
    assert training.first_difference(unbroken, [{1: 2.3}, {3: 2.1000000000000005}]) == 3
    assert training.largest_difference({1: 2.3, 2: 2.25, 40: 0.0}, {**unbroken, 40: 9.0}) == pytest.approx(
        0.05
    )
    assert training.largest_difference({1: 2.3}, {}) is None


def line(size_bytes: int, **values: Any) -> dict[str, Any]:
    usual = {"backend": "gloo", "num_ranks": 2, "time_s": 0.1, "bus_bytes_per_s": 5e8}
    return {**usual, "size_bytes": size_bytes, **values}


def test_measured_all_reduces_hold_and_whatever_went_wrong_does_not() -> None:
    good = all_reduce.judge([line(1_000, time_s=2e-4), line(66_000_000)], 0, "", "")
    assert good.state == "passed" and "to the last bit" in good.words
    assert [value.value for value in good.values] == [5e8, 2e-4]
    failed = all_reduce.judge([line(1_000), {"error": "NCCL error", "rank": 1}], 1, "log", "do")
    assert (failed.state, failed.hint, failed.log) == ("failed", "do", "log")
    assert (failed.words, failed.detail) == ("The all-reduce failed on rank 1:", "NCCL error")
    assert all_reduce.judge([], -9, "", "").state == "failed"
    assert all_reduce.judge([], 0, "", "").state == "failed", "nothing measured is nothing passed"
