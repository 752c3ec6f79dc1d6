"""A real page and real runs next to another user, who has created files in predictable places."""

from __future__ import annotations

import getpass
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import other_user
from tests.harness import END_TIMEOUT_S, REPOSITORY, create_run, torchrun_by_hand
from tests.other_user import needs_a_second_user
from tools import page_driver
from trainers.engines import liveness


@pytest.fixture
def shared() -> Iterator[Path]:
    with other_user.shared_folder() as folder:
        yield folder


@pytest.fixture
def temporary(shared: Path) -> Path:
    """Return a shared temporary folder in which the other user has already created files."""
    folder = shared / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    for name in ("gradio", f"torchinductor_{getpass.getuser()}"):
        assert other_user.has_done("sh", "-c", f"echo planted > '{folder}/{name}'")
    return folder


def open_to_others(folder: Path) -> list[str]:
    """Return the paths in a folder, including the folder, that other users can reach."""
    found = []
    for above, folders, names in os.walk(folder):
        if stat.S_IMODE(Path(above).stat().st_mode) & 0o077:
            found += [above, *(str(Path(above, name)) for name in names)]
        else:
            folders.clear()
    return found


@needs_a_second_user
def test_a_page_and_a_run_by_hand_neither_use_nor_leave_anything_where_he_is(
    shared: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This does not depend on the umask."""
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.delenv("GRADIO_TEMP_DIR", raising=False)
    run = create_run(shared / "runs", num_epochs=1)
    (shared / "runs").chmod(0o755)
    run.path.chmod(0o755)
    before = os.umask(0)
    try:
        with page_driver.serve(shared / "runs", page_driver.NO_STANDBY):
            pass
        assert stat.S_IMODE(run.path.stat().st_mode) == 0o700, "the page closes what was open"
        run.path.chmod(0o755)
        ended = subprocess.run(
            torchrun_by_hand(run),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=END_TIMEOUT_S,
            check=False,
        )
    finally:
        os.umask(before)
    assert ended.returncode == 0, ended.stderr
    assert liveness.read_status(run).state == "finished"
    assert open_to_others(run.path) == []
    assert open_to_others(shared / "uploads") == []
    # The folder existed before and may contain other files.
    assert open_to_others(shared / "runs") == [str(shared / "runs")]
    ours = [path for path in temporary.iterdir() if path.stat().st_uid != other_user.UID]
    # torchrun's own folder and the rendezvous of a manual start have unpredictable names.
    assert all(path.name.startswith(("torchelastic_", "tmp")) for path in ours), ours
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in ours), ours
