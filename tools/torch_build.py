"""Choose and download the build of torch that this machine can use.

`tools/venv.sh` runs it before anything is installed, so it needs only the standard library:

    python -m tools.torch_build fetch .venv-download cpu requirements.txt    # prints the path of the wheel
    python -m tools.torch_build compare .venv            # prints advice if the GPUs need another build
    python -m tools.torch_build is-installed .venv auto  # exits with 0 if torch need not be replaced
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools import wheel_download

INDEX = "https://download.pytorch.org/whl"
PROC_VERSION = Path("/proc/driver/nvidia/version")
DEVICES = Path("/dev")
PCI_DEVICES = Path("/sys/bus/pci/devices")
WSL_LIBRARIES = Path("/usr/lib/wsl/lib")
# nvidia-smi can hang if a GPU has failed, and sinfo if slurmctld is down.
COMMAND_TIMEOUT_S = 10.0

CUDA = tuple[int, int]


@dataclass(frozen=True)
class Build:
    """A build of torch for one version of CUDA.

    Attributes:
        name: its folder in PyTorch's index, and the local part of its version.
        cuda: the version of CUDA that it contains.
        capabilities: the lowest and the highest compute capability it has kernels for.
        packages_mb: download size of the CUDA packages and of triton.
    """

    name: str
    cuda: CUDA
    capabilities: tuple[CUDA, CUDA]
    packages_mb: int


# Builds of TORCH, latest first; packages_mb is for x86_64. Update them when another torch is pinned.
TORCH = "2.13.0"
BUILDS = (
    Build("cu132", (13, 2), ((7, 5), (12, 9)), 2180),
    Build("cu130", (13, 0), ((7, 5), (12, 9)), 2200),
    Build("cu126", (12, 6), ((5, 0), (9, 9)), 2710),
)
# PyPI's build for Linux, and the size of its wheel.
DEFAULT_BUILD = BUILDS[1]
DEFAULT_WHEEL_MB = 527
CPU_WHEEL_MB = 192
# From the release notes of the CUDA toolkit: the driver that is shipped with each version.
OLDEST_DRIVER = 525
CUDA_OF_DRIVER = (
    (595, (13, 2)),
    (590, (13, 1)),
    (580, (13, 0)),
    (560, (12, 6)),
    (525, (12, 0)),
    (450, (11, 0)),
)

CHOICES = ("auto", "cpu", *(build.name for build in BUILDS), "configured")
# Size of the other packages of a requirements file, with their dependencies.
OTHER_PACKAGES_MB = {"requirements.txt": 110, "requirements-dev.txt": 190}
# Needed during installation: downloaded wheels and unpacked files. 1.1 and 5.1 GB remain.
CPU_DISK_MB = 1_500
CUDA_DISK_MB = 8_000


@dataclass(frozen=True)
class Nvidia:
    """The NVIDIA hardware that processes on this machine can use.

    Attributes:
        driver: version of the driver, such as 580.95.05, or None.
        cuda: the latest CUDA that the driver supports; None without usable hardware.
        capabilities: known compute capabilities of the GPUs.
        why_none: the reason if `cuda` is None.
    """

    driver: str | None = None
    cuda: CUDA | None = None
    capabilities: tuple[CUDA, ...] = ()
    why_none: str = "no NVIDIA GPU was found"


def read_nvidia() -> Nvidia:
    """Return the driver and GPUs of this machine. Supports WSL2, where Windows has the driver."""
    cuda, smi = _cuda_of_library(), _nvidia_smi()
    # libcuda and, in containers, the kernel's driver also exist without a GPU.
    is_wsl = (DEVICES / "dxg").exists() and cuda is not None
    if smi is not None or is_wsl or list(DEVICES.glob("nvidia[0-9]*")):
        driver = smi[0] if smi else _kernel_driver()
        return Nvidia(driver, cuda or _cuda_of(driver), smi[1] if smi else ())
    if (driver := _kernel_driver()) is not None:
        return Nvidia(driver, why_none=f"NVIDIA driver {driver} is there, but no GPU is visible here")
    if num_cards := _num_cards():
        cards = "an NVIDIA card" if num_cards == 1 else f"{num_cards} NVIDIA cards"
        return Nvidia(why_none=f"this machine has {cards}, but no NVIDIA driver")
    return Nvidia()


def _cuda_of_library() -> CUDA | None:
    """Return the CUDA version that libcuda reports; this opens no device."""
    for name in ("libcuda.so.1", str(WSL_LIBRARIES / "libcuda.so.1")):
        try:
            library = ctypes.CDLL(name)
            number = ctypes.c_int(0)
            if library.cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value > 0:
                return number.value // 1000, number.value % 1000 // 10
        except (OSError, AttributeError):
            continue
    return None


def _nvidia_smi() -> tuple[str, tuple[CUDA, ...]] | None:
    """Return the driver version and the compute capabilities; None without nvidia-smi or GPUs.

    Drivers before 510 do not report capabilities.
    """
    program = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=str(WSL_LIBRARIES))
    if program is None:
        return None
    for fields in ("driver_version,compute_cap", "driver_version"):
        lines = _output(program, f"--query-gpu={fields}", "--format=csv,noheader").splitlines()
        rows = [[cell.strip() for cell in line.split(",")] for line in lines]
        if rows and all(re.fullmatch(r"\d+(\.\d+)+", row[0]) for row in rows):
            found = [re.fullmatch(r"(\d+)\.(\d+)", row[-1]) for row in rows if len(row) > 1]
            return rows[0][0], tuple((int(each[1]), int(each[2])) for each in found if each)
    return None


def _kernel_driver() -> str | None:
    try:
        text = PROC_VERSION.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else None


def _num_cards() -> int:
    """Return the number of NVIDIA display controllers on the PCI bus."""
    num = 0
    for device in PCI_DEVICES.glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        except OSError:
            continue
        num += vendor.strip() == "0x10de" and kind.startswith("0x03")
    return num


def _cuda_of(driver: str | None) -> CUDA | None:
    major = int(driver.split(".")[0]) if driver else 0
    return next((cuda for first, cuda in CUDA_OF_DRIVER if major >= first), None)


def _output(*command: str) -> str:
    """Return the output of a command, or "" if it fails or hangs."""
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout if ended.returncode == 0 else ""


def usable_builds(nvidia: Nvidia) -> list[Build]:
    """Return the builds that the driver and the GPUs can use, best first.

    Builds for the driver's own CUDA or an older one come before those for a newer one of the same major
    version, which run by CUDA's minor version compatibility, but fail when PTX is compiled
    (`cudaErrorUnsupportedPtxVersion`). A build for more of the GPUs comes before both.
    """
    cuda = nvidia.cuda
    usable = [build for build in BUILDS if cuda is not None and _runs(build, cuda)]

    def num_gpus(build: Build) -> int:
        lowest, highest = build.capabilities
        return sum(lowest <= each <= highest for each in nvidia.capabilities)

    if nvidia.capabilities:
        usable = [build for build in usable if num_gpus(build)]
    return sorted(usable, key=lambda build: (-num_gpus(build), build.cuda > (cuda or build.cuda)))


def _runs(build: Build, cuda: CUDA) -> bool:
    return build.cuda <= cuda or build.cuda[0] == cuda[0]


@dataclass(frozen=True)
class Choice:
    """The builds to try, in this order, and the reason."""

    names: tuple[str, ...]
    why: str


def choose(wanted: str, nvidia: Nvidia, *, cluster_has_gpus: Callable[[], bool]) -> Choice:
    """Return the builds to try for one of CHOICES.

    Raises:
        ValueError: it is not one of CHOICES; the message lists them.
    """
    if wanted not in CHOICES:
        allowed = ", ".join(CHOICES)
        raise ValueError(f"--torch-build (DDP_TORCH_BUILD) is {wanted!r}; allowed: {allowed}")
    if wanted != "auto":
        return Choice(() if wanted == "configured" else (wanted,), "it was requested")
    driver = f"NVIDIA driver {nvidia.driver}" if nvidia.driver else "the NVIDIA driver"
    if builds := usable_builds(nvidia):
        supports = f"{driver} supports CUDA {_text(nvidia.cuda or builds[0].cuda)}"
        return Choice(tuple(build.name for build in builds), supports)
    if (cuda := nvidia.cuda) is not None:
        why = f"{driver} is too old: torch {TORCH} needs {OLDEST_DRIVER} or newer"
        if any(_runs(build, cuda) for build in BUILDS):
            cards = ", ".join(sorted(map(_text, set(nvidia.capabilities))))
            why = f"no build that {driver} can use supports GPUs of compute capability {cards}"
        return Choice(("cpu",), why)
    if cluster_has_gpus():
        why = (
            f"{nvidia.why_none}, but Slurm lists GPUs on other nodes; if their driver is older than 580, "
            f"choose {BUILDS[-1].name}"
        )
        return Choice((DEFAULT_BUILD.name,), why)
    return Choice(("cpu",), nvidia.why_none)


def slurm_has_gpus() -> bool:
    """True if a node of this machine's Slurm cluster has GPUs."""
    return shutil.which("sinfo") is not None and "gpu" in _output("sinfo", "--noheader", "--format=%G")


def _text(version: CUDA) -> str:
    return ".".join(map(str, version))


def fetch(folder: Path, wanted: str, files: list[str]) -> Path | None:
    """Announce and download the chosen build. Return its wheel, or None if pip uses its own index.

    Raises:
        ValueError: a requested build is not available, or the disk is too small.
        OSError: the file cannot be written.
    """
    if sys.platform != "linux":
        wanted = "configured"
    choice = choose(wanted, read_nvidia(), cluster_has_gpus=slurm_has_gpus)
    others_mb = sum(OTHER_PACKAGES_MB.get(Path(file).name, 0) for file in files)
    if not choice.names:
        _say_configured(f"torch {TORCH} comes from pip's configured index", others_mb, choice)
        return None
    wheel_download.use_proxy_of_pip(_output(sys.executable, "-m", "pip", "config", "list"))
    index = os.environ.get("DDP_TORCH_INDEX", INDEX).rstrip("/")
    wheel = None
    try:
        wheel = wheel_download.first_wheel(index, TORCH, choice.names)
        packages = next((each.packages_mb for each in BUILDS if each.name == wheel.build), 0)
        cuda = wheel.build.removeprefix("cu")
        has = "the CPU build" if wheel.build == "cpu" else f"the build for CUDA {cuda[:-1]}.{cuda[-1]}"
        _say(f"torch {TORCH}: {has}, because {choice.why}. For another one: --torch-build (README).")
        further = f"{packages:,} MB of CUDA packages and {others_mb} MB of others"
        if not packages:
            further = f"{others_mb} MB of other packages"
        wheel_mb = wheel_download.mb(wheel.num_bytes)
        _say(f"Download: {wheel_mb} MB from {wheel.host}, then about {further} by pip.")
        _check_disk(folder, CUDA_DISK_MB if packages else CPU_DISK_MB)
        return wheel_download.download(wheel, folder, wheel_download.Progress())
    except (wheel_download.UnusableError, urllib.error.HTTPError) as error:
        why = f"{index} cannot be used ({error})"
        part = wheel is not None and (folder / f"{wheel.name}.part")
        if part and part.exists() and part.stat().st_size:
            raise ValueError(
                f"{error}. Start again, and the download continues there; or use pip's configured index: "
                "--torch-build configured"
            ) from error
        if wanted not in ("auto", "configured"):
            raise ValueError(
                f"{why}, so torch's build {wanted} is not available. To use pip's configured index: "
                "--torch-build configured"
            ) from error
        _say_configured(f"{why}: torch {TORCH} comes from pip's configured index", others_mb, choice)
        return None


def _say_configured(beginning: str, others_mb: int, choice: Choice) -> None:
    _say(f"{beginning}.")
    if sys.platform != "linux":
        return
    default_mb = DEFAULT_WHEEL_MB + DEFAULT_BUILD.packages_mb + others_mb
    cuda = _text(DEFAULT_BUILD.cuda)
    _say(
        f"Download by pip: about {default_mb:,} MB if that index is PyPI, whose build is for CUDA {cuda}; "
        f"about {CPU_WHEEL_MB + others_mb} MB if it has the CPU build."
    )
    if choice.names and choice.names[0] != "cpu" and DEFAULT_BUILD.name not in choice.names:
        _say(f"The build for CUDA {cuda} cannot use the GPUs here ({choice.why}): ranks will run on the CPU.")


def _check_disk(folder: Path, needed_mb: int) -> None:
    """Refuse an installation that would fill the disk.

    Raises:
        ValueError: the message states the needed and the free space.
    """
    free_mb = shutil.disk_usage(folder.parent).free / 1e6
    if free_mb < needed_mb:
        where = folder.parent.resolve()
        raise ValueError(
            f"the installation needs about {needed_mb:,} MB in {where}, where {free_mb:,.0f} MB are free. "
            "Make room and start again"
        )


def installed_build(environment: Path) -> str | None:
    """Return the build of the torch in an environment, such as cu130 or cpu, or None."""
    for file in environment.glob("lib/python3*/site-packages/torch/version.py"):
        found = re.search(r"__version__ = '[^'+]*(?:\+([^']*))?'", file.read_text(encoding="utf-8"))
        return (found[1] or "cpu") if found else None
    return None


def compare(environment: Path) -> str:
    """Return advice if the GPUs of this machine need another build than the installed one, or ""."""
    installed, nvidia = installed_build(environment), read_nvidia()
    names = [build.name for build in usable_builds(nvidia)]
    if installed is None or not names or installed in names:
        return ""
    has = "for CPUs only" if installed == "cpu" else f"build {installed}"
    driver = nvidia.driver or f"for CUDA {_text(nvidia.cuda or (0, 0))}"
    return (
        f"This machine has NVIDIA driver {driver}, but torch in .venv is {has} and cannot use its GPUs. "
        "To replace it: ./run.sh --torch-build auto"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Run a command. Return the exit code."""
    command, folder, *rest = arguments
    if command == "compare":
        if advice := compare(Path(folder)):
            _say(advice)
            return 1
        return 0
    try:
        if command == "is-installed":
            choice = choose(rest[0], read_nvidia(), cluster_has_gpus=slurm_has_gpus)
            return 0 if not choice.names or installed_build(Path(folder)) in choice.names else 1
        assert command == "fetch"
        wheel = fetch(Path(folder), rest[0], rest[1:])
    except (ValueError, OSError) as error:
        _say(f"torch cannot be installed: {error}.")
        return 1
    except KeyboardInterrupt:
        _say("\nStopped. The next start continues the download.")
        return 130
    if wheel is not None:
        print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
