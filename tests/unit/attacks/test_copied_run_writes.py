"""Writes to a run that was copied from an untrusted source stay inside it, whatever it already contains."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.trainers.checkpoint.test_checkpoint import checkpointer_of
from trainers.checkpoint.checkpoint_writer import Saved
from trainers.checkpoint.snapshot import Progress
from trainers.contract.rundir import RunDirectory
from trainers.engines.local import torchrun_process
from trainers.files import plain_files


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a folder with a file of the victim's, outside of every run."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / ".bashrc").write_text("as it was\n")
    return folder


def test_a_log_that_is_a_link_is_not_written_through(run: RunDirectory, elsewhere: Path) -> None:
    path = run.logs / "rank_0.log"
    run.logs.mkdir()
    path.symlink_to(elsewhere / ".bashrc")
    with pytest.raises(OSError, match=r"symbolic|Too many"):
        plain_files.open_to_append(path)
    with pytest.raises(OSError, match=r"symbolic|Too many"):
        plain_files.redirect_output(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises((OSError, ValueError)):
        plain_files.open_to_append(path)  # does not wait for a reader
    path.unlink()
    os.close(plain_files.open_to_append(path))
    assert path.is_file() and (elsewhere / ".bashrc").read_text() == "as it was\n"


def test_torchrun_replaces_links(run: RunDirectory, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.logs.mkdir()
    log, details = run.logs / "torchrun.log", run.logs / "torchrun"
    log.symlink_to(elsewhere / ".bashrc")
    details.symlink_to(elsewhere)
    monkeypatch.setattr(torchrun_process, "torchrun_program", lambda: ["true"])
    monkeypatch.setattr(torchrun_process.torchrun, "can_fork", lambda: False)
    torchrun_process.launch([], log, details, {}).wait()
    assert (elsewhere / ".bashrc").read_text() == "as it was\n"
    assert not log.is_symlink() and not details.is_symlink()


def make_link(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


def make_file(path: Path) -> None:
    path.write_text("in the way")


@pytest.mark.parametrize("make", [make_link, make_file, os.mkfifo, Path.mkdir])
@pytest.mark.parametrize("name", [".step_4.partial", "step_4", ".step_4.replaced"])
def test_a_checkpoint_replaces_what_is_there(
    run: RunDirectory, make: Callable[[Path], None], name: str
) -> None:
    run.checkpoints.mkdir(exist_ok=True)
    make(run.checkpoints / name)
    maker = checkpointer_of(run)
    maker.save(Progress(step=4), "end")
    outcome = maker.wait()
    assert isinstance(outcome, Saved), outcome
    assert [item.step for item in run.list_checkpoints()] == [4]
    assert sorted(path.name for path in run.checkpoints.iterdir() if path.name != ".step_4.replaced") == [
        "step_4"
    ]


def test_a_link_among_the_leftovers_is_removed_and_not_followed(run: RunDirectory, elsewhere: Path) -> None:
    run.checkpoints.mkdir(exist_ok=True)
    for name in (".step_4.partial", ".step_5.replaced", ".step_6.removed"):
        (run.checkpoints / name).symlink_to(elsewhere)
    from trainers.contract.checkpoint_files import remove_leftovers

    remove_leftovers(run)
    assert list(run.checkpoints.iterdir()) == []
    assert (elsewhere / ".bashrc").is_file()
