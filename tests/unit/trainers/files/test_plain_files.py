"""Links in a copied run that point to files of this machine are not followed."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import tempfile
from pathlib import Path

import pytest

from ddp_gui.run import logs
from ddp_gui.runs import listing
from trainers.contract import config, rundir
from trainers.contract.rundir import RunDirectory
from trainers.files import plain_files

SECRET = "the secret of this machine"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    return path


@pytest.fixture
def made(tmp_path: Path) -> RunDirectory:
    return rundir.create(tmp_path / "runs", config.parse({"dataset": "digits", "model": "mlp"}))


def opened(made: RunDirectory) -> RunDirectory:
    return rundir.open_run(made.path.parent, made.run_id)


@pytest.mark.parametrize("name", ["status.json", "events.jsonl", "anything"])
def test_a_run_with_a_link_in_it_is_not_opened_and_says_which(
    made: RunDirectory, secret: Path, name: str
) -> None:
    assert opened(made).run_id == made.run_id
    linked = made.path.parent / "linked-1"
    linked.symlink_to(made.path)
    with pytest.raises(ValueError, match="is a link"):
        opened(RunDirectory(linked))
    (made.path / name).symlink_to(secret)
    with pytest.raises(ValueError, match=f"{name} in its folder is not a regular file"):
        opened(made)


def test_a_pipe_does_not_hold_up_whoever_looks(made: RunDirectory) -> None:
    os.mkfifo(made.events)
    with pytest.raises(ValueError, match=r"events\.jsonl in its folder is not a regular file"):
        opened(made)
    os.mkfifo(made.logs / "rank_0.log")
    with pytest.raises(ValueError, match="not a regular file"):
        logs.read(made.rank_log(0), -1)


def test_a_log_that_is_a_link_is_not_read(made: RunDirectory, secret: Path) -> None:
    made.rank_log(0).symlink_to(secret)
    for look in (lambda: logs.read(made.rank_log(0), -1), lambda: logs.search(made.rank_log(0), "secret")):
        with pytest.raises(OSError, match="symbolic links"):
            look()


def test_notes_and_checkpoints_that_are_links_are_none(made: RunDirectory, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "manifest.json").write_text('{"files": {}, "saved_unix_s": 1}')
    (elsewhere / "notes.json").write_text('{"name": "of another file"}')
    (made.checkpoints / "step_4").symlink_to(elsewhere)
    (made.path / listing.FILE).symlink_to(elsewhere / "notes.json")
    assert made.list_checkpoints() == []
    assert listing.read_notes(made) == listing.RunNotes()


def test_a_descriptor_above_those_of_select_can_be_awaited() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    ours, theirs = socket.socketpair()
    high = fcntl.fcntl(ours, fcntl.F_DUPFD, 1100)
    try:
        assert not plain_files.is_readable(high)
        theirs.sendall(b"x")
        assert plain_files.is_readable(high)
        ours.recv(1)
        theirs.close()
        assert plain_files.is_readable(high, 60.0), "the other end is closed"
    finally:
        os.close(high)
        ours.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one_and_a_used_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "ddp-x-left"
    left.mkdir()
    (tmp_path / "ddp-x-link").symlink_to(tmp_path)
    with plain_files.temporary_folder("ddp-x-") as used:
        (used / "file").touch()
        assert not left.exists()
        with plain_files.temporary_folder("ddp-x-") as other:
            assert (used / "file").exists() and other != used
    assert [path.name for path in tmp_path.iterdir()] == ["ddp-x-link"]
