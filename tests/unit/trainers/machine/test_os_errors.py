"""Operating system errors are translated, and no other code shows them unchanged."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainers.machine import os_errors

SYSTEM_ERRORS = {
    "OSError",
    "PermissionError",
    "FileNotFoundError",
    "FileExistsError",
    "IsADirectoryError",
    "NotADirectoryError",
    "Exception",
    "BaseException",
    "USER_ERRORS",
}


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (
            errno.ENOSPC,
            "the disk of {folder} is full: delete runs that you no longer need and empty the bin",
        ),
        (errno.EDQUOT, "the disk quota of {folder} is used up: delete runs"),
        (errno.EROFS, "the disk of {folder} is read-only: make it writable"),
        (errno.EACCES, "{folder}/a.json cannot be accessed, because this user has no permission"),
        (errno.ENAMETOOLONG, "the name of {folder}/a.json is too long for this file system"),
    ],
)
def test_a_sentence_names_the_folder_and_what_to_do(number: int, expected: str, tmp_path: Path) -> None:
    error = OSError(number, os.strerror(number), str(tmp_path / "a.json"))
    assert os_errors.explain(error).startswith(expected.format(folder=tmp_path))
    assert "Errno" not in os_errors.explain(OSError(number, os.strerror(number)))


def test_a_full_disk_does_not_end_a_process_that_prints() -> None:
    program = (
        "from trainers.machine import os_errors; import os, sys\n"
        "os_errors.keep_going_without_log()\n"
        "print('a line'); print('another', file=sys.stderr, flush=True); os._exit(7)"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=full, check=False)
    assert done.returncode == 7


@pytest.mark.slow
def test_no_error_of_the_system_is_shown_as_it_is(repository: Path) -> None:
    shown = [
        f"{path.relative_to(repository)}:{line}"
        for folder in ("ddp_gui", "trainers")
        for path in (repository / folder).rglob("*.py")
        for line in _shown_as_they_are(ast.parse(path.read_text()))
    ]
    assert shown == [], "format it with os_errors.explain"


def _shown_as_they_are(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that convert a caught OSError to text with `str` or an f-string."""
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.type is None or handler.name is None:
            continue
        caught = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
        if not caught & SYSTEM_ERRORS:
            continue
        for node in ast.walk(handler):
            is_text = isinstance(node, ast.FormattedValue) and _is(node.value, handler.name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
                is_text = any(_is(argument, handler.name) for argument in node.args)
            if is_text:
                yield node.lineno  # type: ignore[attr-defined]


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
