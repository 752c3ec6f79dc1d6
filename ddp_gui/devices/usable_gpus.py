"""Which GPUs training can use: torch determines it once, in a separate process, before the page is served.

The answer goes into this process's environment, so that the page and all its child processes see the same
GPUs by UUID, or none and the reason.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ddp_gui.background import trainer_process
from ddp_gui.background.trainer_process import AskError
from trainers.machine import cuda_environment, hardware
from trainers.machine.cuda_environment import Obstacle

MODULE = "trainers.parallel.usable_gpus"
# The form and the queue count the GPUs once, when the page starts, so a running page does not ask again.
AGAIN = "Restart the page. If that does not help, restart the machine or reinstall NVIDIA's driver."

MAX_LAST_WORDS = 300
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def settle(cache_file: Path | None) -> None:
    """Limit this process and its children to the usable GPUs.

    Without GPUs in the driver, torch is not asked.
    """
    visible = hardware.visible_gpus()
    if visible:
        divided = any(gpu.is_part for gpu in visible)
        known = () if divided else hardware.all_uuids()
        answer = _answer(cache_file)
        for name in answer.get("left_out", ()):
            print(f"{name} is left out: this build of torch does not support it.", flush=True)
        os.environ.update(variables_for(answer, known))


def variables_for(answer: Mapping[str, Any], known: Collection[str]) -> dict[str, str]:
    """Return the environment variables for this answer.

    Args:
        known: the GPUs identified by UUID; MIG instances are left as they were named.
    """
    if answer["obstacle"] is not None:
        return cuda_environment.with_obstacle(Obstacle(**answer["obstacle"]))
    uuids = answer["uuids"]
    return cuda_environment.only(uuids) if uuids and set(uuids) <= set(known) else {}


def _answer(cache_file: Path | None) -> Mapping[str, Any]:
    """Return the answer, from the cache if this machine has not changed since boot.

    Only a positive answer is cached: a negative one will probably be fixed soon.
    """
    machine = _machine()
    kept = trainer_process.remembered(cache_file)
    if kept is not None and kept.get("machine") == machine:
        return kept
    print("Asking torch which GPUs it can use …", flush=True)
    try:
        answer = {**trainer_process.ask(MODULE, sees_gpus=True), "machine": machine}
    except AskError as error:
        print(f"{error}", flush=True)
        return {
            "obstacle": {"reason": f"torch could not be asked for GPUs: {_last_line(error)}", "remedy": AGAIN}
        }
    if answer["obstacle"] is None:
        trainer_process.remember(cache_file, answer)
    return answer


def _last_line(error: AskError) -> str:
    """Return the last line of the process's output: the error without its traceback."""
    words = str(error).strip().splitlines()[-1].strip()[:MAX_LAST_WORDS]
    return words if words.endswith((".", "!", "?")) else f"{words}."


def _machine() -> list[Any]:
    """Return what an answer depends on besides files: GPUs, driver, visible devices, and this boot."""
    try:
        boot = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    named = [os.environ.get(name) for name in cuda_environment.OF_A_RUN]
    return [hardware.all_uuids(), list(hardware.driver_versions()), named, boot]
