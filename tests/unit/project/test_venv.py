"""Which torch `run.sh` installs, uses or keeps: tests of its own functions with a fake pip.

The fake pip downloads nothing. It records the requested packages, and writes their names and versions into
the environment as a real pip would.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import REPOSITORY
from tests.other_user import UID, needs_a_second_user, shared_folder
from tests.unit.fake_pip import make_environment

REQUIREMENTS = "torch==2.13.0\nwidget==1.0\n"

# Message that is printed when torch is downloaded.
COMES = "none: cannot be used (none:/"
# Has the first of the names that `find_python` tries.
FAKE_PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then exec env PYTHONPATH={repository} {python} -m tests.unit.fake_pip "$3"; fi
exec {python} "$@"
"""


class Checkout:
    """A folder with the script and the requirements, in which `make_venv` runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = folder / ".venv"
        self.notes = folder / "notes"
        (folder / "tools").mkdir()
        for name in ("venv.sh", "torch_build.py", "wheel_download.py"):
            shutil.copy(REPOSITORY / "tools" / name, folder / "tools")
        self.ask_for(REQUIREMENTS)
        python = folder / "bin" / "python3.13"
        python.parent.mkdir()
        python.write_text(FAKE_PYTHON.format(python=sys.executable, repository=REPOSITORY))
        python.chmod(0o755)

    def ask_for(self, requirements: str) -> None:
        (self.folder / "requirements.txt").write_text(requirements)

    def put_torch(self, version: str) -> None:
        """Add a torch to the environment, as if the user had chosen it."""
        (site,) = self.environment.glob("lib/python3*/site-packages")
        shutil.rmtree(site / f"torch-{version}.dist-info", ignore_errors=True)
        made = site / f"torch-{version}.dist-info"
        made.mkdir()
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")

    def run(self, *, is_cut_off: bool = False) -> tuple[int, str, str]:
        """Install the requirements; return the exit code, the output, and pip's arguments."""
        self.notes.unlink(missing_ok=True)
        ended = subprocess.run(
            ["bash", "-c", "set -euo pipefail; source tools/venv.sh; make_venv requirements.txt"],
            cwd=self.folder,
            env=os.environ
            | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "FAKE_PIP_NOTES": str(self.notes)}
            # The URL is not http, so no request is sent: pip installs torch from its own index.
            | {"DDP_TORCH_INDEX": "none:", "DDP_TORCH_BUILD": "auto"}
            | ({"FAKE_PIP_IS_CUT_OFF": "1"} if is_cut_off else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return ended.returncode, ended.stdout, self.notes.read_text() if self.notes.exists() else ""

    def installed(self) -> list[str]:
        names = [path.stem for path in self.environment.glob("lib/python3*/site-packages/*.dist-info")]
        return sorted(names)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("version", ["2.11.0+cu126", "2.13.0"])
def test_a_torch_that_a_user_chose_is_used_and_not_replaced(checkout: Checkout, version: str) -> None:
    make_environment(checkout.environment)
    checkout.put_torch(version)
    code, said, asked = checkout.run()
    assert code == 0, said
    assert f"Using torch {version}, which is already in .venv (tested with 2.13.0)" in said
    assert COMES not in said and "-r requirements.txt " not in asked + " "
    assert checkout.installed() == [f"torch-{version}", "widget-1.0"]
    checkout.ask_for("torch==2.16.0\nwidget==1.1\n")
    code, said, _ = checkout.run()
    assert code == 0 and f"Using torch {version}" in said
    assert checkout.installed() == [f"torch-{version}", "widget-1.1"], "also after an update"


def test_a_torch_that_is_too_old_is_replaced_and_that_is_said(checkout: Checkout) -> None:
    make_environment(checkout.environment)
    checkout.put_torch("2.9.1+cpu")
    code, said, _ = checkout.run()
    assert code == 0, said
    assert "torch 2.9.1+cpu in .venv is too old: 2.11 or newer is needed" in said and COMES in said
    assert checkout.installed() == ["torch-2.13.0", "widget-1.0"]
    checkout.ask_for("torch==2.14.0\nwidget==1.0\n")
    assert COMES in checkout.run()[1], "the torch that pip chose goes with the requirements"
    assert "torch-2.14.0" in checkout.installed()


def test_after_an_interruption_the_chosen_torch_is_still_there(checkout: Checkout) -> None:
    make_environment(checkout.environment)
    checkout.put_torch("2.13.0+cpu")
    assert checkout.run(is_cut_off=True)[0] == 1
    code, said, asked = checkout.run()
    assert code == 0, said
    assert "--ignore-installed" in asked, "what may be half there is written over"
    assert checkout.installed() == ["torch-2.13.0+cpu", "widget-1.0"]


@needs_a_second_user
@pytest.mark.parametrize(
    ("broken", "said_instead"),
    [
        ("nothing is there", "Nothing is installed here yet"),
        ("no folder of its own", "The environment cannot be read (ls: cannot access"),
        (
            "interpreter",
            "nobody cannot execute the interpreter .venv/bin/python, which is {folder}/closed/python: ",
        ),
        ("another place", "The environment was made for another folder or another version of Python"),
        ("requirements", "The installed packages are not those of requirements.txt"),
        ("", ""),
    ],
)
def test_where_another_user_has_installed_it_the_true_cause_is_said(broken: str, said_instead: str) -> None:
    """An administrator's folder is read-only for other users."""
    with shared_folder() as folder:
        for name in (".venv/bin", "tools"):
            (folder / name).mkdir(parents=True)
        shutil.copy(REPOSITORY / "tools" / "venv.sh", folder / "tools")
        python = folder / "closed" / "python"
        python.parent.mkdir()
        python.write_text("#!/bin/sh\necho 3.11\n")
        python.chmod(0o755)
        (folder / ".venv" / "bin" / "python").symlink_to(python)
        (folder / ".venv" / "origin").write_text(f"3.11\n{folder}\n")
        for name in ("requirements.txt", ".venv/requirements.txt.installed"):
            (folder / name).write_text(REQUIREMENTS)
        match broken:
            case "nothing is there":
                shutil.rmtree(folder / ".venv")
            case "no folder of its own":
                (folder / ".venv").chmod(0o700)
            case "interpreter":
                python.parent.chmod(0o700)
            case "another place":
                (folder / ".venv" / "origin").write_text("3.11\n/elsewhere\n")
            case "requirements":
                (folder / "requirements.txt").write_text("torch==2.14.0\n")
        # Readable for all users, independent of this process's umask.
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o044)
        ended = subprocess.run(
            ["bash", "-c", "set -euo pipefail; source tools/venv.sh; make_venv requirements.txt"],
            cwd=folder, user=UID, group=UID, extra_groups=[], capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert said_instead.format(folder=folder) in ended.stderr and (ended.returncode == 1) == bool(broken)
        if broken:
            assert f"You cannot write to this folder, so its owner has to do that: {folder}" in ended.stderr
        else:
            assert ended.stderr == ""
