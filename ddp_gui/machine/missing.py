"""Installed versions and missing packages."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddp_gui.plan import package_install
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.plan.package_install import Missing
from trainers.files import installation
from trainers.files.plain_files import REPOSITORY
from trainers.machine import cuda_environment, facilities, host, nvml
from trainers.machine.cuda_environment import Obstacle

PACKAGES = {"torch": "PyTorch", "gradio": "Gradio", "plotly": "Plotly", "numpy": "NumPy"}


def installed_version(package: str) -> str | None:
    """Return a package's version, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def list_versions() -> list[dict[str, str | None]]:
    """Return names and versions, for the page and for bug reports."""
    driver, cuda = nvml.driver_versions()
    versions: list[tuple[str, str | None]] = [("Python", platform.python_version())]
    versions += [(label, installed_version(package)) for package, label in PACKAGES.items()]
    versions += [("NVIDIA driver", driver), ("CUDA of the driver", cuda)]
    versions += [("System", host.system_name()), ("Kernel", f"{platform.system()} {platform.release()}")]
    return [{"name": name, "version": version} for name, version in versions]


FINETUNE_REQUIREMENTS = REPOSITORY / "requirements-finetune.txt"
LITTLE_DISK_BYTES = 5 * 10**9
SMALL_SHARED_MEMORY_BYTES = 10**9
CONTAINER_MARK = Path("/.dockerenv")


def list_missing(catalogue: Catalogue | None, runs_disk: Path) -> list[dict[str, Any]]:
    """Return everything that is missing, problems first."""
    missing = [*gpus(), *little_disk(runs_disk), *small_shared_memory()]
    missing += finetune_packages(FINETUNE_REQUIREMENTS)
    if catalogue is not None:
        missing += broken_plugins(catalogue.errors)
        missing += map(package_install.describe_missing, catalogue.unavailable)
    return [asdict(item) for item in sorted(missing, key=lambda item: not item.is_problem)]


def gpus() -> list[Missing]:
    """Return the known reasons why runs have no GPU."""
    silent_gpus = [index for index, handle in nvml.all_gpus().items() if handle is None]
    problems = [
        Missing(
            what=f"GPU {index} does not answer",
            meaning="The GPU may have fallen off the bus after an error or overheating. A restart of the "
            "machine often helps.",
            command="sudo dmesg | grep -i xid",
            is_problem=True,
        )
        for index in silent_gpus
    ]
    problem = nvml.nvml_problem()
    if problem is not None:
        return [*problems, _no_driver(problem, nvml.num_nvidia_cards())]
    problems += [*unusable(cuda_environment.obstacle()), *find_unclear_gpus(nvml.num_gpus())]
    telemetry = nvml.telemetry_problem()
    return problems if telemetry is None else [*problems, Missing(what="GPU telemetry", meaning=telemetry)]


def _no_driver(problem: nvml.NvmlProblem, num_cards: int) -> Missing:
    if problem == "no_library":
        return Missing(
            what="The Python package for NVML (nvidia-ml-py)",
            meaning="Without this package the page finds no GPU.",
            command=pip("install", "-r", str(REPOSITORY / "requirements.txt")),
            is_problem=True,
        )
    if problem == "mismatch":
        return Missing(
            what="An NVIDIA driver that matches its library",
            meaning=_with_telemetry(
                "The NVIDIA driver was updated while it was in use. Restart the machine."
            ),
            command="sudo reboot",
            is_problem=True,
        )
    if num_cards:
        cards = "is an NVIDIA card" if num_cards == 1 else f"are {num_cards} NVIDIA cards"
        return Missing(
            what="A driver for the GPU",
            meaning=_with_telemetry(
                f"There {cards} in this machine, but no working driver. Install NVIDIA's driver."
            ),
            command="sudo ubuntu-drivers install" if shutil.which("ubuntu-drivers") else None,
            is_problem=True,
        )
    meaning = "No NVIDIA card was found. Everything works without one, but slower: ranks run on the CPU."
    if not CONTAINER_MARK.exists():
        return Missing(what="A GPU", meaning=meaning)
    meaning += " This page runs in a container: if the host has GPUs, pass them to the container."
    return Missing(what="A GPU", meaning=meaning, command="docker run --gpus all IMAGE")


def _with_telemetry(meaning: str) -> str:
    telemetry = nvml.telemetry_problem()
    return meaning if telemetry is None else f"{meaning} {telemetry}"


def unusable(obstacle: Obstacle | None) -> list[Missing]:
    """Return torch's reason why training cannot use the machine's GPUs."""
    if obstacle is None:
        return []
    is_cpu_build = (installed_version("torch") or "").endswith("+cpu")
    install_command = installation.torch_for_gpus().replace("./", f"{shlex.quote(str(REPOSITORY))}/", 1)
    remedy = "Stop the page and start it with this command." if is_cpu_build else obstacle.remedy
    return [
        Missing(
            what="PyTorch with GPU support" if is_cpu_build else "Usable GPUs",
            meaning=f"{obstacle.reason} {remedy}" + ("" if is_cpu_build else " Then restart the page."),
            command=install_command if is_cpu_build else None,
            is_problem=True,
        )
    ]


def find_unclear_gpus(num_gpus: int) -> list[Missing]:
    """Return problems that make the selection or the users of GPUs uncertain."""
    missing = []
    if nvml.names_are_unclear():
        missing.append(
            Missing(
                what="Unambiguous GPU names",
                meaning=(
                    "CUDA_VISIBLE_DEVICES uses CUDA's own order, with the fastest GPU first. The page only "
                    "knows the driver's order, so it cannot determine the selected GPUs. Select them by "
                    "UUID (nvidia-smi -L), or set CUDA_DEVICE_ORDER=PCI_BUS_ID, and restart the page."
                ),
                is_problem=True,
            )
        )
    if num_gpus and not nvml.sees_all_processes():
        missing.append(
            Missing(
                what="Other users of the GPUs",
                meaning=(
                    "This page runs in a container or in WSL2 and cannot see programs outside of it, so a "
                    "GPU for a run may already be in use. Start the container with the machine's process "
                    "namespace, as below. In WSL2, close Windows programs that use the GPU."
                ),
                command="docker run --pid=host IMAGE",
            )
        )
    return missing


def little_disk(folder: Path) -> list[Missing]:
    """Return a problem if the disk of the runs is nearly full."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes >= LITTLE_DISK_BYTES:
        return []
    return [
        Missing(
            what="Disk space",
            meaning=(
                f"Only {free_bytes / 1e9:.1f} GB are left for runs. A run that cannot save continues, but "
                "its results are lost. Delete runs that you no longer need. This command lists the "
                "largest last."
            ),
            command=f"du -sh {shlex.quote(str(folder))}/* | sort -h",
            is_problem=True,
        )
    ]


def small_shared_memory(memory: Path = Path("/dev/shm")) -> list[Missing]:  # noqa: S108 # nosec B108
    """Return a problem if the shared memory is small, as is common in containers."""
    if not facilities.existing(memory):
        return []
    total_bytes = shutil.disk_usage(memory).total
    if total_bytes >= SMALL_SHARED_MEMORY_BYTES:
        return []
    return [
        Missing(
            what="Shared memory",
            meaning=(
                f"{memory} has {total_bytes / 1e6:.0f} MB. Ranks and loader workers exchange data through "
                "this shared memory and crash when it is full. In a container, start it with more."
            ),
            command="docker run --shm-size=8g IMAGE",
            is_problem=True,
        )
    ]


def finetune_packages(requirements: Path) -> list[Missing]:
    """Return the optional packages that are not installed."""
    names = re.findall(r"^([A-Za-z0-9_.-]+)==", requirements.read_text(encoding="utf-8"), re.MULTILINE)
    missing = [name for name in names if installed_version(name) is None]
    if not missing:
        return []
    return [
        Missing(
            what=f"Packages for fine-tuning: {', '.join(missing)}",
            meaning="Needed only to fine-tune pretrained models; about 200 MB.",
            command=pip("install", "-r", str(requirements)),
        )
    ]


def broken_plugins(errors: tuple[Mapping[str, str], ...]) -> list[Missing]:
    """Return the models, data sets or strategies that could not be loaded."""
    return [
        Missing(
            what=f"Broken: {error['module']}",
            meaning=f"{error['message']}. All other features work.".replace("..", "."),
            is_problem=True,
        )
        for error in errors
    ]


def pip(*arguments: str) -> str:
    """Return a pip command for the environment of this page, valid in any folder."""
    return shlex.join(installation.pip(*arguments))
