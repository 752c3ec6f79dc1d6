"""Asks a short-lived training process for JSON, and remembers its answer while no file of it has changed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ddp_gui.paths import REPOSITORY
from trainers.contract.json_files import write_json_atomically

ASK_TIMEOUT_S = 120.0

Answer = Mapping[str, Any]


class AskError(RuntimeError):
    """The training process did not answer; says its last words."""


def ask(module: str) -> dict[str, Any]:
    """Return the JSON that `python -m MODULE` prints.

    Raises:
        AskError: when it fails.
    """
    # A page that is killed meanwhile takes the process with it.
    lifeline = [sys.executable, "-m", "trainers.contract.lifeline", str(os.getpid())]
    try:
        answer = subprocess.run(
            [*lifeline, sys.executable, "-m", module],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AskError(f"{module} did not answer within two minutes") from error
    if answer.returncode != 0:
        words = answer.stderr.decode("utf-8", errors="replace").strip()[-2000:]
        raise AskError(f"{module} could not be read:\n{words}")
    read: dict[str, Any] = json.loads(answer.stdout)
    return read


def current_key(answer: Answer) -> str:
    """Return the mark of every file an answer depends on, as they are now: path, time and size."""
    watched = [Path(path) for path in answer.get("watched_paths", [])]
    return _fingerprint(watched)


def remembered(cache_file: Path) -> Answer | None:
    """Return the answer that was kept, if no file has changed since."""
    try:
        cached: dict[str, Any] = json.loads(cache_file.read_text(encoding="utf-8"))
        answer: Answer = cached["answer"]
        fits = cached["key"] == current_key(answer)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if fits else None


def remember(cache_file: Path, answer: Answer) -> None:
    """Keep an answer; where that cannot be done the next start takes some seconds more."""
    try:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(cache_file, {"key": current_key(answer), "answer": answer})
    except OSError as error:
        print(f"{cache_file.name} is not kept ({error}); the next start takes some seconds more.")


def default_cache_file(name: str) -> Path:
    """Return where this checkout keeps an answer: inside it, or in the temporary folder."""
    inside = REPOSITORY / ".cache"
    if os.access(inside if inside.is_dir() else REPOSITORY, os.W_OK):
        return inside / f"{name}.json"
    mark = hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"ddp-{name}-{os.getuid()}-{mark}.json"


def _fingerprint(watched: Iterable[Path]) -> str:
    files = [*(REPOSITORY / "trainers").rglob("*.py"), *(REPOSITORY / "assets" / "data").rglob("*"), *watched]
    digest = hashlib.sha256(sys.executable.encode())
    for path in sorted(set(files)):
        try:
            about = path.stat()
            digest.update(f"{path}:{about.st_mtime_ns}:{about.st_size}\n".encode())
        except OSError:
            digest.update(f"{path}:absent\n".encode())
    return digest.hexdigest()
