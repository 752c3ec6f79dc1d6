"""Which GPUs training can use here: asked of torch once, in a process of its own, before the page is served.

The answer goes into this process's own environment, so that the page and all that it starts see the same
GPUs, by UUID: those, or none and why.
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
# The form and the queue count the GPUs once, when the page starts: so a page that goes on does not ask again.
AGAIN = "Restart the page. If that does not help, restart the machine or reinstall NVIDIA's driver."

MAX_LAST_WORDS = 300
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def settle(cache_file: Path | None) -> None:
    """Let this process, and all that it starts, see the GPUs that can be used, and no others.

    Where the driver names none, nothing is asked.
    """
    visible = hardware.visible_gpus()
    if visible:
        divided = any(gpu.handle is None or hardware.is_divided(gpu.handle) for gpu in visible)
        known = () if divided else hardware.all_uuids()
        answer = _answer(cache_file)
        for name in answer.get("left_out", ()):
            print(f"{name} is left out: this build of torch does not support it.", flush=True)
        os.environ.update(variables_for(answer, known))


def variables_for(answer: Mapping[str, Any], known: Collection[str]) -> dict[str, str]:
    """Return what the answer means for the environment.

    Args:
        known: the GPUs that can be told by their UUID; parts of GPUs (MIG) are left as they were named.
    """
    if answer["obstacle"] is not None:
        return cuda_environment.with_obstacle(Obstacle(**answer["obstacle"]))
    uuids = answer["uuids"]
    return cuda_environment.only(uuids) if uuids and set(uuids) <= set(known) else {}


def _answer(cache_file: Path | None) -> Mapping[str, Any]:
    """Ask, or remember what was answered on the same machine since it was started.

    Only a good answer is kept: a bad one is what somebody is about to mend.
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
    """Return the end of what the process said: the error itself, without the way to it."""
    words = str(error).strip().splitlines()[-1].strip()[:MAX_LAST_WORDS]
    return words if words.endswith((".", "!", "?")) else f"{words}."


def _machine() -> list[Any]:
    """Return what an answer depends on beside files: GPUs, driver, what may be seen, and this boot."""
    try:
        boot = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    named = [os.environ.get(name) for name in cuda_environment.OF_A_RUN]
    return [hardware.all_uuids(), list(hardware.driver_versions()), named, boot]
