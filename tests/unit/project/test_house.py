"""Structure of the repository: folders, module names, and the formatting of numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = ("ddp_gui", "trainers", "tests/unit", "tests/ui")
MODULES = dict.fromkeys(PACKAGES, "py") | {"assets/js": "js", "assets/css": "css"}


def folders(repository: Path) -> dict[str, list[str]]:
    """Return the modules of each folder."""
    found: dict[str, list[str]] = {}
    for top, ending in MODULES.items():
        for module in sorted((repository / top).rglob(f"*.{ending}")):
            if module.name != "__init__.py":
                found.setdefault(module.parent.relative_to(repository).as_posix(), []).append(module.stem)
    return found


def test_every_folder_says_what_is_in_it(repository: Path) -> None:
    for name in folders(repository):
        if not name.startswith(PACKAGES):
            continue
        words = (repository / name / "__init__.py").read_text(encoding="utf-8")
        assert words.startswith('"""') and len(words.splitlines()[0]) > 20, name


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_called_like_another_of_its_folder(package: str, repository: Path) -> None:
    """`trainers/data.py` next to `trainers/data/` would be ambiguous."""
    for module in (repository / package).rglob("*.py"):
        assert not module.with_suffix("").is_dir(), module


def test_unit_tests_lie_in_the_folders_of_what_they_test(repository: Path) -> None:
    unit = repository / "tests" / "unit"
    for package in ("ddp_gui", "trainers"):
        tests_of = {folder for folder in (unit / package).rglob("*/") if any(folder.glob("test_*.py"))}
        assert len(tests_of) > 10
        strays = {folder for folder in tests_of if not (repository / folder.relative_to(unit)).is_dir()}
        assert not strays


# Names of Linux's own functions and constants, and the beginnings of the paths of its own files.
LINUX_NAMES = re.compile(
    r"memfd_create|pidfd_|prctl|sched_[gs]etaffinity|AF_NETLINK|SO_PEERCRED|signalfd|eventfd|inotify|O_TMPFILE"
    r"|F_OFD_|copy_file_range|setns|unshare|timerfd_|epoll"
)
LINUX_FILES = re.compile(r"/proc\b|/sys/|/dev/shm\b|\0\w")
# What only runs on Linux, and paths that are passed to the gateway.
LINUX_ALLOWED = {
    "ddp_gui/http/listening.py": {"/proc/net/tcp", "/proc/net/tcp6"},
    "ddp_gui/machine/missing.py": {"/dev/shm"},
    "rankscope/menu.py": {"linux"},  # the menu of Linux desktops
    "trainers/engines/local/sandbox.py": {"/proc", "/dev/shm", "/sys/devices/system/cpu"},  # bubblewrap
    "trainers/check_machine/report.py": {"linux"},  # a word that no user is called
    "trainers/machine/hardware.py": {"/sys/bus/pci/devices"},
    "trainers/machine/host.py": {"/proc/vmstat", "/sys/fs/cgroup", "/sys/fs/cgroup/memory"},
    "trainers/watch/recorder.py": {"/proc/"},  # the name of a file that a script opens
}


def test_facilities_of_linux_are_used_through_their_gateway(repository: Path) -> None:
    """`trainers/machine/facilities.py` decides whether they may be used."""
    modules = [repository / "app.py"]
    modules += [
        path for top in ("ddp_gui", "rankscope", "trainers") for path in (repository / top).rglob("*.py")
    ]
    strays = {}
    for path in modules:
        name = path.relative_to(repository).as_posix()
        found = set(linux_only(ast.parse(path.read_text(encoding="utf-8")))) - LINUX_ALLOWED.get(name, set())
        if found and name != "trainers/machine/facilities.py":
            strays[name] = found
    assert strays == {}


def linux_only(tree: ast.AST) -> Iterator[str]:
    """Yield the names and paths of Linux in code, without docstrings and arguments of the gateway."""
    if isinstance(tree, ast.Call) and ast.unparse(tree.func).startswith("facilities."):
        return
    if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant):
        return
    if isinstance(tree, ast.Attribute) and LINUX_NAMES.match(tree.attr):
        yield tree.attr
    text = tree.value if isinstance(tree, ast.Constant) else None
    if isinstance(text, str) and (LINUX_FILES.match(text) or text == "linux"):
        yield text
    for child in ast.iter_child_nodes(tree):
        yield from linux_only(child)
