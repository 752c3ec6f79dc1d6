"""Tests of the run directory: its lock, its actual state, and rejection of ids that escape the folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.status import process_handle
from trainers.engines import liveness
from trainers.files import json_files
from trainers.files.json_files import remove_half_written

HOLD_THE_LOCK = """
import sys
from pathlib import Path
from trainers.contract.rundir import RunDirectory
RunDirectory(Path(sys.argv[1])).acquire_lock()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def lock_held_elsewhere(run: RunDirectory, repository: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold the lock of the run."""
    command = [sys.executable, "-c", HOLD_THE_LOCK, str(run.path)]
    with subprocess.Popen(
        command, cwd=repository, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


def test_lock_is_seen_by_others_and_cannot_be_taken_twice(run: RunDirectory, repository: Path) -> None:
    assert not run.is_locked()
    with lock_held_elsewhere(run, repository) as holder:
        assert run.is_locked()
        with pytest.raises(ValueError, match="already being run"):
            run.acquire_lock()
        holder.kill()
        holder.wait()
        assert not run.is_locked(), "the kernel gives the lock back when its owner is killed"
    os.close(run.acquire_lock())


def test_live_state_without_an_owner_is_lost_and_says_why(run: RunDirectory, repository: Path) -> None:
    run.write_status(Status(state="running", handle=process_handle(1), started_unix_s=5.0))
    with lock_held_elsewhere(run, repository):
        assert liveness.read_status(run).state == "running"
    lost = liveness.read_status(run)
    assert lost.state == "lost" and lost.started_unix_s == 5.0
    assert lost.error is not None and "No checkpoint was saved: start the run again." in lost.error
    manifest = run.checkpoints / "step_3" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    lost = liveness.read_status(run)
    assert lost.error is not None and "Resume continues from the latest complete checkpoint." in lost.error


DAMAGED = [
    b"", b"{", b"null", b"[]", b"7", b"\xff\xfe\x00", b"[" * 100_000, b'{"state": "flying"}', b"{}",
    b'{"state": "running", "pid": "x"}', b'{"state": "failed", "started_unix_s": {}}',
    b'{"state": "stopped", "exit_code": 1e999}', b'{"state": "stopped", "error": 3}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_state_of_a_run_with_a_damaged_status_is_what_its_events_say(
    run: RunDirectory, content: bytes
) -> None:
    run.status.write_bytes(content)
    file = EventFile(run.events)
    file.append([(1.0, "state", {"state": "stopped", "reason": ""})])
    file.close()
    found = liveness.read_status(run)
    assert found.state == "stopped"
    assert found.error is not None and "status file of this run is damaged" in found.error


def test_a_status_of_a_newer_version_and_a_damaged_configuration_say_so(run: RunDirectory) -> None:
    run.status.write_text('{"schema_version": 9, "state": "running"}')
    error = liveness.read_status(run).error
    assert (
        error is not None
        and "written by a newer version of this program (schema 9; this version reads up to 2)" in error
    )
    run.config.write_bytes(b"{" + b"\x00" * 10)
    with pytest.raises(ValueError, match="The configuration of this run is damaged"):
        run.read_config()


def test_two_creators_at_once_get_different_runs(tmp_path: Path) -> None:
    made: list[str] = []

    def create_some() -> None:
        made.extend(rundir.create(tmp_path, Config(name="x")).run_id for _ in range(10))

    creators = [threading.Thread(target=create_some) for _ in range(4)]
    for creator in creators:
        creator.start()
    for creator in creators:
        creator.join()
    assert len(made) == 40 and len(set(made)) == 40


@pytest.mark.parametrize("name", ["../../evil", "/etc/x", "..", ".", "...", "日本", "a/../../b", "-"])
def test_no_name_leads_out_of_the_runs_directory(tmp_path: Path, name: str) -> None:
    run = rundir.create(tmp_path / "runs", Config(name=name, dataset=name, model=name))
    assert run.path.parent == tmp_path / "runs"
    assert rundir.is_run_id(run.run_id)
    nameless = rundir.create(tmp_path / "runs", Config(dataset=name, model=name))
    assert nameless.path.parent == tmp_path / "runs" and rundir.is_run_id(nameless.run_id)
    assert rundir.open_run(tmp_path / "runs", run.run_id).read_config().name == name


@pytest.mark.parametrize(
    "run_id",
    [
        "..", ".", "", "../run-1", "run-1/../run-1", "/etc", "a/b", "a\\b", "run-1\x00", "\x00", "run-1\n",
        "x" * 101, ".hidden", None, 3, ["run-1"],
    ],
)  # fmt: skip
def test_text_that_is_no_run_id_is_refused(run: RunDirectory, run_id: Any) -> None:
    json_files.write_json_atomically(run.config, Config().to_json())
    with pytest.raises(ValueError, match="run_id is"):
        rundir.open_run(run.path.parent, run_id)


def test_status_is_replaced_whole_while_readers_look(run: RunDirectory) -> None:
    run.write_status(Status(state="finished", error="x" * 20_000))
    done = threading.Event()
    seen: set[str] = set()
    problems: list[Exception] = []

    def look() -> None:
        while not done.is_set():
            try:
                seen.add(json.loads(run.status.read_text())["state"])
            except (OSError, ValueError) as error:
                problems.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(60):
        run.write_status(Status(state="failed" if number % 2 else "finished", error="x" * 20_000))
    done.set()
    reader.join()
    assert problems == [] and seen <= {"failed", "finished"}
    assert [path.name for path in run.path.iterdir()] == ["status.json"], "nothing is left aside"


def test_what_a_killed_writer_left_is_removed_and_nothing_else(run: RunDirectory) -> None:
    run.write_status(Status(state="running"))
    (run.path / ".status.json.999999.tmp").write_text("{")
    (run.path / ".notes.json.1a2b.tmp").write_text("somebody is at it")
    remove_half_written(run.status)
    assert sorted(path.name for path in run.path.iterdir()) == [".notes.json.1a2b.tmp", "status.json"]


def test_a_private_file_is_nobody_elses_from_the_first_moment(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []

    def look(*_arguments: Any, **_options: Any) -> None:
        modes.extend(path.stat().st_mode for path in run.path.iterdir())

    monkeypatch.setattr(json_files.json, "dump", look)
    json_files.write_json_atomically(run.path / "accounts.json", {}, mode=0o600)
    modes.append((run.path / "accounts.json").stat().st_mode)
    assert [mode & 0o777 for mode in modes] == [0o600, 0o600]


def test_checkpoint_is_listed_only_with_a_readable_manifest(run: RunDirectory) -> None:
    whole = {"files": {"shared.pt": {"size_bytes": 3, "sha256": ""}}, "saved_unix_s": 7.0}
    for name, manifest in {
        "step_20": json.dumps(whole),
        "step_3": json.dumps(whole),
        "step_4": None,
        "step_5": "",
        "step_7": "{}",
        "step_9": '{"files": {"a": 3}, "saved_unix_s": 1}',
        ".step_10.partial": json.dumps(whole),
        "notes": json.dumps(whole),
    }.items():
        folder = run.checkpoints / name
        folder.mkdir(parents=True)
        if manifest is not None:
            (folder / "manifest.json").write_text(manifest)
    assert [(item.step, item.size_bytes, item.saved_unix_s) for item in run.list_checkpoints()] == [
        (3, 3, 7.0),
        (20, 3, 7.0),
    ]


def test_status_is_written_over_where_a_full_disk_has_no_room_for_another(small_disk: Path) -> None:
    run = RunDirectory(small_disk)
    run.write_status(Status(state="running", handle=process_handle(7), started_unix_s=5.0))
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * (free.f_bavail * free.f_frsize))
    failed = Status(
        state="failed", handle=process_handle(7), ended_unix_s=9.0, error="Rank 1 was killed. " * 9
    )
    run.write_status(failed)
    assert liveness.read_status(run) == failed
    run.write_status(Status(state="stopped"))
    assert liveness.read_status(run) == Status(state="stopped")
    assert [path.name for path in small_disk.iterdir() if "tmp" in path.name] == []


def test_command_after_one_that_a_full_disk_cut_short_is_a_line_of_its_own(run: RunDirectory) -> None:
    run.commands.write_bytes(b'{"id":"a","name":"st')
    command_id = run.append_command("stop")
    lines = run.commands.read_text().splitlines()
    assert len(lines) == 2 and json.loads(lines[1])["id"] == command_id
