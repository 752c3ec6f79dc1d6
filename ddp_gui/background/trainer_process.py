"""Processes that import torch for the page: queries to trainers, and the inspection of own data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from ddp_gui.background.torch_template import Fork, TorchTemplate
from ddp_gui.background.workers import make_nice
from trainers.contract.config import Config
from trainers.contract.rundir import remove_advice
from trainers.files import plain_files, private_files
from trainers.files.json_files import read_json, write_json_atomically
from trainers.files.plain_files import REPOSITORY
from trainers.machine import cuda_environment, environment, facilities, lifeline
from trainers.machine.os_errors import explain

# Right after an installation torch's bytecode is compiled first: 3 minutes on a busy machine of two cores.
ASK_TIMEOUT_S = 600.0
NOTICE_AFTER_S = 20.0

Answer = Mapping[str, Any]


class AskError(RuntimeError):
    """The training process did not answer; the message is the end of its output."""


def ask(module: str, *, sees_gpus: bool = False) -> dict[str, Any]:
    """Return the JSON that `python -m MODULE` prints.

    Args:
        sees_gpus: True if the module may call CUDA; otherwise all GPUs are hidden from it.
    Raises:
        AskError: if it fails.
    """
    text = f"Still waiting for {module} to import torch: the first start takes longer …"
    notice = threading.Timer(NOTICE_AFTER_S, print, [text], {"flush": True})
    notice.start()
    # If the page is killed, this process ends too.
    try:
        answer = subprocess.run(
            lifeline.bound(sys.executable, "-m", module),
            cwd=REPOSITORY,
            env=environment.for_a_child({} if sees_gpus else cuda_environment.none_visible()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AskError(f"{module} did not answer within {ASK_TIMEOUT_S / 60:g} minutes") from error
    finally:
        notice.cancel()
    if answer.returncode != 0:
        text = remove_advice(answer.stderr.decode("utf-8", errors="replace")).strip()[-2000:]
        raise AskError(f"{module} failed:\n{text}")
    try:
        result: dict[str, Any] = json.loads(answer.stdout)
    except ValueError as error:
        raise AskError(f"{module} did not answer with JSON") from error
    return result


def ask_once(cache_file: Path | None, module: str) -> Answer:
    """Return the cached answer of a module, or run the module and cache its answer.

    Raises:
        AskError: if it fails.
    """
    if (cached := read_cached(cache_file)) is not None:
        return cached
    answer = ask(module)
    write_cached(cache_file, answer)
    return answer


def current_key(answer: Answer) -> str:
    """Return the cache key of an answer: path, time and size of every file it depends on, at present."""
    watched = [Path(path) for path in answer.get("watched_paths", [])]
    return plain_files.fingerprint_of_code(watched)


def read_cached(cache_file: Path | None) -> Answer | None:
    """Return the cached answer if no file has changed since, or None."""
    if cache_file is None:
        return None
    try:
        cached: dict[str, Any] = read_json(cache_file, must_be_ours=True)
        answer: Answer = cached["answer"]
        is_current = cached["key"] == current_key(answer)
    except private_files.ForeignFileError as error:
        print(f"{error}.", flush=True)
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if is_current else None


def write_cached(cache_file: Path | None, answer: Answer) -> None:
    """Cache an answer. If this fails, the next start takes a few seconds longer."""
    if cache_file is None:
        return
    try:
        write_json_atomically(cache_file, {"key": current_key(answer), "answer": answer}, mode=0o600)
    except OSError as error:
        print(
            f"{cache_file.name} could not be cached ({explain(error)}); the next start takes a few seconds "
            "longer."
        )


def default_cache_file(name: str) -> Path | None:
    """Return the cache file of this checkout, or None if no folder is writable."""
    folder = private_files.cache_folder()
    return None if folder is None else folder / f"{name}.json"


TIME_LIMIT_S = 540.0
# The process ends with a message at its time limit. After this additional time it is killed.
GRACE_S = 60.0
END_S = 5.0
MAX_ERROR_LENGTH = 1000


class InspectionError(RuntimeError):
    """The inspecting process failed; the message is the end of its output."""


class _Forked(Fork):
    """An inspection forked from the template, which reports its exit code."""

    def wait(self, timeout: float) -> int:
        try:
            exit_code = int(self.receive(time.monotonic() + timeout)["exit_code"])
        except TimeoutError as error:
            raise subprocess.TimeoutExpired("inspection", timeout) from error
        self.close()
        return exit_code


_Inspection = subprocess.Popen[bytes] | _Forked
# Starts the process with a folder for temporary files, and files for its output and errors.
_Start = Callable[[str, IO[bytes], IO[bytes]], _Inspection]


def inspect_data(config: Config, template: TorchTemplate) -> dict[str, Any]:
    """Return the inspection of a configuration's data, as printed by the process.

    Args:
        template: forks the process, which saves the seconds for importing torch. If the template fails or is
            killed, a new process inspects the data.
    Raises:
        InspectionError: if it failed or took too long.
    """
    arguments = _arguments(config)
    if facilities.are_available():
        try:
            return _run_inspection(partial(_fork, template, arguments))
        except ConnectionError as error:  # the template has ended, or could not be started
            if template.is_closed:
                raise InspectionError("the page ended during the inspection of the data") from error
    python = sys.executable
    command = lifeline.bound(python, "-m", "trainers.plugins.inspect_data", *arguments, python=python)
    return _run_inspection(partial(_spawn, command))


def _arguments(config: Config) -> list[str]:
    # Use "=", so that no path can be parsed as an option.
    arguments = [f"--path={config.data_path}", f"--task={config.data_task}", f"--time-limit-s={TIME_LIMIT_S}"]
    arguments += [f"--label-column={config.label_column}"] if config.label_column else []
    arguments += [f"--images-path={config.images_path}"] if config.images_path else []
    arguments += [f"--reading={config.data_reading}"] if config.data_reading else []
    arguments += ["--skip-unreadable"] if config.skip_unreadable else []
    arguments += [f"--sequence-length={config.sequence_length}"] if config.sequence_length else []
    return arguments


def _spawn(command: list[str], folder: str, output: IO[bytes], errors: IO[bytes]) -> _Inspection:
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment.for_a_child(cuda_environment.none_visible()) | {"TMPDIR": folder},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
    )
    make_nice(process)
    return process


def _fork(
    template: TorchTemplate,
    arguments: list[str],
    folder: str,
    output: IO[bytes],
    errors: IO[bytes],
) -> _Inspection:
    variables = environment.for_a_child(cuda_environment.none_visible()) | {"TMPDIR": folder}
    process = template.fork(_Forked, b"inspection", output.fileno(), errors.fileno())
    # Do not use orjson, because file names need not be valid Unicode.
    process.send(json.dumps({"arguments": arguments, "environment": variables}).encode() + b"\n")
    return process


def _run_inspection(start: _Start, time_limit_s: float = TIME_LIMIT_S + GRACE_S) -> dict[str, Any]:
    # This process removes the folder of temporary files, because a killed process removes nothing.
    with (
        plain_files.temporary_folder("ddp-inspection-") as folder,
        _memory_file() as output,
        _memory_file() as errors,
    ):
        process = start(str(folder), output, errors)
        try:
            exit_code = process.wait(time_limit_s)
        except BaseException as error:
            _stop(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            minutes = f"{time_limit_s / 60:,.0f} minutes"
            raise InspectionError(f"inspecting the data took more than {minutes} and was stopped") from error
        for file in (output, errors):
            file.seek(0)
        if exit_code != 0:
            raise InspectionError(_failure_text(exit_code, errors.read()))
        answer: dict[str, Any] = json.load(output)
    return answer


def _memory_file() -> IO[bytes]:
    """Return a file, in memory if possible, because its content may report a full disk."""
    if facilities.has_memory_files():
        return os.fdopen(facilities.make_memory_file("inspection"), "w+b")
    return tempfile.TemporaryFile()


def _stop(process: _Inspection) -> None:
    """Terminate the process, so that it removes unfinished files; then kill it."""
    for stop in (process.terminate, process.kill):
        stop()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:  # even after SIGKILL, if the process waits for a device
            continue
        except ConnectionError:  # the process ended with its template
            pass
        return


def _failure_text(exit_code: int, error_output: bytes) -> str:
    if exit_code == -signal.SIGKILL:
        return "the process that inspects data was killed, probably because memory ran out: use less data"
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return f"the process that inspected the data crashed ({name}): the data may be damaged"
    text = remove_advice(error_output.decode("utf-8", errors="replace")).strip()[-MAX_ERROR_LENGTH:]
    return f"the data could not be inspected:\n{text}"
