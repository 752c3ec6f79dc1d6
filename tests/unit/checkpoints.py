"""Complete checkpoints written without torch; the tensor files contain placeholder bytes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from trainers.contract import manifests
from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import write_json_atomically


def leave_checkpoint(
    run: RunDirectory, step: int, *, saved_unix_s: float | None = None, num_train: int = 8000, **progress: Any
) -> None:
    """Write a complete checkpoint of one rank."""
    folder = run.checkpoints / f"step_{step}"
    folder.mkdir(parents=True)
    where = {"step": step, "epoch": 0, "samples_in_epoch": 0, "num_evaluations_without_best": 0} | progress
    where |= dict.fromkeys(("learning_rate", "best_value", "best_step", "evaluated_step"))
    state = {"progress": where, "binding": {"num_train": num_train}, "scaler": None}
    files = {}
    for name in (manifests.WEIGHTS[0], manifests.OPTIMIZER, "rank_0.pt", manifests.STATE):
        content = json.dumps(state).encode() if name == manifests.STATE else name.encode()
        (folder / name).write_bytes(content)
        files[name] = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {"format_version": manifests.FORMAT_VERSION, "step": step, "world_size": 1, "strategy": "ddp"}
    manifest |= {"saved_unix_s": step if saved_unix_s is None else saved_unix_s, "files": files}
    write_json_atomically(folder / manifests.MANIFEST, manifest)
