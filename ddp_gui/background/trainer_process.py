"""Runs a short-lived training process that prints JSON, and caches the answer until its files change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainers.contract.library_words import without_advice
from trainers.files import fingerprint, private_files
from trainers.files.json_files import read_json, write_json_atomically
from trainers.files.paths import REPOSITORY
from trainers.machine import cuda_environment, environment
from trainers.machine.os_errors import explain

ASK_TIMEOUT_S = 120.0

Answer = Mapping[str, Any]


class AskError(RuntimeError):
    """The training process did not answer; the message is the end of its output."""


def ask(module: str, *, sees_gpus: bool = False) -> dict[str, Any]:
    """Return the JSON that `python -m MODULE` prints.

    Args:
        sees_gpus: it may call CUDA; otherwise it cannot open a GPU by accident.

    Raises:
        AskError: when it fails.
    """
    # If the page is killed meanwhile, the process ends too.
    lifeline = [sys.executable, "-m", "trainers.machine.lifeline", str(os.getpid())]
    try:
        answer = subprocess.run(
            [*lifeline, sys.executable, "-m", module],
            cwd=REPOSITORY,
            env=environment.for_a_child({} if sees_gpus else cuda_environment.none_visible()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AskError(f"{module} did not answer within two minutes") from error
    if answer.returncode != 0:
        words = without_advice(answer.stderr.decode("utf-8", errors="replace")).strip()[-2000:]
        raise AskError(f"{module} could not be read:\n{words}")
    try:
        read: dict[str, Any] = json.loads(answer.stdout)
    except ValueError as error:
        raise AskError(f"{module} did not answer with JSON") from error
    return read


def current_key(answer: Answer) -> str:
    """Return the cache key of an answer: path, time and size of every file it depends on, as they are now."""
    watched = [Path(path) for path in answer.get("watched_paths", [])]
    return fingerprint.of_code(watched)


def remembered(cache_file: Path | None) -> Answer | None:
    """Return the cached answer, if no file has changed since."""
    if cache_file is None:
        return None
    try:
        cached: dict[str, Any] = read_json(cache_file, must_be_ours=True)
        answer: Answer = cached["answer"]
        fits = cached["key"] == current_key(answer)
    except private_files.ForeignFileError as error:
        print(f"{error}.", flush=True)
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if fits else None


def remember(cache_file: Path | None, answer: Answer) -> None:
    """Cache an answer; if that fails, the next start takes some seconds longer."""
    if cache_file is None:
        return
    try:
        write_json_atomically(cache_file, {"key": current_key(answer), "answer": answer}, mode=0o600)
    except OSError as error:
        print(
            f"{cache_file.name} could not be cached ({explain(error)}); "
            "the next start takes some seconds longer."
        )


def default_cache_file(name: str) -> Path | None:
    """Return the cache file of this checkout; None if no folder is writable."""
    folder = private_files.cache_folder()
    return None if folder is None else folder / f"{name}.json"
