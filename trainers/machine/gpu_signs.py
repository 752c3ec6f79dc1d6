"""What can be known of GPUs without asking their driver: whether any may be here, and what it hides."""

from __future__ import annotations

from pathlib import Path

from trainers.machine import hardware

# Windows' driver, as the Linux within it (WSL2) has it.
_WINDOWS_DRIVER = Path("/dev/dxg")
# Of NVIDIA's driver: the usual one, a Jetson's, and that of Windows.
_DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/nvhost-gpu"), _WINDOWS_DRIVER)
_PID_NAMESPACE = Path("/proc/self/ns/pid")
# The kernel's own number of the namespace that it boots with (PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


def may_have_gpu() -> bool:
    """Tell whether an NVIDIA GPU may be in this machine, whether or not anything of it can be used."""
    has_files = any(path.exists() for path in _DEVICE_FILES)
    return has_files or hardware.num_nvidia_cards() > 0 or hardware.num_gpus() > 0


def sees_all_processes() -> bool:
    """Tell whether the processes that NVML names can be found here: not in most containers, nor in WSL2.

    There its list has only those of the container, or none, or numbers that mean other processes here.
    """
    if _WINDOWS_DRIVER.exists():
        return False
    try:
        return str(_PID_NAMESPACE.readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return True  # no Linux, and no such containers
