"""The batch script of a run: kept in its folder, and good to be submitted by hand."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from trainers.contract.config import Config
from trainers.files.paths import REPOSITORY

NAME = "job.sh"
LOG = "slurm.log"
# When a node falls, the ranks of the others notice it, and node 0 says why the run has ended. What has not
# ended so long after the first node is killed.
REST_ENDS_WITHIN_S = 120
# Below those that Linux gives to whoever asks for any port, gloo among them: 32768 and up.
FIRST_PORT, NUM_PORTS = 29_600, 3_000

_SCRIPT = """\
#!/bin/bash
{options}
# One launcher a node; each starts torchrun with the ranks of its node. Node 0 keeps the run's status.
set -u
cd {project}
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(printf '%s\\n' "$hosts" | head -n 1)
port=$(({first_port} + SLURM_JOB_ID % {num_ports}))
export HEAD="$head" PORT="$port"
exec srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=0 --wait={wait_s} \\
  sh -c {launcher} sh {arguments}
"""
# Slurm numbers the nodes in the order of the list.
_LAUNCHER = (
    'exec "$@" --handle "{\\"job_id\\": \\"$SLURM_JOB_ID\\"}" --node-rank "$SLURM_NODEID"'
    ' --num-nodes "$SLURM_JOB_NUM_NODES" --head "$HEAD" --port "$PORT"'
)


def batch_script(config: Config, run_dir: Path, resume_step: int | None, *, partition: str = "") -> str:
    """Return the script of a start of a run; every value in it is quoted.

    Raises:
        ValueError: when a value cannot stand in a line of options.
    """
    options = {
        "job-name": f"ddp-{run_dir.name}",
        "nodes": str(config.num_nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(config.nproc_per_node),
        "output": str(run_dir / "logs" / LOG),
        "open-mode": "append",
        **({"partition": partition} if partition else {}),
    }
    resume = [] if resume_step is None else ["--resume", str(resume_step)]
    module = [sys.executable, "-m", "trainers.engines.several_nodes.node", str(run_dir), "--engine", "slurm"]
    return _SCRIPT.format(
        options="\n".join(f"#SBATCH --{name}={_option(value)}" for name, value in options.items()),
        project=shlex.quote(str(REPOSITORY)),
        first_port=FIRST_PORT,
        num_ports=NUM_PORTS,
        wait_s=REST_ENDS_WITHIN_S,
        launcher=shlex.quote(_LAUNCHER),
        arguments=shlex.join([*module, *resume]),
    )


def _option(value: str) -> str:
    """Return a value for a line of options, which Slurm splits as a shell does, but for expansions."""
    if not value.isprintable() or "%" in value:
        raise ValueError(
            f"{json.dumps(value)} cannot stand in a batch script: it has a sign that Slurm reads"
        )
    return shlex.quote(value)
