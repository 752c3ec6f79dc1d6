"""A batch script for a Slurm cluster where this page is not installed."""

from __future__ import annotations

import shlex

from ddp_gui.launch.elsewhere.job import Job, comment, needs, torchrun_line

PROOF = (
    "Not tried on a cluster: there was none here. The tests of this project run it to the end with stand-ins "
    "for srun and scontrol."
)
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
_BODY = """
set -euo pipefail
cd {project}
export PATH="$PWD/.venv/bin:$PATH"
# Since Slurm 22.05 srun does not take this over from sbatch.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$(({first_port} + SLURM_JOB_ID % {num_ports}))
# Each node's task adds which node it is.
srun --kill-on-bad-exit=1 bash -c {on_node} torchrun {arguments}
"""
_ALONE = """
set -euo pipefail
cd {project}
export PATH="$PWD/.venv/bin:$PATH"
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
srun {command}
"""


def text(job: Job) -> str:
    """Return the script: one task a node, and there torchrun."""
    run_dir = f'{shlex.quote(f"{job.runs_dir}/{job.run_id[:80]}")}-job"$SLURM_JOB_ID"'
    options = '--master-addr "${hosts[0]}" --master-port "$port"'
    command = torchrun_line(job, run_dir, options)
    if job.num_nodes == 1:
        body = _ALONE.format(project=shlex.quote(job.project), command=command)
    else:
        body = _BODY.format(
            project=shlex.quote(job.project),
            first_port=_FIRST_PORT,
            num_ports=_NUM_PORTS,
            on_node=shlex.quote('exec torchrun --node-rank "$SLURM_NODEID" "$@"'),
            arguments=command.removeprefix("torchrun "),
        )
    return "#!/bin/bash\n" + _directives(job) + comment(_words(job)) + body


def _directives(job: Job) -> str:
    asked = {
        "job-name": job.label,
        "nodes": job.num_nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": job.num_ranks_each,
        **({"gpus-per-node": job.num_ranks_each} if job.with_gpus else {}),
        "output": "%x-%j.log",
    }
    lines = [f"#SBATCH --{name}={value}\n" for name, value in asked.items()]
    # A requeued job has the number that it had: its run is there already.
    return "".join([*lines, "#SBATCH --no-requeue\n"])


def _words(job: Job) -> list[str]:
    return [
        f"Run {job.run_id} as a Slurm job: sbatch THIS_FILE.",
        PROOF,
        "Most clusters also want some of --partition, --account and --time: add lines like those above.",
        "Every node needs this project in the folder named below (or change it), installed.",
        *needs(job),
    ]
