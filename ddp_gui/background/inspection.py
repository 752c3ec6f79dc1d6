"""Inspects data in a separate process with limits on time and memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from ddp_gui.background.low_priority import make_nice
from trainers.contract.config import Config
from trainers.contract.library_words import without_advice
from trainers.files.paths import REPOSITORY
from trainers.machine import cuda_environment, environment

TIME_LIMIT_S = 540.0
# It ends itself at its time limit, with a message; after this grace period it is killed.
GRACE_S = 60.0
END_S = 5.0
MAX_WORDS = 1000


class InspectionError(RuntimeError):
    """The inspecting process failed; the message is the end of its output."""


def inspect(config: Config) -> dict[str, Any]:
    """Return the inspection of the data that a configuration names, as printed by the process.

    Raises:
        InspectionError: when it failed, or took too long.
    """
    return _answer_of(_command(config), TIME_LIMIT_S + GRACE_S)


def _command(config: Config) -> list[str]:
    # With "=", so that no path can be parsed as an option.
    asked = [f"--path={config.data_path}", f"--task={config.data_task}", f"--time-limit-s={TIME_LIMIT_S}"]
    asked += [f"--label-column={config.label_column}"] if config.label_column else []
    asked += [f"--images-path={config.images_path}"] if config.images_path else []
    asked += [f"--reading={config.data_reading}"] if config.data_reading else []
    asked += ["--skip-unreadable"] if config.skip_unreadable else []
    asked += [f"--sequence-length={config.sequence_length}"] if config.sequence_length else []
    python = sys.executable
    lifeline = [python, "-m", "trainers.machine.lifeline", str(os.getpid())]
    return [*lifeline, python, "-m", "trainers.plugins.inspect_data", *asked]


def _answer_of(command: list[str], time_limit_s: float) -> dict[str, Any]:
    # Its temporary files are in a folder of this process: a process that is killed removes nothing.
    with (
        tempfile.TemporaryDirectory(prefix="ddp-inspection-", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment.for_a_child(cuda_environment.none_visible()) | {"TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        make_nice(process)
        try:
            said, complaints = process.communicate(timeout=time_limit_s)
        except subprocess.TimeoutExpired as error:
            minutes = f"{time_limit_s / 60:,.0f} minutes"
            raise InspectionError(f"inspecting the data took more than {minutes} and was stopped") from error
        finally:
            if process.poll() is None:
                _end(process)
    if process.returncode != 0:
        raise InspectionError(_last_words(process.returncode, complaints))
    answer: dict[str, Any] = json.loads(said)
    return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate it, so that it removes unfinished files; then kill it."""
    process.terminate()
    try:
        process.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _last_words(exit_code: int, complaints: bytes) -> str:
    if exit_code == -signal.SIGKILL:
        return (
            "the process that inspected the data was killed, most likely because the memory ran out: "
            "make the data smaller"
        )
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return f"the process that inspected the data broke down ({name}): the data seems to be damaged"
    words = without_advice(complaints.decode("utf-8", errors="replace")).strip()[-MAX_WORDS:]
    return f"the data could not be inspected:\n{words}"
