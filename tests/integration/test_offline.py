"""The archive for machines without a network: made by tools.bundle, installed in a namespace without one.

All wheels but those of the program and of pip are tiny substitutes with the pinned versions.
"""

from __future__ import annotations

import ensurepip
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.harness import REPOSITORY
from tests.wheel_index import make_wheel
from tools import bundle


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an unpacked archive."""
    folder = tmp_path_factory.mktemp("offline")
    wheels = folder / "index"
    wheels.mkdir()
    for line in (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, content = make_wheel(*line.replace("-", "_").split("=="))
            (wheels / name).write_bytes(content)
    (pip,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    shutil.copy(pip, wheels)
    with pytest.MonkeyPatch.context() as patch:
        # pip reads "no build isolation: 0" as: without isolation, with the installed hatchling.
        for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(wheels), "NO_BUILD_ISOLATION": "0"}.items():
            patch.setenv(f"PIP_{name}", value)
        made = bundle.make(folder / "out")
    subprocess.run(["sha256sum", "--check", f"{made.name}.sha256"], cwd=made.parent, check=True)
    with tarfile.open(made) as tar:
        tar.extractall(folder, filter="data")
    return folder / made.name.removesuffix(".tar")


def install(archive: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Install as another user, without a network where namespaces are allowed."""
    can_unshare = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode == 0
    command = [*(["unshare", "-n"] if can_unshare else []), str(archive / "install.sh"), *words]
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHON": sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_archive_installs_without_a_network(archive: Path, tmp_path: Path) -> None:
    ended = install(archive, tmp_path)
    assert ended.returncode == 0, ended.stderr
    command = tmp_path / ".local" / "bin" / "rankscope"
    python = tmp_path / ".local/share/rankscope/program/bin/python"
    code = "import importlib.metadata as m, rankscope as r; print(r.add_to_path(), m.version('torch'))"
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert command.is_file() and (Path(told[0]) / "assets" / "lessons").is_dir() and told[1] == "2.13.0"
    entry = tmp_path / ".local/share/applications/rankscope.desktop"
    assert f'Exec="{python}" "-m" "rankscope" start' in entry.read_text()
    assert install(archive, tmp_path).returncode == 0, "a second installation replaces the first"


def test_damaged_files_and_folders_of_others_are_refused(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    ended = install(archive, tmp_path, str(tmp_path / "mine"))
    assert ended.returncode == 1 and "is not an environment of Python" in ended.stderr
    assert (tmp_path / "mine" / "thesis.tex").exists()
    damaged = tmp_path / "damaged"
    shutil.copytree(archive, damaged)
    (damaged / "requirements.txt").write_text("x")
    ended = install(damaged, tmp_path, str(tmp_path / "new"))
    assert ended.returncode == 1 and "are damaged or missing" in ended.stderr
    assert not (tmp_path / "new").exists()
