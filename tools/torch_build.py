"""Choose and download the build of torch that this machine can use.

`tools/venv.sh` runs this file before anything is installed, so it needs only the standard library:

    python tools/torch_build.py fetch .venv-download cpu requirements.txt    # prints the path of the wheel
    python tools/torch_build.py compare .venv            # prints advice if the GPUs need another build
    python tools/torch_build.py is-installed .venv auto  # exits with 0 if torch need not be replaced
"""

from __future__ import annotations

import ctypes
import hashlib
import http.client
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

INDEX = "https://download.pytorch.org/whl"
# An index that does not answer within this time is not used.
INDEX_TIMEOUT_S = 5.0
# A page of the index that takes longer in all, or is larger, is not used either.
INDEX_PAGE_S = 15.0
INDEX_PAGE_BYTES = 20_000_000
# A download that stalls for so long is requested again, from where it stopped.
STALL_S = 30.0
NUM_ATTEMPTS = 4
PROGRESS_EVERY_S = 5.0

PROC_VERSION = Path("/proc/driver/nvidia/version")
DEVICES = Path("/dev")
PCI_DEVICES = Path("/sys/bus/pci/devices")
WSL_LIBRARIES = Path("/usr/lib/wsl/lib")
# nvidia-smi and sinfo can hang: on a GPU that has failed, or while Slurm's controller is down.
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


# Builds of TORCH, newest first; packages_mb is for x86_64. Update them when another torch is pinned.
TORCH = "2.13.0"
BUILDS = (
    Build("cu132", (13, 2), ((7, 5), (12, 9)), 2180),
    Build("cu130", (13, 0), ((7, 5), (12, 9)), 2200),
    Build("cu126", (12, 6), ((5, 0), (9, 9)), 2710),
)
# What PyPI has for Linux, and the size of its wheel.
DEFAULT_BUILD = BUILDS[1]
DEFAULT_WHEEL_MB = 527
CPU_WHEEL_MB = 192
# Release notes of the CUDA toolkit: the driver that each version comes with.
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
OTHER_PACKAGES_MB = {"requirements.txt": 110, "requirements-dev.txt": 140}
# Needed during installation: downloaded wheels and unpacked files. 1.1 and 5.1 GB remain.
CPU_DISK_MB = 1_500
CUDA_DISK_MB = 8_000


class UnusableError(Exception):
    """An index or a download that cannot be used; the message says why."""


@dataclass(frozen=True)
class Nvidia:
    """The NVIDIA hardware that processes on this machine can use.

    Attributes:
        driver: version of the driver, such as 580.95.05; None if there is none.
        cuda: the newest CUDA that the driver supports; None without usable hardware.
        capabilities: compute capability of each GPU, as far as they are known.
        why_none: why `cuda` is None.
    """

    driver: str | None = None
    cuda: CUDA | None = None
    capabilities: tuple[CUDA, ...] = ()
    why_none: str = "no NVIDIA GPU was found"


def read_nvidia() -> Nvidia:
    """Return the driver and GPUs of this machine; also inside WSL2, where Windows has the driver."""
    cuda, smi = _cuda_of_library(), _nvidia_smi()
    # libcuda and, in containers, the kernel's driver are also there without a GPU.
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
    """Return what a command prints; empty if it fails or hangs."""
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
    version, which run by CUDA's minor version compatibility, but fail where PTX has to be compiled
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
    """The builds to try, in this order, and why."""

    names: tuple[str, ...]
    why: str


def choose(wanted: str, nvidia: Nvidia, *, cluster_has_gpus: Callable[[], bool]) -> Choice:
    """Return the builds to try for one of CHOICES.

    Raises:
        ValueError: if it is none of them; names the allowed ones.
    """
    if wanted not in CHOICES:
        allowed = ", ".join(CHOICES)
        raise ValueError(f"--torch-build (DDP_TORCH_BUILD) is {wanted!r}, but allowed are: {allowed}")
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
    """Return True if a node of this machine's Slurm cluster has GPUs."""
    return shutil.which("sinfo") is not None and "gpu" in _output("sinfo", "--noheader", "--format=%G")


def _text(version: CUDA) -> str:
    return ".".join(map(str, version))


@dataclass(frozen=True)
class Wheel:
    """A wheel of an index: its address, size and the SHA-256 that the index names, if any."""

    name: str
    url: str
    num_bytes: int
    sha256: str | None

    @property
    def host(self) -> str:
        return urllib.parse.urlsplit(self.url).netloc


def find_wheel(index: str, build: str) -> Wheel:
    """Return the wheel of this interpreter's torch in PyTorch's index.

    Raises:
        UnusableError: when the index does not answer in time, refuses, or has no such wheel.
        urllib.error.HTTPError: when the server refuses this build.
    """
    page = f"{index}/{build}/torch/"
    text = _read_page(page)
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = re.compile(
        rf"torch-{re.escape(TORCH)}\+{build}-{python}-{python}-"
        rf"(?:linux|manylinux_(\d+)_(\d+))_{re.escape(platform.machine())}\.whl"
    )
    for link in re.findall(r"""href=["']?([^"'\s>]+)""", text):
        url, _, fragment = urllib.parse.urljoin(page, link.replace("&amp;", "&")).partition("#")
        found = name.fullmatch(urllib.parse.unquote(url.rsplit("/", 1)[-1]))
        if found and (found[1] is None or (int(found[1]), int(found[2])) <= _glibc()):
            sha256 = re.match(r"sha256=([0-9a-f]{64})", fragment)
            return Wheel(found[0], url, _size(url), sha256[1] if sha256 else None)
    what = f"torch {TORCH}+{build} for Python {_text(sys.version_info[:2])} on {platform.machine()}"
    raise UnusableError(f"{page} lists no {what}")


def _glibc() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.libc_ver()[1].split(".") if part.isdigit())


def _request(url: str, timeout_s: float, *, method: str = "GET", offset: int = 0) -> http.client.HTTPResponse:
    """Send a request.

    Raises:
        UnusableError: when nothing answers, or not in HTTP.
        urllib.error.HTTPError: when the server refuses.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UnusableError(f"{url} is neither http nor https")
    request = urllib.request.Request(url, method=method, headers={"User-Agent": "torch-build"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)  # nosec B310
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnusableError(f"{urllib.parse.urlsplit(url).netloc}: {_reason(error)}") from error
    return response


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "no answer"
    return str(cause) or type(cause).__name__


def _read_page(url: str) -> str:
    deadline = time.monotonic() + INDEX_PAGE_S
    page = bytearray()
    with _request(url, INDEX_TIMEOUT_S) as response:
        try:
            while data := response.read1(1 << 16):
                page += data
                if time.monotonic() > deadline or len(page) > INDEX_PAGE_BYTES:
                    raise UnusableError(
                        f"{url} sends more than {INDEX_PAGE_S:.0f} s or {INDEX_PAGE_BYTES} bytes"
                    )
        except (OSError, http.client.HTTPException) as error:
            raise UnusableError(f"{url}: {_reason(error)}") from error
    return page.decode("utf-8", "replace")


def _size(url: str) -> int:
    with _request(url, INDEX_TIMEOUT_S, method="HEAD") as response:
        length = response.headers.get("Content-Length", "")
    if not length.isdigit() or length == "0":
        raise UnusableError(f"{url} does not say its size")
    return int(length)


def first_wheel(index: str, names: Iterable[str]) -> Wheel:
    """Return the wheel of the first build that the index has.

    Raises:
        UnusableError: why there is none.
    """
    why = f"{index} has no build to try"
    for name in names:
        try:
            return find_wheel(index, name)
        except urllib.error.HTTPError as error:
            # The index also answers 403 for a build that it never had, so the next one is tried.
            why = f"{urllib.parse.urlsplit(error.url or index).netloc} answers {error.code} {error.reason}"
        except UnusableError as error:
            if "lists no" not in str(error):
                raise
            why = str(error)
    raise UnusableError(why)


def download(wheel: Wheel, folder: Path, report: Callable[[int, int], None]) -> Path:
    """Download a wheel, or the missing part of it, and return its path.

    An interrupted download stays in the folder as `.part`, and the next call continues it.

    Raises:
        UnusableError: when the server refuses or the connection is lost; the message says how far it is.
        OSError: when the file cannot be written.
    """
    folder.mkdir(exist_ok=True)
    done, part = folder / wheel.name, folder / f"{wheel.name}.part"
    # Delete parts of other builds.
    for other in folder.glob("torch-*"):
        if other not in (done, part):
            other.unlink()
    if not done.exists():
        why = ""
        for attempt in range(NUM_ATTEMPTS):
            have = part.stat().st_size if part.exists() else 0
            if have >= wheel.num_bytes:
                break
            if attempt:
                time.sleep(attempt)
            try:
                _append(wheel, part, have, report)
            except UnusableError as error:
                why = str(error)
        have = part.stat().st_size if part.exists() else 0
        if have < wheel.num_bytes:
            why = why or f"{wheel.host} closed the connection"
            raise UnusableError(f"{why}; {_mb(have)} of {_mb(wheel.num_bytes)} MB are here")
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if have != wheel.num_bytes or (wheel.sha256 is not None and found != wheel.sha256):
            part.unlink()
            raise UnusableError(
                f"{wheel.host} sent a file that does not match the index in SHA-256 or size; it was deleted"
            )
        part.rename(done)
    return done


def _append(wheel: Wheel, part: Path, have: int, report: Callable[[int, int], None]) -> None:
    with _request(wheel.url, STALL_S, offset=have) as response:
        # A server that ignores ranges sends the file from its beginning.
        if have and response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            report(have, wheel.num_bytes)
            while True:
                try:
                    data = response.read1(1 << 20)
                except (OSError, http.client.HTTPException) as error:
                    raise UnusableError(f"{wheel.host}: {_reason(error)}") from error
                if not data:
                    return
                file.write(data)
                have += len(data)
                report(have, wheel.num_bytes)


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f}"


class Progress:
    """Prints how far a download is: in place on a terminal, otherwise a line every few seconds."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next_s = 0.0
        self._begin: tuple[float, int] | None = None

    def __call__(self, have: int, num_bytes: int) -> None:
        """Print a line, unless the last one is recent."""
        now = time.monotonic()
        if self._begin is None:
            self._begin = now, have
        if now < self._next_s and have < num_bytes:
            return
        self._next_s = now + (0.2 if self._is_terminal else PROGRESS_EVERY_S)
        line = f"torch: {_mb(have)} of {_mb(num_bytes)} MB"
        began, first = self._begin
        if have > first and now > began:
            rate = (have - first) / (now - began)
            line += f", {rate / 1e6:.1f} MB/s, {(num_bytes - have) / rate:.0f} s left"
        end = "\r" if self._is_terminal and have < num_bytes else "\n"
        print(f"{line:<60}" if self._is_terminal else line, end=end, file=sys.stderr, flush=True)


def use_pips_proxy() -> None:
    """Use the proxy and certificates that pip is configured to use, unless the environment names others."""
    text = _output(sys.executable, "-m", "pip", "config", "list")
    found = dict(re.findall(r"^(?:global|install|:env:)\.(proxy|cert)='([^']+)'$", text, re.MULTILINE))
    if "proxy" in found:
        for name in ("http_proxy", "https_proxy"):
            os.environ.setdefault(name, found["proxy"])
    if "cert" in found:
        os.environ.setdefault("SSL_CERT_FILE", found["cert"])


def fetch(folder: Path, wanted: str, files: list[str]) -> Path | None:
    """Announce and download the chosen build; return its wheel, None if pip takes torch from its own index.

    Raises:
        ValueError: if a requested build is not available, or the disk is too small.
        OSError: when the file cannot be written.
    """
    if sys.platform != "linux":
        wanted = "configured"
    choice = choose(wanted, read_nvidia(), cluster_has_gpus=slurm_has_gpus)
    others_mb = sum(OTHER_PACKAGES_MB.get(Path(file).name, 0) for file in files)
    if not choice.names:
        _say_configured(f"torch {TORCH} comes from pip's configured index", others_mb, choice)
        return None
    use_pips_proxy()
    index = os.environ.get("DDP_TORCH_INDEX", INDEX).rstrip("/")
    wheel = None
    try:
        wheel = first_wheel(index, choice.names)
        build = wheel.name.split("+")[1].split("-")[0]
        packages = next((each.packages_mb for each in BUILDS if each.name == build), 0)
        has = "the CPU build" if build == "cpu" else f"the build for CUDA {build[2:-1]}.{build[-1]}"
        _say(f"torch {TORCH}: {has}, because {choice.why}. For another one: --torch-build (README).")
        further = f"{packages:,} MB of CUDA packages and {others_mb} MB of others"
        if not packages:
            further = f"{others_mb} MB of other packages"
        _say(f"Download: {_mb(wheel.num_bytes)} MB from {wheel.host}, then about {further} by pip.")
        _check_disk(folder, CUDA_DISK_MB if packages else CPU_DISK_MB)
        return download(wheel, folder, Progress())
    except (UnusableError, urllib.error.HTTPError) as error:
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
    """Refuse to begin an installation that fills the disk.

    Raises:
        ValueError: saying how much is needed and free.
    """
    free_mb = shutil.disk_usage(folder.parent).free / 1e6
    if free_mb < needed_mb:
        where = folder.parent.resolve()
        raise ValueError(
            f"the installation needs about {needed_mb:,} MB in {where}, where {free_mb:,.0f} MB are free. "
            "Make room and start again"
        )


def installed_build(environment: Path) -> str | None:
    """Return the build of the torch in an environment, such as cu130 or cpu; None if there is none."""
    for file in environment.glob("lib/python3*/site-packages/torch/version.py"):
        found = re.search(r"__version__ = '[^'+]*(?:\+([^']*))?'", file.read_text(encoding="utf-8"))
        return (found[1] or "cpu") if found else None
    return None


def compare(environment: Path) -> str:
    """Return advice if the GPUs of this machine need another build than the installed one; else nothing."""
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
    """Run a command; return the exit code."""
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
