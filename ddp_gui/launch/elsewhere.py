"""Exports a run as a job for other schedulers: torchrun, sbatch, SkyPilot, TrainJob."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import yaml

from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory, file_stem
from trainers.engines.local import torchrun

WORKER = "trainers.worker"
PORT = 29500
_COMMENT_WIDTH = 96
# Maximum length of a label: Kubernetes names have at most 63 characters, and pods extend the label.
_MAX_LABEL = 40


@dataclass(frozen=True, kw_only=True)
class ExportedJob:
    """A run as a job on other machines.

    Attributes:
        config: the configuration, with the target's number of machines.
        runs_dir: the folder of runs, as on this machine.
        project: the folder of this project, as on this machine.
        with_gpus: request one GPU for each rank.
    """

    run_id: str
    config: Config
    runs_dir: str
    project: str
    with_gpus: bool

    @property
    def num_nodes(self) -> int:
        return self.config.num_nodes

    @property
    def num_ranks_each(self) -> int:
        return self.config.nproc_per_node

    @property
    def new_run(self) -> str:
        """The name of the new run, unless the target defines one."""
        return f"{self.run_id[:80]}-elsewhere"

    @property
    def label(self) -> str:
        """The run's id as a name that Kubernetes and SkyPilot accept: lower-case letters, digits, hyphens."""
        name = re.sub(r"[^a-z0-9]+", "-", self.run_id.lower())[:_MAX_LABEL].strip("-")
        return name if name[:1].isalpha() else f"run-{name}".rstrip("-")

    @property
    def config_text(self) -> str:
        """The configuration as the worker reads it: ASCII, on one line."""
        return json.dumps(self.config.changed())


def job_of_run(
    run: RunDirectory, config: Config, *, runs_dir: str, project: str, num_nodes: int, with_gpus: bool
) -> ExportedJob:
    """Return the job of a run on this number of machines, with or without GPUs."""
    device = config.device
    if device != "auto" and (device == "cuda") != with_gpus:
        device = "auto" if with_gpus else "cpu"
    return ExportedJob(
        run_id=file_stem(run.run_id),
        config=replace(config, num_nodes=num_nodes, device=device),
        runs_dir=runs_dir,
        project=project,
        with_gpus=with_gpus,
    )


def torchrun_argv(job: ExportedJob) -> list[str]:
    """Return the command before the run directory, without the node rank and the rendezvous address.

    Several machines find each other by the static rendezvous, which exchanges JSON: torchrun's c10d
    rendezvous unpickles data that any machine of the network may send. A single machine needs no port.
    """
    if job.num_nodes == 1:
        return torchrun.literal_command(torchrun.torchrun_arguments(job.num_ranks_each, WORKER))
    ranks = ["--nnodes", str(job.num_nodes), "--nproc-per-node", str(job.num_ranks_each)]
    return ["torchrun", *ranks, "-m", WORKER]


def torchrun_line(job: ExportedJob, run_dir: str, machine: str) -> str:
    """Return the command for a shell.

    Args:
        run_dir: the new run's directory, already quoted for a shell.
        machine: torchrun's options for one of several machines, already quoted for a shell.
    """
    argv = torchrun_argv(job)
    if job.num_nodes > 1:
        program, *arguments = argv
        start = f"{program} {machine} {shlex.join(arguments)}"
    else:
        start = shlex.join(argv)
    return f"{start} {run_dir} --config {shlex.quote(job.config_text)}"


def comment(paragraphs: list[str]) -> str:
    """Return paragraphs as comments of a shell or of YAML."""
    assert all("\n" not in paragraph for paragraph in paragraphs)
    lines = [line for text in paragraphs for line in textwrap.wrap(text, _COMMENT_WIDTH)]
    return "".join(f"# {line}\n" for line in lines)


def needs(job: ExportedJob) -> list[str]:
    """Return sentences about the requirements for the machines and their network."""
    notes = []
    if job.num_nodes > 1:
        notes.append(
            "All machines must share the folder of runs, because every rank writes a part of the checkpoints."
        )
    if job.config.data_path:
        notes.append("Your own data must be at the same path on every machine (data_path below).")
    if job.config.pretrained_path:
        notes.append(
            "The pretrained model must be at the same path on every machine (pretrained_path below)."
        )
    if job.config.start_from:
        run_id = job.config.start_from.rpartition("/")[0]
        notes.append(f"The run starts from run {run_id}, which must be in the same folder of runs.")
    if job.num_nodes > 1:
        notes.append(
            "While the run trains, these machines accept connections from every computer without a "
            "password. Use only a trusted network."
        )
    return notes


class YamlBlock(str):
    """A text of several lines, which YAML shows as a block."""

    __slots__ = ()


class _Emitter(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """PyYAML's dumper, with scripts as blocks."""


def _represent_block(emitter: Any, text: YamlBlock) -> Any:
    return emitter.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")


_Emitter.add_representer(YamlBlock, _represent_block)


def yaml_text(value: dict[str, Any]) -> str:
    """Return a value as YAML, with its keys in their order."""
    text = yaml.dump(value, Dumper=_Emitter, sort_keys=False, allow_unicode=True, width=10_000)
    assert isinstance(text, str)
    return text


# A documentation address (RFC 5737), which belongs to no machine, so the user must replace it.
FIRST_ADDRESS = "192.0.2.1"
TORCHRUN_PROOF = "Tested: this project's tests run these commands for two machines, both on one computer."


def torchrun_text(job: ExportedJob) -> str:
    """Return the commands, each below a comment that names its machine."""
    notes = [
        f"Run {job.run_id} by torchrun, on {job.num_nodes} machine{'s'[: job.num_nodes > 1]}.",
        TORCHRUN_PROOF,
    ]
    if job.num_nodes > 1:
        notes.append(
            f"Replace {FIRST_ADDRESS} with the address of the first machine, then give each machine its own "
            "command within five minutes."
        )
    notes.append("Install this project on every machine, in the folder named below, or change the folder.")
    blocks = [_block(job, node) for node in range(job.num_nodes)]
    return comment([*notes, *needs(job)]) + "".join(blocks)


def _block(job: ExportedJob, node: int) -> str:
    options = f'--node-rank {node} --master-addr "$FIRST" --master-port {PORT}'
    command = torchrun_line(job, shlex.quote(f"{job.runs_dir}/{job.new_run}"), options)
    first = f"FIRST={FIRST_ADDRESS}\n" if job.num_nodes > 1 else ""
    project = f'cd {shlex.quote(job.project)} && PATH="$PWD/.venv/bin:$PATH"'
    return f"\n# Machine {node + 1} of {job.num_nodes}\n{first}{project} {command}\n"


SBATCH_PROOF = (
    "Not tested on a cluster. The tests of this project run it with substitutes for srun and scontrol."
)
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
_BODY = """
set -euo pipefail
cd {project}
export PATH="$PWD/.venv/bin:$PATH"
# Since Slurm 22.05, srun does not inherit this value from sbatch.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$(({first_port} + SLURM_JOB_ID % {num_ports}))
# The task on each node adds its node rank.
srun --kill-on-bad-exit=1 bash -c {on_node} torchrun {arguments}
"""
_ONE_NODE_BODY = """
set -euo pipefail
cd {project}
export PATH="$PWD/.venv/bin:$PATH"
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
srun {command}
"""


def sbatch_text(job: ExportedJob) -> str:
    """Return the script: one task per node, which runs torchrun."""
    run_dir = f'{shlex.quote(f"{job.runs_dir}/{job.run_id[:80]}")}-job"$SLURM_JOB_ID"'
    options = '--master-addr "${hosts[0]}" --master-port "$port"'
    command = torchrun_line(job, run_dir, options)
    if job.num_nodes == 1:
        body = _ONE_NODE_BODY.format(project=shlex.quote(job.project), command=command)
    else:
        body = _BODY.format(
            project=shlex.quote(job.project),
            first_port=_FIRST_PORT,
            num_ports=_NUM_PORTS,
            on_node=shlex.quote('exec torchrun --node-rank "$SLURM_NODEID" "$@"'),
            arguments=command.removeprefix("torchrun "),
        )
    return "#!/bin/bash\n" + _directives(job) + comment(_paragraphs(job)) + body


def _directives(job: ExportedJob) -> str:
    options = {
        "job-name": job.label,
        "nodes": job.num_nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": job.num_ranks_each,
        **({"gpus-per-node": job.num_ranks_each} if job.with_gpus else {}),
        "output": "%x-%j.log",
    }
    lines = [f"#SBATCH --{name}={value}\n" for name, value in options.items()]
    # Do not requeue: a requeued job keeps its number, so its run would already exist.
    return "".join([*lines, "#SBATCH --no-requeue\n"])


def _paragraphs(job: ExportedJob) -> list[str]:
    return [
        f"Run {job.run_id} as a Slurm job: sbatch THIS_FILE.",
        SBATCH_PROOF,
        "Most clusters also require --partition, --account or --time: add lines like those above.",
        "Install this project on every node, in the folder named below, or change the folder.",
        *needs(job),
    ]


SKYPILOT_PROOF = (
    "Not tested in a cloud. The tests of this project check it against the schema of "
    "SkyPilot, and run its script with SkyPilot's variables."
)
# Placeholder that the user must replace, because this machine does not know the GPUs of a cloud.
GPU = "A100"
_SHARED = "Set RUNS to a folder that all machines share, such as a SkyPilot volume, not a machine's disk."
_SETUP = """source tools/venv.sh
make_venv requirements.txt
"""
_RUN = """set -euo pipefail
export PATH="$PWD/.venv/bin:$PATH"
{command}
"""
_MACHINE_LIST = """mapfile -t machines <<< "$SKYPILOT_NODE_IPS"
"""


def skypilot_text(job: ExportedJob) -> str:
    """Return the task."""
    notes = [
        f"Run {job.run_id} as a SkyPilot task. In this project's folder: sky launch THIS_FILE.",
        SKYPILOT_PROOF,
        "SkyPilot uploads the project's folder. Copy the runs before sky down, which deletes the machines.",
        *([_SHARED] if job.num_nodes > 1 else []),
        *([f"Replace {GPU} with a GPU that your cloud has (sky show-gpus)."] if job.with_gpus else []),
        *needs(job),
    ]
    return comment(notes) + yaml_text(skypilot_value(job))


def skypilot_value(job: ExportedJob) -> dict[str, Any]:
    """Return the task as an object."""
    options = f'--node-rank "$SKYPILOT_NODE_RANK" --master-addr "${{machines[0]}}" --master-port {PORT}'
    command = torchrun_line(job, f'"$RUNS"/{job.new_run}', options)
    first = _MACHINE_LIST if job.num_nodes > 1 else ""
    num_ranks = job.num_ranks_each
    return {
        "name": job.label,
        "workdir": ".",
        "num_nodes": job.num_nodes,
        "resources": {"accelerators": f"{GPU}:{num_ranks}"} if job.with_gpus else {"cpus": f"{num_ranks}+"},
        "envs": {"RUNS": "runs"},
        "setup": YamlBlock(_SETUP),
        "run": YamlBlock(_RUN.format(command=first + command)),
    }


TRAINJOB_PROOF = (
    "Not tested on a cluster. The tests of this project check it against the schema of Kubeflow Trainer 2.2."
)
RUNS = "/runs"
# Placeholders that the user must replace, because this machine does not know the names.
IMAGE = "registry.example/this-project:latest"
CLAIM = "ddp-runs"
_NODE = "node"  # the name of the job and the container in the runtime torch-distributed


def trainjob_text(job: ExportedJob) -> str:
    """Return the TrainJob."""
    notes = [
        f"Run {job.run_id} as a TrainJob of Kubeflow Trainer 2.2 or later: kubectl create -f THIS_FILE.",
        TRAINJOB_PROOF,
        f"Replace {IMAGE}: an image whose working directory is this project, installed.",
        f"Replace {CLAIM}: a PersistentVolumeClaim for the runs (several machines: ReadWriteMany).",
        *needs(job),
    ]
    return comment(notes) + yaml_text(trainjob_value(job))


def trainjob_value(job: ExportedJob) -> dict[str, Any]:
    """Return the TrainJob as an object; the addresses of the machines come from Kubeflow's environment."""
    command = [*torchrun_argv(job), f"{RUNS}/{job.new_run}", "--config", job.config_text]
    kind = "nvidia.com/gpu" if job.with_gpus else "cpu"
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job.label},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": IMAGE,
                # Kubernetes replaces $(NAME) in a command; $$ is a literal $.
                "command": [argument.replace("$", "$$") for argument in command],
                "numNodes": job.num_nodes,
                "numProcPerNode": job.num_ranks_each,
                "resourcesPerNode": {
                    "requests": {kind: job.num_ranks_each},
                    "limits": {kind: job.num_ranks_each},
                },
            },
            "runtimePatches": [_runs_volume_patch()],
        },
    }


def _runs_volume_patch() -> dict[str, Any]:
    """Return the patch that mounts the folder of runs into every pod."""
    pod = {
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": CLAIM}}],
        "containers": [{"name": _NODE, "volumeMounts": [{"name": "runs", "mountPath": RUNS}]}],
    }
    jobs = [{"name": _NODE, "template": {"spec": {"template": {"spec": pod}}}}]
    template = {"spec": {"replicatedJobs": jobs}}
    return {"manager": "ddp-page.example/runs", "trainingRuntimeSpec": {"template": template}}


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """One format in which a run can be exported.

    Attributes:
        proof: a sentence about how the format was tested.
        ending: suffix of the file's name, after the run's id.
    """

    label: str
    what_for: str
    proof: str
    ending: str
    make: Callable[[ExportedJob], str]


TARGETS = {
    "torchrun": ExportFormat(
        label="torchrun commands",
        what_for="A few computers on one network: one command for each.",
        proof=TORCHRUN_PROOF,
        ending="-torchrun.sh",
        make=torchrun_text,
    ),
    "slurm": ExportFormat(
        label="Slurm script",
        what_for="A cluster with Slurm: submit it with sbatch.",
        proof=SBATCH_PROOF,
        ending=".sbatch",
        make=sbatch_text,
    ),
    "kubeflow": ExportFormat(
        label="Kubeflow TrainJob",
        what_for="A Kubernetes cluster with Kubeflow Trainer: create it with kubectl.",
        proof=TRAINJOB_PROOF,
        ending="-trainjob.yaml",
        make=trainjob_text,
    ),
    "skypilot": ExportFormat(
        label="SkyPilot task",
        what_for="Machines rented in a cloud: start it with sky launch.",
        proof=SKYPILOT_PROOF,
        ending="-skypilot.yaml",
        make=skypilot_text,
    ),
}
