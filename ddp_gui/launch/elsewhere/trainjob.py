"""A TrainJob of Kubeflow Trainer v2, which runs torchrun in one pod a machine."""

from __future__ import annotations

from typing import Any

from ddp_gui.launch.elsewhere.job import Job, comment, needs, torchrun_words, yaml_text

PROOF = (
    "Not tried on a cluster: there was none here. The tests of this project check it against the schema of "
    "Kubeflow Trainer 2.2."
)
RUNS = "/runs"
# To be replaced: nothing on this machine says what they are.
IMAGE = "registry.example/this-project:latest"
CLAIM = "ddp-runs"
_NODE = "node"  # what the runtime torch-distributed calls its job and its container


def text(job: Job) -> str:
    """Return the TrainJob."""
    said = [
        f"Run {job.run_id} as a TrainJob of Kubeflow Trainer 2.2 or later: kubectl create -f THIS_FILE.",
        PROOF,
        f"Replace {IMAGE}: an image whose working directory is this project, installed.",
        f"Replace {CLAIM}: a PersistentVolumeClaim for the runs (several machines: ReadWriteMany).",
        *needs(job),
    ]
    return comment(said) + yaml_text(value(job))


def value(job: Job) -> dict[str, Any]:
    """Return the TrainJob as an object; the addresses of the machines come from Kubeflow's environment."""
    command = [*torchrun_words(job), f"{RUNS}/{job.new_run}", "--config", job.config_text]
    kind = "nvidia.com/gpu" if job.with_gpus else "cpu"
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job.label},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": IMAGE,
                # Kubernetes replaces $(NAME) in a command; a doubled $ is one.
                "command": [word.replace("$", "$$") for word in command],
                "numNodes": job.num_nodes,
                "numProcPerNode": job.num_ranks_each,
                "resourcesPerNode": {
                    "requests": {kind: job.num_ranks_each},
                    "limits": {kind: job.num_ranks_each},
                },
            },
            "runtimePatches": [_with_the_runs()],
        },
    }


def _with_the_runs() -> dict[str, Any]:
    """Return the patch that mounts the folder of runs into every pod."""
    pod = {
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": CLAIM}}],
        "containers": [{"name": _NODE, "volumeMounts": [{"name": "runs", "mountPath": RUNS}]}],
    }
    jobs = [{"name": _NODE, "template": {"spec": {"template": {"spec": pod}}}}]
    template = {"spec": {"replicatedJobs": jobs}}
    return {"manager": "ddp-page.example/runs", "trainingRuntimeSpec": {"template": template}}
