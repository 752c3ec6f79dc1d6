"""Tests of the machine check: the disk, internal errors, scrubbing, and saved results."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from trainers.check_machine.check import CheckOptions, MachineCheck, is_any_run_live
from trainers.check_machine.checks import devices, disk, driver
from trainers.check_machine.checks.cancelling import CancellableWait, CancelledError
from trainers.check_machine.checks.devices import GpusNow
from trainers.check_machine.checks.driver import Probe
from trainers.check_machine.checks.findings import REPORT_HINT, Finding, Outcome
from trainers.check_machine.checks.job import LOG_END_BYTES, log_ends
from trainers.check_machine.scratch import exclusive_lock, work_folder
from trainers.contract import config as config_module
from trainers.contract import rundir
from trainers.contract.check_files import MAX_STORED, CheckFiles
from trainers.files import private_files
from trainers.machine.cuda_environment import Obstacle
from trainers.machine.nvml import VisibleGpu


@pytest.fixture
def patience() -> CancellableWait:
    return CancellableWait()


def test_the_disk_is_measured_and_what_runs_rely_on_is_tried(
    tmp_path: Path, patience: CancellableWait
) -> None:
    assert disk.check_file_system(tmp_path).state == "passed"
    found = disk.check_disk(tmp_path, patience)
    assert found.state == "passed"
    assert all(value.value > 0 for value in found.values)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.lock", "small.json"]
    patience.cancel()
    with pytest.raises(CancelledError):
        disk.check_disk(tmp_path, patience)
    assert not (tmp_path / "speed.bin").exists()


def test_a_file_system_that_keeps_no_locks_or_rights_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.check_machine.checks.disk.fcntl.flock", lambda *_: None)
    monkeypatch.setattr(private_files, "is_ours", lambda _: False)
    found = disk.check_file_system(tmp_path)
    assert found.state == "failed"
    assert "locks have no effect" in found.words and "belong to another user" in found.words
    assert "--runs-dir" in found.hint


def fill(folder: Path) -> None:
    with (folder / "full").open("wb", buffering=0) as file:
        size_bytes = shutil.disk_usage(folder).free
        while shutil.disk_usage(folder).free > 0:
            file.write(bytes(size_bytes // 16))


# Example strategies in the format of a probe's answer.
STRATEGIES = ({"name": "ddp"}, {"name": "zero9", "label": "ZeRO-9"})


def test_on_a_full_disk_no_job_is_started_and_what_was_found_is_told(
    small_disk: Path, patience: CancellableWait, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = Probe(torch="9.9", strategies=STRATEGIES)
    monkeypatch.setattr(driver, "ask_torch", lambda *_: probe)
    check = MachineCheck(small_disk, CheckOptions(check_id="0" * 12, device="cpu"), patience, lambda *_: None)
    fill(small_disk)
    assert check.run() is False
    state = check.to_json()
    found = {item["id"]: item for item in state["findings"]}
    for name in ("file_system", "disk"):
        assert (found[name]["state"], found[name]["hint"]) == ("failed", disk.FREE_SPACE_HINT)
    for name in ("all_reduce", "checkpoint", "exact", "strategy_zero9"):
        assert found[name]["words"] == "Jobs cannot write to the runs directory."
        assert found[name]["state"] == "not_checked"
    assert state["state"] == "done"
    assert state["summary"].endswith("The result could not be saved: No space left on device.")
    files = CheckFiles(small_disk)
    assert sorted(path.name for path in files.folder.iterdir()) == ["lock"]


def test_an_odd_error_in_one_check_is_a_finding_and_the_rest_goes_on(
    tmp_path: Path, patience: CancellableWait, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = Probe(torch="9.9", strategies=STRATEGIES)
    monkeypatch.setattr(driver, "ask_torch", lambda *_: probe)
    monkeypatch.setattr("trainers.check_machine.check._find_comparable", lambda *_: None)

    def odd(*_: object) -> Any:
        raise TypeError(f"odd at {Path.home()}/secret")

    monkeypatch.setattr(disk, "check_file_system", odd)
    monkeypatch.setattr(disk, "check_disk", lambda *_: Outcome.failed("So that no job is started.", ""))
    check = MachineCheck(tmp_path, CheckOptions(check_id="0" * 12, device="cpu"), patience, lambda *_: None)
    assert check.run() is False
    (kept_one,) = CheckFiles(tmp_path).read()
    found = {item["id"]: item for item in kept_one["findings"]}
    assert found["file_system"]["state"] == "failed"
    assert found["file_system"]["words"] == "The check itself failed: TypeError: odd at HOME/secret"
    assert found["file_system"]["hint"] == REPORT_HINT
    assert "Traceback" in found["file_system"]["log"] and str(Path.home()) not in found["file_system"]["log"]
    assert found["driver"]["state"] == "skipped" and found["disk"]["state"] == "failed"


def test_gpus_to_be_left_alone_are_not_shown_to_torch_and_what_cuda_says_is_scrubbed(
    tmp_path: Path, patience: CancellableWait, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [VisibleGpu(index=number, uuid=f"GPU-{number}", handle=None) for number in range(2)]
    asked = []

    def sample(except_gpus: Collection[str]) -> GpusNow:
        return GpusNow(free=tuple(gpu for gpu in gpus if gpu.uuid not in except_gpus))

    def ask_torch(variables: Mapping[str, str], _: CancellableWait) -> Probe:
        asked.append(variables["CUDA_VISIBLE_DEVICES"])
        reason = "CUDA does not start: no /home/bob/libcuda.so"
        return Probe(torch="9.9", cuda="13.0", obstacle=Obstacle(reason=reason, remedy="Mend it."))

    card = driver.Nvidia(num_cards=2, problem=None, driver="580", cuda="13.0")
    monkeypatch.setattr(devices, "sample", sample)
    monkeypatch.setattr(driver, "ask_torch", ask_torch)
    monkeypatch.setattr(driver.Nvidia, "read", lambda: card)
    monkeypatch.setattr(disk, "check_disk", lambda *_: Outcome.failed("So that no job is started.", ""))
    wanted = CheckOptions(check_id="0" * 12, except_gpus=("GPU-1",))
    check = MachineCheck(tmp_path, wanted, patience, lambda *_: None)
    check.run()
    assert asked == ["GPU-0"]
    state = check.to_json()
    why = "CUDA does not start: no HOME/libcuda.so"
    assert state["device"] == f"2 CPU ranks, because no GPU can be used: {why}"
    assert state["findings"][0]["words"].endswith(f"for CUDA 13.0. {why}")


def test_half_a_line_at_the_beginning_of_a_logs_end_is_left_out(tmp_path: Path) -> None:
    """Half of a path would not be recognized, so it could not be scrubbed."""
    long, one_line = tmp_path / "long.log", tmp_path / "one_line.log"
    long.write_text("at /srv/ann/x\n" + "y" * (LOG_END_BYTES - 6) + "\nlast\n")
    one_line.write_text("z" * 2 * LOG_END_BYTES)
    assert log_ends([long]) == f"--- long.log\n{'y' * (LOG_END_BYTES - 6)}\nlast", "whole lines stay"
    long.write_text("at /srv/ann/x" + "y" * (LOG_END_BYTES - 6) + "\nlast\n")
    assert log_ends([long, one_line]) == "--- long.log\nlast"


def kept(check_id: str, **values: Any) -> dict[str, Any]:
    usual = {"state": "done", "started_unix_s": 1.0, "findings": [Finding(id="x", title="X").to_json()]}
    return {"check_id": check_id, **usual, **values}


def test_the_last_checks_are_kept_for_their_owner_alone(tmp_path: Path) -> None:
    files = CheckFiles(tmp_path)
    assert files.read() == []
    ids = [f"{number:012x}" for number in range(MAX_STORED + 2)]
    for check_id in ids:
        files.keep(kept(check_id), f"report of {check_id}")
    assert [check["check_id"] for check in files.read()] == ids[2:]
    reports = sorted(path.name for path in files.folder.glob("report-*"))
    assert reports == [f"report-{check_id}.txt" for check_id in ids[2:]]
    assert files.folder.stat().st_mode & 0o777 == 0o700
    for path in (files.results, files.report(ids[-1])):
        assert path.stat().st_mode & 0o777 == 0o600


def test_the_newest_whole_check_on_each_kind_of_device_outlives_cancelled_ones(tmp_path: Path) -> None:
    files = CheckFiles(tmp_path)
    ids = [f"{number:012x}" for number in range(MAX_STORED + 4)]
    kinds = [("done", "cuda"), ("done", "cpu"), ("done", "cpu")]
    for check_id, (state, kind) in zip(
        ids, [*kinds, *[("cancelled", "cpu")] * (MAX_STORED + 1)], strict=True
    ):
        files.keep(kept(check_id, state=state, device_kind=kind), f"report of {check_id}")
    expected = [ids[0], ids[2], *ids[-MAX_STORED:]]
    assert [check["check_id"] for check in files.read()] == expected
    assert [files.report(check_id).is_file() for check_id in ids] == [one in expected for one in ids]


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


@pytest.mark.parametrize("check_id", ["", "../../etc/passwd", "0" * 13, "0" * 11 + "\n"])
def test_only_a_checks_id_names_a_file(tmp_path: Path, check_id: str) -> None:
    with pytest.raises(ValueError, match="check_id is"):
        CheckFiles(tmp_path).report(check_id)


def test_scratch_is_one_checks_alone_and_leftovers_of_a_killed_one_are_removed(tmp_path: Path) -> None:
    files = CheckFiles(tmp_path)
    files.work.mkdir(parents=True)
    (files.work / "left by a killed check").write_text("x")
    with exclusive_lock(files), work_folder(files) as folder:
        assert list(folder.iterdir()) == []
        (folder / "run").mkdir()
        with (
            pytest.raises(ValueError, match="a check of this machine is already running"),
            exclusive_lock(files),
        ):
            pass
        assert (folder / "run").is_dir(), "who is refused removes nothing of the other"
    assert [path.name for path in files.folder.iterdir()] == ["lock"]


def test_a_run_that_goes_on_is_noticed_and_the_scratch_folder_is_no_run(tmp_path: Path) -> None:
    run = rundir.create(tmp_path, config_module.parse({}))
    (tmp_path / "stray").write_text("no folder")
    files = CheckFiles(tmp_path)
    with exclusive_lock(files), work_folder(files):
        assert not is_any_run_live(tmp_path)
        lock = run.acquire_lock()
        assert is_any_run_live(tmp_path)
        os.close(lock)
