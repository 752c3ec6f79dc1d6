"""Messages that are printed before the page is loaded, when it cannot be served."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import app
from tests.other_user import UID, needs_a_second_user, shared_folder


def said_to_another_user(call: Callable[[], object]) -> str:
    """Return the message of the ValueError that another user gets; empty without an error."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
        try:
            call()
        except ValueError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


@needs_a_second_user
@pytest.mark.parametrize(
    ("runs", "what"),
    [
        ("project/runs", "runs"),
        ("others", "runs"),
        ("project/own", "uploads, next to the folder of the runs,"),
    ],
)
def test_a_folder_of_runs_that_cannot_be_used_names_the_option(runs: str, what: str) -> None:
    """An administrator may install the project in a folder that its users cannot write to."""
    with shared_folder() as folder:
        for name in ("project", "others", "home", "project/own"):
            (folder / name).mkdir()
            (folder / name).chmod(0o755)
        for name in ("home", "project/own"):
            os.chown(folder / name, UID, UID)
        said = said_to_another_user(lambda: app.make_folders(folder / runs))
        assert said.startswith(f"the folder of the {what} cannot be used (Permission denied: {folder}")
        assert "--runs-dir" in said and "on every node" in said
        assert said_to_another_user(lambda: app.make_folders(folder / "home" / "runs")) == ""


def test_a_folder_of_runs_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(ValueError, match=r"cannot be used .*--runs-dir"):
        app.make_folders(tmp_path / "runs")


def test_plugins_that_another_user_could_change_are_refused(tmp_path: Path) -> None:
    """Their code runs in every job; the default folder may lie in one that everybody can write to."""
    file = tmp_path / "plugins" / "models" / "mine.py"
    file.parent.mkdir(parents=True)
    file.touch(0o644)
    words = [f"--runs-dir={tmp_path / 'runs'}"]
    assert app.checked_options(app.parse_options(words)).plugins == tmp_path / "plugins"
    file.chmod(0o646)
    with pytest.raises(ValueError, match=r"--plugins: every user of this machine can change .*mine\.py"):
        app.checked_options(app.parse_options(words))
    with pytest.raises(ValueError, match="--plugins: there is no folder"):
        app.checked_options(app.parse_options([*words, f"--plugins={tmp_path / 'none'}"]))
    file.chmod(0o644)
    if os.geteuid() == 0:
        # A link of another user would choose the code.
        link = tmp_path / "shared" / "plugins"
        link.parent.mkdir()
        link.symlink_to(tmp_path / "plugins")
        os.chown(link, UID, UID, follow_symlinks=False)
        with pytest.raises(ValueError, match=r"--plugins: .*shared/plugins belongs to"):
            app.checked_options(app.parse_options([f"--runs-dir={link.with_name('runs')}"]))
        os.chown(file, UID, UID)
        with pytest.raises(ValueError, match=r"--plugins: .*mine\.py belongs to"):
            app.checked_options(app.parse_options(words))
