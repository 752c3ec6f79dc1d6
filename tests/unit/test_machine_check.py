"""The check of the machine without its jobs: what fits, what is free, comparison, words, and what is kept."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainers.contract import config as config_module
from trainers.contract import hardware, private_files
from trainers.contract.check_files import MOST_KEPT, CheckFiles
from trainers.contract.cuda_environment import Obstacle
from trainers.contract.hardware import VisibleGpu
from trainers.machine_check import all_reduce, configs, devices, disk, driver, strategies, table, training
from trainers.machine_check.bench import Bench
from trainers.machine_check.cancelling import CancelledError, Patience, TooLateError
from trainers.machine_check.check import Check, Wanted, does_a_run_go_on
from trainers.machine_check.devices import Devices, GpusNow
from trainers.machine_check.driver import Nvidia, Probe
from trainers.machine_check.findings import Finding, Value, all_passed, compare, summary
from trainers.machine_check.outcome import Outcome
from trainers.machine_check.scratch import scratch

FREE, DESKTOP = VisibleGpu(index=0, uuid="GPU-a", handle="0"), VisibleGpu(index=1, uuid="GPU-b", handle="1")
USED, BLIND = VisibleGpu(index=2, uuid="GPU-c", handle="2"), VisibleGpu(index=3, uuid="GPU-d", handle="3")
UNSEEN, PART = VisibleGpu(index=4, uuid="GPU-e", handle="4"), VisibleGpu(index=5, uuid="MIG-f", handle=None)
ON_CPU = Devices(kind="cpu", num_ranks=2, words="2 CPU ranks")


class FakeNvml:
    """GPUs as a made-up driver tells of them, for `hardware`: by handle who is on it, and its memory."""

    NVMLError = RuntimeError
    NVML_TEMPERATURE_GPU = 0

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

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(used=30 * 10**9 if handle == "4" else 10**8, total=80 * 10**9)

    def _nothing(self, *_: object) -> Any:
        raise RuntimeError("Not Supported")

    nvmlDeviceGetName = nvmlDeviceGetUtilizationRates = _nothing  # noqa: N815
    nvmlDeviceGetPowerUsage = nvmlDeviceGetTemperature = _nothing  # noqa: N815


@pytest.fixture
def patience() -> Patience:
    return Patience(threading.Event())


def use_gpus(monkeypatch: pytest.MonkeyPatch, *gpus: VisibleGpu) -> None:
    monkeypatch.setattr(hardware, "_nvml", FakeNvml)
    monkeypatch.setattr(hardware, "visible_gpus", lambda: list(gpus))


def test_only_gpus_that_nobody_computes_on_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, FREE, DESKTOP, USED, BLIND, UNSEEN, PART)
    found = devices.look()
    assert found.free == (FREE, DESKTOP), "a desktop leaves room"
    assert found.in_use == (
        "GPU 2 is in use",
        "GPU 3 does not say who uses it",
        "GPU 4 has memory in use by somebody who cannot be seen from here",
        "GPU 5 is a part of one, of which cannot be seen who uses it",
    )
    on = devices.choose("auto", None, found, None)
    assert (on.kind, on.num_ranks, on.uuids) == ("cuda", 2, ("GPU-a", "GPU-b"))
    assert on.environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert "left alone: GPU 2 is in use" in on.words


def test_with_no_gpu_free_or_usable_ranks_are_on_the_cpu_and_it_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_gpus(monkeypatch, USED)
    on = devices.choose("auto", None, devices.look(), None)
    assert (on.kind, on.num_ranks) == ("cpu", 2)
    assert on.words == "2 CPU ranks, because no GPU can be used: GPU 2 is in use"
    assert on.environment["CUDA_VISIBLE_DEVICES"] == "", "they see no GPU at all"
    broken = devices.choose("auto", None, GpusNow(free=(FREE,)), "the driver is too old")
    assert (broken.kind, broken.words) == (
        "cpu",
        "2 CPU ranks, because no GPU can be used: the driver is too old",
    )
    assert devices.choose("auto", None, GpusNow(), None).words == "2 CPU ranks"
    assert devices.choose("auto", 3, GpusNow(free=(FREE,)), None).kind == "cpu", "more ranks than GPUs"
    with pytest.raises(ValueError, match="1 GPU wanted, but 0 can be used: GPU 2 is in use"):
        devices.choose("cuda", None, devices.look(), None)


def test_a_gpu_that_somebody_took_between_two_jobs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    on = Devices(kind="cuda", num_ranks=1, uuids=("GPU-a",), words="")
    assert devices.taken_meanwhile(on, GpusNow(free=(FREE,))) is None
    assert devices.taken_meanwhile(on, GpusNow(in_use=("GPU 0 is in use",))) == "GPU 0 is in use"
    assert devices.taken_meanwhile(on, GpusNow()) == "a GPU of this check does not answer any more"


def test_a_job_is_not_started_on_a_gpu_that_was_taken_but_waits_for_its_last_one_to_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, patience: Patience
) -> None:
    on = Devices(kind="cuda", num_ranks=1, uuids=("GPU-a",), words="")
    checks = Bench(tmp_path, on, patience, limit_s=1.0)
    looks = iter([GpusNow(in_use=("GPU 0 is in use",)), GpusNow(free=(FREE,))])
    monkeypatch.setattr(devices, "look", lambda: next(looks))
    assert checks.guarded(lambda: Outcome.passed("It was started.")).state == "passed"
    assert next(looks, None) is None, "it looked again until its own last job had gone"

    monkeypatch.setattr("trainers.machine_check.bench.TEARDOWN_S", 0.0)
    monkeypatch.setattr(devices, "look", lambda: GpusNow(in_use=("GPU 0 is in use",)))
    found = checks.guarded(lambda: pytest.fail("a job was started on somebody's GPU"))
    assert (found.state, found.words) == ("not_checked", "Left alone: GPU 0 is in use.")


@pytest.mark.parametrize(
    ("sharing", "expected"),
    [
        ("one", [1, 2, 3, 4, 8]),
        ("all", [None, 2, 2, 2, 2]),
        ("tensor_parallel_size", [None, 2, 2, 4, 4]),
    ],
)
def test_strategies_get_as_many_ranks_as_fit(sharing: Any, expected: list[int | None]) -> None:
    assert [configs.ranks_for(sharing, number) for number in (1, 2, 3, 4, 8)] == expected


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_every_strategy_trains_on_ddps_global_batches(num_ranks: int) -> None:
    on = Devices(kind="cpu", num_ranks=num_ranks, words="")
    ddp = configs.ddp_config(on).global_batch(num_ranks)
    for name, sharing in (
        ("zero3", "one"),
        ("tensor", "all"),
        ("pipeline", "all"),
        ("data_tensor", "tensor_parallel_size"),
    ):
        ranks = configs.ranks_for(sharing, num_ranks)
        if ranks is None:
            continue
        strategy = {"name": name, "ranks_per_replica": sharing, "trains": ("digits", "vit")}
        config = configs.strategy_config(strategy, on, ranks)
        assert config.global_batch(config.num_replicas(sharing)) == ddp
        assert config.batch_size % config.pipeline_microbatches == 0 or name != "pipeline"


def test_the_probe_knows_a_small_model_for_every_strategy() -> None:
    from trainers.machine_check import probe

    found = {entry["name"]: entry["trains"] for entry in probe.describe()["strategies"]}
    assert found.keys() >= {"ddp", "zero1", "zero2", "zero3", "tensor", "pipeline", "data_tensor"}
    assert None not in found.values()
    assert found["ddp"] == found["tensor"] == (configs.DATASET, configs.MODEL), "their losses can be compared"
    json.dumps(probe.describe())


GOOD = Probe(torch="2.11.0+cu130", cuda="13.0", uuids=("GPU-a",))
ONE_CARD = Nvidia(num_cards=1, problem=None, driver="580.65", cuda="13.1")


@pytest.mark.parametrize(
    ("nvidia", "probe", "num_free", "fits", "words"),
    [
        (ONE_CARD, GOOD, 1, True, "Torch can use the one that is free"),
        (ONE_CARD, GOOD, 0, True, "are in use and were left alone"),
        (Nvidia(num_cards=0, problem="no_driver", driver=None, cuda=None), GOOD, 0, None, "No NVIDIA card"),
        (
            Nvidia(num_cards=1, problem="no_driver", driver=None, cuda=None),
            GOOD,
            0,
            False,
            "no driver answers",
        ),
        (Nvidia(num_cards=1, problem="mismatch", driver=None, cuda=None), GOOD, 0, False, "was updated"),
        (ONE_CARD, Probe(torch="2.11.0+cpu"), 0, False, "for CPUs only"),
        (
            ONE_CARD,
            Probe(
                torch="2.11.0", cuda="13.0", obstacle=Obstacle(reason="The driver is old.", remedy="A newer.")
            ),
            1,
            False,
            "The driver is old.",
        ),
        (
            ONE_CARD,
            Probe(torch="2.11.0", cuda="13.0", left_out=("H100 (compute capability 9.0)",)),
            1,
            False,
            "no programs for H100 (compute capability 9.0)",
        ),
        (ONE_CARD, Probe(error="No module named torch"), 1, False, "torch cannot be used at all"),
    ],
)
def test_driver_wheel_and_card_are_held_against_each_other(
    nvidia: Nvidia, probe: Probe, num_free: int, fits: bool | None, words: str
) -> None:
    verdict = driver.judge(nvidia, probe, num_free=num_free)
    assert verdict.fits is fits
    assert words in verdict.words
    assert (verdict.why_no_gpu is None) == (fits is not False)
    assert bool(verdict.hint) == (fits is False), "what does not fit says what to do"


def test_a_gpu_that_torch_has_no_programs_for_is_left_alone_beside_one_that_it_can_use() -> None:
    probe = Probe(torch="2.11.0", cuda="13.0", uuids=("GPU-a",), left_out=("V100 (compute capability 7.0)",))
    verdict = driver.judge(ONE_CARD, probe, num_free=2)
    assert (verdict.fits, verdict.why_no_gpu) == (False, None)
    gpus = devices.usable(GpusNow(free=(FREE, DESKTOP)), probe.uuids)
    on = devices.choose("auto", None, gpus, verdict.why_no_gpu)
    assert on.uuids == ("GPU-a",)
    assert "left alone: GPU 1 cannot be used by this torch" in on.words


def finding(state: Any = "passed", **values: float) -> Finding:
    measured = tuple(Value(name=name, value=value, unit="s") for name, value in values.items())
    return Finding(id="x", title="X", state=state, values=measured)


@pytest.mark.parametrize(
    ("now", "last", "words"),
    [
        (finding("passed"), finding("passed"), "the same"),
        (finding("passed", start=1.2), finding("passed", start=1.0), "the same"),
        (finding("passed", start=2.0), finding("passed", start=1.0), "start: 2.0 × slower"),
        (finding("passed", start=1.0), finding("passed", start=3.0), "start: 3.0 × faster"),
        (finding("passed", a=1.0, b=9.0), finding("passed", a=2.0, b=1.0), "b: 9.0 × slower"),
        (finding("failed"), finding("passed"), "passed last time"),
        (finding("passed"), finding("failed"), "failed last time"),
        (finding("failed"), finding("failed"), "failed last time either"),
        (finding("passed"), finding("cancelled"), ""),
        (finding("skipped"), finding("passed"), ""),
        (finding("passed"), None, ""),
    ],
)
def test_a_finding_is_compared_with_the_last_time(now: Finding, last: Finding | None, words: str) -> None:
    before = None if last is None else json.loads(json.dumps(last.to_json()))
    assert compare(now, before, are_times_comparable=True) == words


def test_more_bytes_a_second_are_faster_and_times_beside_runs_are_not_compared() -> None:
    now = Finding(id="x", title="X", state="passed", values=(Value(name="writing", value=2e9, unit="bytes/s"),))
    last = Finding(
        id="x", title="X", state="passed", values=(Value(name="writing", value=1e9, unit="bytes/s"),)
    )
    assert compare(now, last.to_json(), are_times_comparable=True) == "writing: 2.0 × faster"
    assert compare(now, last.to_json(), are_times_comparable=False) == "passed last time too"
    odd = last.to_json() | {"values": [{"name": "writing", "value": "much"}]}
    assert compare(now, odd, are_times_comparable=True) == "the same", "a damaged file costs no check"


def test_all_passed_says_no_as_soon_as_something_was_not_found_out() -> None:
    passed = [finding("passed"), finding("skipped")]
    assert all_passed(passed)
    for state in ("failed", "not_checked", "cancelled", "running", "waiting"):
        assert not all_passed([*passed, finding(state)])
    words = summary([*passed, finding("failed"), finding("not_checked")])
    assert words == (
        "Of 4 checks 1 passed, 1 failed, 1 could not be checked, 1 skipped: nothing here to check."
    )


def test_a_row_of_the_table_says_by_a_sign_and_words_what_held() -> None:
    values = (
        Value(name="writing", value=412e6, unit="bytes/s"),
        Value(name="a small file", value=0.0042, unit="s"),
    )
    row = table.line(
        Finding(
            id="disk",
            title="Disk of the runs",
            state="failed",
            words="It is full.",
            hint="Delete runs.",
            values=values,
            seconds=2.34,
            compared="passed last time",
        )
    )
    assert row.startswith("✗ failed")
    for words in ("Disk of the runs", "2.3 s", "It is full.", "writing: 412 MB/s", "a small file: 4.2 ms"):
        assert words in row
    assert "What to do: Delete runs." in row and "passed last time" in row


def test_losses_are_compared_to_the_last_bit_and_strategies_within_rounding() -> None:
    unbroken = {1: 2.3, 2: 2.2, 3: 2.1, 4: None}
    assert training.first_difference(unbroken, [{1: 2.3, 2: 2.2}, {3: 2.1, 4: None, 9: 1.0}]) is None
    assert training.first_difference(unbroken, [{1: 2.3}, {3: 2.1000000000000005}]) == 3
    assert strategies.largest_difference({1: 2.3, 2: 2.25, 40: 0.0}, {**unbroken, 40: 9.0}) == pytest.approx(
        0.05
    )
    assert strategies.largest_difference({1: 2.3}, {}) is None


def line(size_bytes: int, **values: Any) -> dict[str, Any]:
    usual = {"backend": "gloo", "num_ranks": 2, "time_s": 0.1, "bus_bytes_per_s": 5e8}
    return {**usual, "size_bytes": size_bytes, **values}


def test_measured_all_reduces_hold_and_whatever_went_wrong_does_not() -> None:
    good = all_reduce.judge([line(1_000, time_s=2e-4), line(66_000_000)], 0, "")
    assert good.state == "passed" and "to the last bit" in good.words
    assert [value.value for value in good.values] == [5e8, 2e-4]
    failed = all_reduce.judge([line(1_000), {"error": "NCCL error", "rank": 1}], 1, "log")
    assert failed.state == "failed" and "rank 1 failed: NCCL error" in failed.words and failed.log == "log"
    assert all_reduce.judge([], -9, "").state == "failed"
    assert all_reduce.judge([], 0, "").state == "failed", "nothing measured is nothing passed"


def test_the_disk_is_measured_and_what_runs_rely_on_is_tried(tmp_path: Path, patience: Patience) -> None:
    assert disk.check_file_system(tmp_path).state == "passed"
    found = disk.check_disk(tmp_path, patience)
    assert found.state == "passed"
    assert all(value.value > 0 for value in found.values)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.lock", "small.json"]
    patience.cancelled.set()
    with pytest.raises(CancelledError):
        disk.check_disk(tmp_path, patience)


def test_a_file_system_that_keeps_no_locks_or_rights_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.machine_check.disk.fcntl.flock", lambda *_: None)
    monkeypatch.setattr(private_files, "is_ours", lambda _: False)
    found = disk.check_file_system(tmp_path)
    assert found.state == "failed"
    assert "a lock keeps nobody out" in found.words and "another user's" in found.words
    assert "--runs-dir" in found.hint


def test_a_disk_that_takes_nothing_is_a_finding_and_no_crash(
    tmp_path: Path, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Check(tmp_path, Wanted(check_id="0" * 12), patience, lambda *_: None)

    def full() -> Any:
        raise OSError(28, "No space left on device")

    check._carry_out("disk", full)
    (found,) = [item for item in check.to_json()["findings"] if item["id"] == "disk"]
    assert found["state"] == "failed" and "No space left on device" in found["words"]


def test_waiting_ends_with_the_cancel_or_the_deadline(patience: Patience) -> None:
    assert patience.wait("it", lambda: 7, time.monotonic() - 1) == 7
    with pytest.raises(TooLateError, match="it"):
        patience.wait("it", lambda: None, time.monotonic() - 1)
    patience.cancelled.set()
    with pytest.raises(CancelledError):
        patience.wait("it", lambda: 7, time.monotonic() + 100)


def kept(check_id: str, **values: Any) -> dict[str, Any]:
    usual = {"state": "done", "started_unix_s": 1.0, "findings": [finding().to_json()]}
    return {"check_id": check_id, **usual, **values}


def test_the_last_checks_are_kept_for_their_owner_alone(tmp_path: Path) -> None:
    files = CheckFiles(tmp_path)
    assert files.read() == []
    ids = [f"{number:012x}" for number in range(MOST_KEPT + 2)]
    for check_id in ids:
        files.keep(kept(check_id), f"report of {check_id}")
    assert [check["check_id"] for check in files.read()] == ids[2:]
    reports = sorted(path.name for path in files.folder.glob("report-*"))
    assert reports == [f"report-{check_id}.txt" for check_id in ids[2:]]
    assert files.folder.stat().st_mode & 0o777 == 0o700
    for path in (files.results, files.report(ids[-1])):
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"version": 9, "checks": []}', '{"version": 1, "checks": 3}',
     '{"version": 1, "checks": [{"check_id": "../../x", "findings": []}, {"check_id": 3}, 4]}'],
)  # fmt: skip
def test_a_damaged_file_of_results_is_none(tmp_path: Path, content: str) -> None:
    files = CheckFiles(tmp_path)
    files.folder.mkdir()
    files.results.write_text(content)
    assert files.read() == []
    files.keep(kept("0" * 12), "")
    assert len(files.read()) == 1


@pytest.mark.parametrize("check_id", ["", "../../etc/passwd", "0" * 11, "0" * 13, "G" * 12, "0" * 11 + "\n"])
def test_only_a_checks_id_names_a_file(tmp_path: Path, check_id: str) -> None:
    with pytest.raises(ValueError, match="check_id is"):
        CheckFiles(tmp_path).report(check_id)


def test_scratch_is_one_checks_alone_and_leftovers_of_a_killed_one_are_removed(tmp_path: Path) -> None:
    files = CheckFiles(tmp_path)
    files.work.mkdir(parents=True)
    (files.work / "left by a killed check").write_text("x")
    with scratch(files) as folder:
        assert list(folder.iterdir()) == []
        (folder / "run").mkdir()
        with pytest.raises(ValueError, match="being checked already"), scratch(files):
            pass
        assert (folder / "run").is_dir(), "who is refused removes nothing of the other"
    assert [path.name for path in files.folder.iterdir()] == ["lock"]


def test_a_run_that_goes_on_is_noticed_and_the_scratch_folder_is_no_run(tmp_path: Path) -> None:
    from trainers.contract import rundir

    run = rundir.create(tmp_path, config_module.parse({}))
    (tmp_path / "stray").write_text("no folder")
    with scratch(CheckFiles(tmp_path)):
        assert not does_a_run_go_on(tmp_path)
        lock = run.acquire_lock()
        assert does_a_run_go_on(tmp_path)
        os.close(lock)
