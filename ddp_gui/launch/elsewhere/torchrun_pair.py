"""One torchrun command a machine, to be typed or pasted by hand."""

from __future__ import annotations

import shlex

from ddp_gui.launch.elsewhere.job import PORT, Job, comment, needs, torchrun_line

# A documentation address (RFC 5737): it reaches nobody until it is replaced.
FIRST_ADDRESS = "192.0.2.1"
PROOF = "Tried: the tests of this project run these commands as two machines, on one computer."


def text(job: Job) -> str:
    """Return the commands, each below a comment that says on which machine it is given."""
    said = [f"Run {job.run_id} by torchrun, on {job.num_nodes} machine{'s'[: job.num_nodes > 1]}.", PROOF]
    if job.num_nodes > 1:
        said.append(
            f"Replace {FIRST_ADDRESS} by the address of the first machine, then give each machine its own "
            "command within five minutes."
        )
    said.append("Every machine needs this project in the folder named below (or change it), installed.")
    blocks = [_block(job, node) for node in range(job.num_nodes)]
    return comment([*said, *needs(job)]) + "".join(blocks)


def _block(job: Job, node: int) -> str:
    options = f'--node-rank {node} --master-addr "$FIRST" --master-port {PORT}'
    command = torchrun_line(job, shlex.quote(f"{job.runs_dir}/{job.new_run}"), options)
    first = f"FIRST={FIRST_ADDRESS}\n" if job.num_nodes > 1 else ""
    project = f'cd {shlex.quote(job.project)} && PATH="$PWD/.venv/bin:$PATH"'
    return f"\n# Machine {node + 1} of {job.num_nodes}\n{first}{project} {command}\n"
