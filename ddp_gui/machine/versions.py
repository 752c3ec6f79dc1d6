"""The versions of all software in use, read without importing it."""

from __future__ import annotations

import importlib.metadata
import platform

from trainers.machine import hardware

PACKAGES = {"torch": "PyTorch", "gradio": "Gradio", "plotly": "Plotly", "numpy": "NumPy"}


def installed_version(package: str) -> str | None:
    """Return a package's version, or None when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def list_versions() -> list[dict[str, str | None]]:
    """Return names and versions, for people to read and to put into a bug report."""
    driver, cuda = hardware.driver_versions()
    found: list[tuple[str, str | None]] = [("Python", platform.python_version())]
    found += [(label, installed_version(package)) for package, label in PACKAGES.items()]
    found += [("NVIDIA driver", driver), ("CUDA of the driver", cuda)]
    found += [("System", _system()), ("Kernel", f"{platform.system()} {platform.release()}")]
    return [{"name": name, "version": version} for name, version in found]


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform(terse=True)
