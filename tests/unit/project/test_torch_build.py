"""Tests of the torch build: its choice for a machine, its source, and downloads over a broken network."""

from __future__ import annotations

import ctypes
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import REPOSITORY
from tests.wheel_index import Index, make_wheel, serving
from tools import torch_build, wheel_download
from tools.torch_build import Nvidia

TORCH = torch_build.TORCH
# Driver version, and the CUDA version that it supports.
R470 = Nvidia("470.223.02", (11, 4))
R550 = Nvidia("550.54.15", (12, 4))
R570 = Nvidia("570.86.15", (12, 8))
R580 = Nvidia("580.95.05", (13, 0))
R595 = Nvidia("595.71.05", (13, 2))
TURING, PASCAL, BLACKWELL = (7, 5), (6, 0), (12, 0)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a machine without NVIDIA hardware; tests add some."""
    for name in ("dev", "pci", "wsl", "bin"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(torch_build, "DEVICES", tmp_path / "dev")
    monkeypatch.setattr(torch_build, "PCI_DEVICES", tmp_path / "pci")
    monkeypatch.setattr(torch_build, "WSL_LIBRARIES", tmp_path / "wsl")
    monkeypatch.setattr(torch_build, "PROC_VERSION", tmp_path / "version")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in ("http_proxy", "https_proxy", "DDP_TORCH_INDEX"):
        monkeypatch.delenv(name, raising=False)
    put_libcuda(monkeypatch, None)
    # Hides the programs of this machine; a test that needs one replaces it.
    put_program(tmp_path, "nvidia-smi", "exit 9")
    put_program(tmp_path, "sinfo", "exit 1")
    return tmp_path


def put_program(machine: Path, name: str, script: str) -> None:
    program = machine / "bin" / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def put_smi(machine: Path, driver: str, *capabilities: str) -> None:
    """Add an nvidia-smi; without capabilities it rejects the query for them, as before driver 510."""
    rows = [f"{driver}, {each}" for each in capabilities] or [driver]
    answer = "\\n".join(rows)
    know = "" if capabilities else 'case "$*" in *compute_cap*) echo "not a valid field"; exit 2;; esac\n'
    put_program(machine, "nvidia-smi", f"{know}printf '{answer}\\n'")


def put_libcuda(monkeypatch: pytest.MonkeyPatch, cuda: int | None) -> None:
    class Library:
        @staticmethod
        def cuDriverGetVersion(number: Any) -> int:  # noqa: N802
            number._obj.value = cuda
            return 0

    def load(name: str) -> type[Library]:
        if cuda is None:
            raise OSError(f"{name}: cannot open shared object file")
        return Library

    monkeypatch.setattr(ctypes, "CDLL", load)


@pytest.mark.parametrize(
    ("nvidia", "capabilities", "expected"),
    [
        (Nvidia(), (), []),
        (R470, (), []),
        (R550, (TURING,), ["cu126"]),
        (R570, (BLACKWELL,), []),
        (R580, (TURING,), ["cu130", "cu126", "cu132"]),
        (R580, (PASCAL,), ["cu126"]),
        # A build for more of the GPUs comes first; among equals the order is as above.
        (R580, (PASCAL, TURING), ["cu126", "cu130", "cu132"]),
        (R580, (PASCAL, TURING, BLACKWELL, BLACKWELL), ["cu130", "cu132", "cu126"]),
        (R595, (TURING,), ["cu132", "cu130", "cu126"]),
    ],
)
def test_usable_builds(
    nvidia: Nvidia, capabilities: tuple[tuple[int, int], ...], expected: list[str]
) -> None:
    found = torch_build.usable_builds(Nvidia(nvidia.driver, nvidia.cuda, capabilities))
    assert [build.name for build in found] == expected


@pytest.mark.parametrize(
    ("nvidia", "first", "why"),
    [
        (Nvidia(), "cpu", "no NVIDIA GPU was found"),
        (R470, "cpu", "NVIDIA driver 470.223.02 is too old: torch 2.13.0 needs 525 or newer"),
        (R550, "cu126", "NVIDIA driver 550.54.15 supports CUDA 12.4"),
        (R580, "cu130", "NVIDIA driver 580.95.05 supports CUDA 13.0"),
        (
            Nvidia(R570.driver, R570.cuda, (BLACKWELL,)),
            "cpu",
            "no build that NVIDIA driver 570.86.15 can use supports GPUs of compute capability 12.0",
        ),
    ],
)
def test_choice_and_its_reason(nvidia: Nvidia, first: str, why: str) -> None:
    choice = torch_build.choose("auto", nvidia, cluster_has_gpus=lambda: False)
    assert (choice.names[0], choice.why) == (first, why)
    assert torch_build.choose("cu126", nvidia, cluster_has_gpus=lambda: False).names == ("cu126",)
    assert torch_build.choose("configured", nvidia, cluster_has_gpus=lambda: False).names == ()


def test_unknown_build_is_refused_with_those_allowed() -> None:
    with pytest.raises(ValueError, match=r"is 'cu118'; allowed: auto, cpu, cu132, cu130, cu126, conf"):
        torch_build.choose("cu118", R550, cluster_has_gpus=lambda: False)


@pytest.mark.parametrize("capabilities", [(), ("7.5", "12.0")])
@pytest.mark.parametrize(
    ("driver", "cuda"), [("470.223.02", (11, 0)), ("550.54.15", (12, 0)), ("580.95.05", (13, 0))]
)
def test_driver_version(
    machine: Path, driver: str, cuda: tuple[int, int], capabilities: tuple[str, ...]
) -> None:
    put_smi(machine, driver, *capabilities)
    found = torch_build.read_nvidia()
    assert (found.driver, found.cuda) == (driver, cuda)
    assert found.capabilities == (((7, 5), (12, 0)) if capabilities else ())


def test_wsl2_has_windows_driver(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "dev" / "dxg").touch()
    assert torch_build.read_nvidia().cuda is None, "the GPU is of another make"
    put_libcuda(monkeypatch, 13000)
    found = torch_build.read_nvidia()
    assert (found.driver, found.cuda) == (None, (13, 0))
    choice = torch_build.choose("auto", found, cluster_has_gpus=lambda: False)
    assert (choice.names[0], choice.why) == ("cu130", "the NVIDIA driver supports CUDA 13.0")


def test_why_there_is_no_gpu(machine: Path) -> None:
    cards = (("a", "0x10de", "0x030000"), ("b", "0x10de", "0x040300"), ("c", "0x1002", "0x030000"))
    for name, vendor, kind in cards:
        (machine / "pci" / name).mkdir()
        (machine / "pci" / name / "vendor").write_text(vendor + "\n")
        (machine / "pci" / name / "class").write_text(kind + "\n")
    assert torch_build.read_nvidia().why_none == "this machine has an NVIDIA card, but no NVIDIA driver"
    (machine / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\n"
    )
    found = torch_build.read_nvidia()
    assert found.cuda is None, "a container to which no GPU was passed"
    assert found.why_none == "NVIDIA driver 580.95.05 is there, but no GPU is visible here"


@pytest.mark.parametrize(("gres", "first"), [("gpu:a100:4(S:0-1)", "cu130"), ("(null)", "cpu")])
def test_login_node_takes_the_build_for_the_nodes(machine: Path, gres: str, first: str) -> None:
    put_program(machine, "sinfo", f"echo '{gres}'")
    choice = torch_build.choose(
        "auto", torch_build.read_nvidia(), cluster_has_gpus=torch_build.slurm_has_gpus
    )
    assert choice.names == (first,)
    assert ("Slurm lists GPUs on other nodes" in choice.why) == (first != "cpu")


@pytest.fixture
def index(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Serve an index with builds of this torch and of others."""
    monkeypatch.setattr(wheel_download, "INDEX_TIMEOUT_S", 30.0)
    for name in ("CPU_DISK_MB", "CUDA_DISK_MB"):
        monkeypatch.setattr(torch_build, name, 0)
    monkeypatch.setattr(wheel_download.time, "sleep", lambda _: None)
    monkeypatch.setattr(wheel_download, "use_proxy_of_pip", lambda _: None)
    with serving() as index:
        for build in ("cpu", "cu126", "cu130", "cu132"):
            index.add_torch(f"2.12.0+{build}")
            index.add_torch(f"{TORCH}+{build}", python="cp39")
            index.add_torch(f"{TORCH}+{build}")
        monkeypatch.setenv("DDP_TORCH_INDEX", f"{index.url}/whl/")
        yield index


def fetch(machine: Path, wanted: str = "auto") -> Path | None:
    return torch_build.fetch(machine / "downloads", wanted, ["requirements.txt"])


def path_of(build: str, index: Index) -> str:
    (path,) = [path for path in index.files if f"torch-{TORCH}%2B{build}-" in path and "cp39" not in path]
    return path


def test_next_build_where_the_index_lacks_the_best(machine: Path, index: Index) -> None:
    """PyTorch's index answers 403 for files that it never had."""
    put_smi(machine, "580.95.05", "7.5")
    index.refused["/whl/cu130/"] = 403
    wheel = fetch(machine)
    assert wheel is not None and "+cu126-" in wheel.name


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ("refused", "answers 403 Forbidden"),
        ("hangs", "no answer"),
        ("closed", "Connection refused"),
        ("portal", "lists no torch 2.13.0+cpu for Python"),
        ("wheel refused", "answers 403 Forbidden"),
        ("download refused", "HTTP Error 403: Forbidden"),
    ],
)
def test_configured_index_where_pytorchs_cannot_be_used(
    machine: Path,
    index: Index,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    why: str,
) -> None:
    match trouble:
        case "refused":
            index.refused["/whl/"] = 403
        case "hangs":
            monkeypatch.setattr(wheel_download, "INDEX_TIMEOUT_S", 0.5)
            index.hanging.append("/whl/")
        case "closed":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                monkeypatch.setenv("DDP_TORCH_INDEX", f"http://127.0.0.1:{free.getsockname()[1]}/whl")
        case "portal":
            index.pages["/whl/cpu/torch/"] = ["<h1>Please log in</h1>"]
        case "wheel refused":
            index.refused[path_of("cpu", index)] = 403
        case "download refused":
            size = wheel_download._size
            monkeypatch.setattr(wheel_download, "_size", lambda url: refuse_after(index, size(url)))
    began = time.monotonic()
    assert fetch(machine) is None
    assert time.monotonic() - began < 10
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if "cannot be used" in line]
    assert why in line and line.endswith("torch 2.13.0 comes from pip's configured index.")
    assert "about 2,837 MB if that index is PyPI, whose build is for CUDA 13.0; about 302 MB" in said


def refuse_after(index: Index, size: int) -> int:
    index.refused["/whl/cpu/"] = 403
    return size


def test_build_that_was_asked_for_is_not_replaced_by_another_and_one_without_use_is_said(
    machine: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    put_smi(machine, "550.54.15", "8.0")
    index.refused["/whl/"] = 403
    assert fetch(machine) is None
    said = capsys.readouterr().err
    assert "The build for CUDA 13.0 cannot use the GPUs here (NVIDIA driver 550.54.15" in said
    with pytest.raises(
        ValueError, match=r"403.*so torch's build cu126 is not available.*--torch-build configured"
    ):
        fetch(machine, "cu126")


def test_broken_connection_is_continued(machine: Path, index: Index) -> None:
    path = path_of("cpu", index)
    index.cut_after[path] = 100_000
    wheel = fetch(machine)
    assert wheel is not None and wheel.read_bytes() == index.files[path]
    assert [asked[2] for asked in index.asked if asked[:2] == ("GET", path)] == ["", "bytes=100000-"]


def test_file_that_is_not_the_one_named_is_deleted_and_a_too_small_disk_is_said(
    machine: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of("cpu", index)
    index.files[path] = make_wheel("torch", "6.6.6", filling=len(index.files[path]))[1][
        : len(index.files[path])
    ]
    with pytest.raises(ValueError, match="does not match the index in SHA-256 or size; it was del"):
        fetch(machine, "cpu")
    assert not list((machine / "downloads").iterdir())
    num_asked = index.num_asked(path)
    monkeypatch.setattr(torch_build, "CPU_DISK_MB", 10**9)
    with pytest.raises(ValueError, match=r"needs about 1,000,000,000 MB in .* MB are free. Make room"):
        fetch(machine)
    assert index.num_asked(path) == num_asked, "it is said before anything is downloaded"


@pytest.mark.parametrize(
    ("installed", "driver", "advice"),
    [
        ("2.13.0+cpu", None, ""),
        ("2.13.0+cpu", "580.95.05", "NVIDIA driver 580.95.05, but torch in .venv is for CPUs only"),
        ("2.13.0+cu126", "580.95.05", ""),
        ("2.13.0+cu130", "550.54.15", "NVIDIA driver 550.54.15, but torch in .venv is build cu130"),
        ("2.13.0+cpu", "470.223.02", ""),
    ],
)
def test_advice_to_change_the_build(machine: Path, installed: str, driver: str | None, advice: str) -> None:
    site = machine / "venv" / "lib" / "python3.11" / "site-packages" / "torch"
    site.mkdir(parents=True)
    (site / "version.py").write_text(f"__all__ = []\n__version__ = '{installed}'\ndebug = False\n")
    if driver:
        put_smi(machine, driver)
    said = torch_build.compare(machine / "venv")
    assert said == "" if not advice else advice in said and said.endswith("./run.sh --torch-build auto")


def test_proxy_that_pip_uses_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "global.proxy='http://proxy:3128'\n:env:.cert='/etc/ssl/own.pem'\nglobal.index-url='https://x/simple'\n"
    for name in ("http_proxy", "https_proxy", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://own")
    wheel_download.use_proxy_of_pip(text)
    environ = wheel_download.os.environ
    proxies = (environ["http_proxy"], environ["https_proxy"])
    assert (*proxies, environ["SSL_CERT_FILE"]) == ("http://own", "http://proxy:3128", "/etc/ssl/own.pem")
    for name in ("https_proxy", "SSL_CERT_FILE"):
        del environ[name]


def test_builds_are_those_of_the_torch_that_is_pinned() -> None:
    """A change of the pinned torch requires an update of the builds."""
    lines = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("torch==")] == [f"torch=={TORCH}"]
