"""The batch script of a run. The run's folder contains it, so it can also be submitted from a terminal."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from trainers.contract.config import Config
from trainers.engines.several_nodes.peers import FIRST_PORT, NUM_PORTS
from trainers.files.plain_files import REPOSITORY

LOG = "slurm.log"
# Time between Slurm's warning signal and the end of the job, in which a checkpoint must be saved.
WARNING_S = 90
# Number of attempts, each of which takes seconds if the controller cannot be reached.
REQUEUE_TRIES = 60
CLEANUP_S = 180
WARNING_MESSAGE = (
    "Slurm ends this job soon, because its time limit is near or a job of higher priority needs its nodes."
)

_SCRIPT = """\
#!/bin/bash
{options}
# Each node has one launcher, which starts torchrun with the node's ranks. Node 0 writes the run's status.
set -u
cd {project}
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
HEAD=$(printf '%s\\n' "$hosts" | head -n 1)
PORT=$(({first_port} + SLURM_JOB_ID % {num_ports}))
RESTART=${{SLURM_RESTART_COUNT:-0}}
LEFT=$(({max_restarts} > RESTART ? {max_restarts} - RESTART : 0))
START=$SLURM_JOB_ID-$RESTART
# A folder on this node's own disk, in which node 0 signals the end even if the shared folder hangs.
DDP_SIGNS=$(mktemp -d)
trap 'rm -rf "$DDP_SIGNS"' EXIT
# Slurm commands for launchers. They compare the restart count, so an old start cannot end a newer one.
DDP_AGAIN={again}
DDP_AGAIN_LATER={again_later}
DDP_CANCEL={cancel}
DDP_WHY={why_down}
export HEAD PORT RESTART LEFT START DDP_SIGNS DDP_AGAIN DDP_AGAIN_LATER DDP_CANCEL DDP_WHY
run={run}

srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \\
  --kill-on-bad-exit=0 sh -c {launcher} sh {arguments} </dev/null &
step=$!

# On Slurm's warning signal, make the run save and end.
leave() {{
  {python} -m trainers.engines.several_nodes.leave "$run" --start "$START" --restarts-left "$LEFT" \\
    --why {why}
}}
trap leave USR1

# After node 0 signals the end, the other nodes have a few seconds; then this script ends what remains.
left=
while kill -0 "$step" 2>/dev/null; do
  sleep 1 &
  wait -n
  if [ -e "$DDP_SIGNS/cut-off" ]; then
    # This node is disconnected. Its launcher waits, without a GPU, until Slurm ends the whole job.
    [ "$LEFT" -gt 0 ] || DDP_AGAIN=$DDP_CANCEL
    until sh -c "$DDP_AGAIN"; do sleep 5; done
    wait "$step"
  fi
  [ -e "$DDP_SIGNS/over" ] || continue
  [ -n "$left" ] || left=$(cat "$DDP_SIGNS/over")
  [ "$left" -gt 0 ] || break
  left=$((left - 1))
done
status=0
if kill "$step" 2>/dev/null; then
  # End srun, which would otherwise wait for a node that does not answer.
  sleep 2
  kill -KILL "$step" 2>/dev/null
else
  wait "$step" || status=$?
fi
if [ -e "$DDP_SIGNS/again" ]; then
  tries=0
  until sh -c "$DDP_AGAIN" || [ "$((tries += 1))" -ge {tries} ]; do sleep 5; done
fi
exit "$status"
"""
_COUNT = 'now=$(squeue --noheader --states=all --jobs="$SLURM_JOB_ID" --Format=RestartCnt) && [ -n "$now" ]'
_IF_THIS_START = f'{_COUNT} && {{ [ "$((now))" -gt "$RESTART" ] || '
REQUEUE = _IF_THIS_START + 'scontrol requeue "$SLURM_JOB_ID"; }'
# If a node does not answer, the restart is delayed: Slurm refuses to start a job on a node that has not yet
# cleaned up the previous start, and drains that node ("Duplicate jobid"). The requeue sends SIGTERM to this
# shell, which must continue until the delay is set; SIGKILL follows after at least five seconds.
REQUEUE_LATER = (
    _IF_THIS_START + '{ trap "" TERM; scontrol requeue "$SLURM_JOB_ID" && '
    f'scontrol update JobId="$SLURM_JOB_ID" StartTime=now+{CLEANUP_S}; }}; }}'
)
CANCEL = _IF_THIS_START + 'scancel "$SLURM_JOB_ID"; }'
# Prints whether Slurm has requeued the job, and which of its nodes are down. The nodes are read first,
# because a node may be up again soon.
REASON = (
    'down=$(scontrol --oneliner show node "$SLURM_JOB_NODELIST" | '
    'sed -n "s/^NodeName=\\([^ ]*\\) .* State=DOWN[^ ]* .* Reason=\\([^[]*[^[ ]\\).*/'
    'Slurm has set \\1 down (reason: \\2)./p"); '
    f'{_COUNT} && [ "$((now))" -gt "$RESTART" ] && echo again && echo "$down"'
)
# Slurm numbers nodes in the order of the list.
_LAUNCHER = (
    'exec "$@" --handle "{\\"job_id\\": \\"$SLURM_JOB_ID\\"}" --start "$START" --restart "$RESTART"'
    ' --restarts-left "$LEFT" --node-rank "$SLURM_NODEID" --num-nodes "$SLURM_JOB_NUM_NODES"'
    ' --head "$HEAD" --port "$PORT"'
)


def batch_script(
    config: Config,
    run_dir: Path,
    resume_step: int | None,
    *,
    gres: str = "",
    max_restarts: int,
) -> str:
    """Return the script for one start of a run. Every value in it is quoted.

    Args:
        gres: Resources per node besides cores, in Slurm's format.
        max_restarts: Maximum number of automatic restarts (time limit, preemption, node failure).

    Raises:
        ValueError: If a value cannot be written in a line of options.
    """
    options = {
        "job-name": job_name(run_dir),
        "nodes": str(config.num_nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(config.nproc_per_node),
        "output": str(run_dir / "logs" / LOG),
        "open-mode": "append",
        "signal": f"B:USR1@{WARNING_S}",
        **_placement_options(config, gres),
    }
    lines = [f"--{name}={_quote_value(value)}" for name, value in options.items()]
    lines.append("--requeue" if max_restarts else "--no-requeue")
    lines += [_check_line(line) for line in config.extra_lines.splitlines()]
    resume = [] if resume_step is None else ["--resume", str(resume_step)]
    module = [sys.executable, "-m", "trainers.engines.several_nodes.node", str(run_dir), "--engine", "slurm"]
    return _SCRIPT.format(
        options="\n".join(f"#SBATCH {line}" for line in lines),
        project=shlex.quote(str(REPOSITORY)),
        first_port=FIRST_PORT,
        num_ports=NUM_PORTS,
        max_restarts=max_restarts,
        run=shlex.quote(str(run_dir)),
        python=shlex.quote(sys.executable),
        why=shlex.quote(WARNING_MESSAGE),
        launcher=shlex.quote(_LAUNCHER),
        again=shlex.quote(REQUEUE),
        again_later=shlex.quote(REQUEUE_LATER),
        cancel=shlex.quote(CANCEL),
        why_down=shlex.quote(REASON),
        tries=REQUEUE_TRIES,
        arguments=shlex.join([*module, *resume]),
    )


def job_name(run_dir: Path) -> str:
    """Return the name of a run's job."""
    return f"ddp-{run_dir.name}"


def _placement_options(config: Config, gres: str) -> dict[str, str]:
    """Return the options for where a job runs, and its limits."""
    memory = "" if config.memory_gb is None else f"{config.memory_gb}G"
    options = {
        "partition": config.partition,
        "gres": gres,
        "time": config.time_limit,
        "mem": memory,
        "account": config.account,
        "qos": config.qos,
    }
    return {name: value for name, value in options.items() if value}


def _check_line(line: str) -> str:
    """Return an administrator's complete option, after checking that it fits on one line."""
    if not line.isprintable() or not line.startswith("--"):
        raise ValueError(f"{json.dumps(line)} is not an option of a batch script")
    return line


def _quote_value(value: str) -> str:
    """Quote a value for an option line, which Slurm splits like a shell but without expansion."""
    if not value.isprintable() or "%" in value:
        raise ValueError(
            f"{json.dumps(value)} cannot be used in a batch script: it contains a special character of Slurm"
        )
    return shlex.quote(value)
