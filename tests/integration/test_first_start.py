"""The first start with real environments and the real pip, with tiny wheels from a local index.

The scripts are copies in which the paths that reveal this machine's driver are replaced.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.disk import filled
from tests.harness import REPOSITORY, wait_until
from tests.wheel_index import Index, make_wheel, serving

TIMEOUT_S = 180.0
TORCH = "2.13.0"
START = [
    "bash",
    "-c",
    'set -euo pipefail; source tools/venv.sh; take_torch_build "$@"; make_venv requirements.txt',
    "-",
]


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with pip; creating one takes seconds."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture
def index() -> Iterator[Index]:
    with serving() as index:
        for version in (f"{TORCH}+cpu", f"{TORCH}+cu126", f"{TORCH}+cu130", TORCH):
            index.add_torch(version)
        index.add("/simple/widget/", *make_wheel("widget", "1.0"))
        yield index


class Checkout:
    """A folder with the scripts, on a simulated machine."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self.index = index
        self.machine = folder / "machine"
        for name in ("tools", "machine/bin", "machine/dev", "machine/pci", "home"):
            (folder / name).mkdir(parents=True)
        replaced = {
            "/proc/driver/nvidia/version": f"{self.machine}/version",
            '"/dev"': f'"{self.machine}/dev"',
            "/dev/dxg": f"{self.machine}/dev/dxg",
            "/dev/nvidia": f"{self.machine}/dev/nvidia",
            "/sys/bus/pci/devices": f"{self.machine}/pci",
            "/usr/lib/wsl/lib": f"{self.machine}/wsl",
            "libcuda.so.1": "libcuda.so.none",
            "INDEX_TIMEOUT_S = 5.0": "INDEX_TIMEOUT_S = 3.0",
            "DISK_MB = 1_500": "DISK_MB = 0",
            "DISK_MB = 8_000": "DISK_MB = 0",
        }
        found = set()
        for name in ("venv.sh", "torch_build.py", "wheel_download.py"):
            text = (REPOSITORY / "tools" / name).read_text(encoding="utf-8")
            for old, new in replaced.items():
                found |= {old} if old in text else set()
                text = text.replace(old, new)
            (folder / "tools" / name).write_text(text, encoding="utf-8")
        assert found == set(replaced)
        (folder / "requirements.txt").write_text(f"torch=={TORCH}\nwidget==1.0\n")
        self.put_driver(None)

    def put_driver(self, driver: str | None) -> None:
        """Simulate a driver and a card for nvidia-smi and the kernel's files; None removes the driver."""
        smi = self.machine / "bin" / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\n{f'echo {driver}, 8.6' if driver else 'exit 9'}\n")
        smi.chmod(0o755)
        if driver:
            (self.machine / "dev" / "nvidia0").touch()
            (self.machine / "version").write_text(
                f"NVRM version: NVIDIA UNIX Kernel Module  {driver}  Release\n"
            )

    def start(self, *options: str, **variables: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "DDP_"))}
        return subprocess.Popen(
            [*START, *options],
            cwd=self.folder,
            env=kept
            | {
                "PATH": f"{self.machine / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
                "HOME": str(self.folder / "home"),
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_INDEX_URL": f"{self.index.url}/simple/",
                "PIP_RETRIES": "0",
                "DDP_TORCH_INDEX": f"{self.index.url}/whl",
                "no_proxy": "127.0.0.1",
            }
            | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A test can then kill the process group, like a closed terminal.
            start_new_session=True,
        )

    def run(self, *options: str, **variables: str) -> tuple[int, str]:
        """Run to the end; return the exit code and the output."""
        with self.start(*options, **variables) as process:
            said, _ = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, said

    def interrupt(self, process: subprocess.Popen[str]) -> None:
        """Kill a start once the server has stalled, as in a power failure."""
        wait_until("a download has stalled", self.index.is_stalled.is_set, TIMEOUT_S)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def num_stored(self) -> int:
        """Return the size of the interrupted download."""
        return sum(path.stat().st_size for path in self.folder.rglob("*.part"))

    @property
    def torch(self) -> str:
        """Return the version in torch's own version file."""
        (file,) = self.folder.glob(".venv/lib/python3*/site-packages/torch/version.py")
        return file.read_text().split("'")[1]

    @property
    def names(self) -> list[str]:
        found = self.folder.glob(".venv/lib/python3*/site-packages/*.dist-info")
        return sorted(path.stem for path in found if path.stem.startswith(("torch", "widget")))


@pytest.fixture
def checkout(tmp_path: Path, index: Index, empty_environment: Path) -> Checkout:
    """Return a checkout with an empty environment."""
    checkout = Checkout(tmp_path / "checkout", index)
    shutil.copytree(empty_environment, checkout.folder / ".venv", symlinks=True)
    return checkout


def test_build_for_the_driver_is_installed_once(checkout: Checkout, index: Index) -> None:
    checkout.put_driver("580.95.05")
    code, said = checkout.run()
    assert code == 0, said
    assert checkout.names == [f"torch-{TORCH}+cu130", "widget-1.0"]
    assert index.num_asked("/simple/torch/") <= 1 and not any(
        "/simple/torch/torch-" in path for _, path, _ in index.asked
    )
    assert said.index("Download: ") < said.index("torch: 0 of 0 MB") < said.index("Successfully installed")
    assert not (checkout.folder / ".venv-download").exists()
    num_asked = len(index.asked)
    assert checkout.run() == (0, ""), "all is there: nothing is said"
    assert len(index.asked) == num_asked


def test_build_that_was_asked_for(checkout: Checkout) -> None:
    checkout.put_driver("580.95.05")
    assert checkout.run(DDP_TORCH_BUILD="cu126")[0] == 0
    assert checkout.torch == f"{TORCH}+cu126"
    code, said = checkout.run("--torch-build", "cu118")
    assert code == 1 and "'cu118'; allowed: auto, cpu, cu132" in said
    assert checkout.torch == f"{TORCH}+cu126", "a mistake changes nothing"
    assert checkout.run("--torch-build=cpu")[0] == 0
    assert checkout.names == [f"torch-{TORCH}+cpu", "widget-1.0"]


def test_interrupted_download_is_continued(checkout: Checkout, index: Index) -> None:
    (path,) = [path for path in index.files if "2Bcpu-" in path]
    index.stalls_after[path] = 100_000
    process = checkout.start()
    # The server stalls when it has sent them, which is before they are on the disk.
    wait_until("the first bytes being stored", lambda: checkout.num_stored() == 100_000, TIMEOUT_S)
    checkout.interrupt(process)
    code, said = checkout.run()
    assert code == 0, said
    assert [part for method, asked, part in index.asked if (method, asked) == ("GET", path)] == [
        "",
        "bytes=100000-",
    ]
    assert checkout.torch == f"{TORCH}+cpu"


def test_second_start_waits_for_the_first(checkout: Checkout, index: Index) -> None:
    (path,) = [path for path in index.files if "2Bcpu-" in path]
    index.stalls_after[path] = 100_000
    with checkout.start() as first:
        wait_until("a download has stalled", index.is_stalled.is_set, TIMEOUT_S)
        with checkout.start() as second:
            assert second.stdout is not None
            assert "Waiting for another installation" in second.stdout.readline()
            index.is_over.set()
            said = first.communicate(timeout=TIMEOUT_S)[0]
            assert first.returncode == 0, said
            assert second.communicate(timeout=TIMEOUT_S)[0] == ""
            assert second.returncode == 0
    assert checkout.torch == f"{TORCH}+cpu"


def test_full_disk_is_said_and_the_next_start_repairs(
    small_disk: Path, index: Index, empty_environment: Path
) -> None:
    checkout = Checkout(small_disk / "checkout", index)
    with filled(small_disk):
        code, said = checkout.run()
    assert code == 1 and "The virtual environment could not be made" in said, said
    assert "The disk is full: 0 MB are free in" in said and "python3-venv" not in said
    assert not (checkout.folder / ".venv").exists()
    shutil.copytree(empty_environment, checkout.folder / ".venv", symlinks=True)
    with filled(small_disk):
        for choice in ("auto", "configured"):
            code, said = checkout.run(DDP_TORCH_BUILD=choice)
            assert code == 1 and "No space left on device" in said and "The disk is full" in said, said
    code, said = checkout.run()
    assert code == 0, said
    assert checkout.names == [f"torch-{TORCH}+cpu", "widget-1.0"]
