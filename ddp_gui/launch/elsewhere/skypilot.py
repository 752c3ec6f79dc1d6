"""A task of SkyPilot, which rents machines in a cloud and runs torchrun on each."""

from __future__ import annotations

from typing import Any

from ddp_gui.launch.elsewhere.job import PORT, Job, Script, comment, needs, torchrun_line, yaml_text

PROOF = (
    "Not tried in a cloud: there was none here. The tests of this project check it against the schema of "
    "SkyPilot, and run its script with SkyPilot's variables."
)
# To be replaced: nothing on this machine says which a cloud has.
GPU = "A100"
_SHARED = (
    "Set RUNS to a folder that all machines share, such as a SkyPilot volume: their own disks will not do."
)
_SETUP = """source tools/venv.sh
make_venv requirements.txt
"""
_RUN = """set -euo pipefail
export PATH="$PWD/.venv/bin:$PATH"
{command}
"""
_FIRST = """mapfile -t machines <<< "$SKYPILOT_NODE_IPS"
"""


def text(job: Job) -> str:
    """Return the task."""
    said = [
        f"Run {job.run_id} as a SkyPilot task. In this project's folder: sky launch THIS_FILE.",
        PROOF,
        "The project's folder is uploaded. The runs go with the machines: fetch them before sky down.",
        *([_SHARED] if job.num_nodes > 1 else []),
        *([f"Replace {GPU} by a GPU that your cloud has (sky show-gpus)."] if job.with_gpus else []),
        *needs(job),
    ]
    return comment(said) + yaml_text(value(job))


def value(job: Job) -> dict[str, Any]:
    """Return the task as an object."""
    options = f'--node-rank "$SKYPILOT_NODE_RANK" --master-addr "${{machines[0]}}" --master-port {PORT}'
    command = torchrun_line(job, f'"$RUNS"/{job.new_run}', options)
    first = _FIRST if job.num_nodes > 1 else ""
    each = job.num_ranks_each
    return {
        "name": job.label,
        "workdir": ".",
        "num_nodes": job.num_nodes,
        "resources": {"accelerators": f"{GPU}:{each}"} if job.with_gpus else {"cpus": f"{each}+"},
        "envs": {"RUNS": "runs"},
        "setup": Script(_SETUP),
        "run": Script(_RUN.format(command=first + command)),
    }
