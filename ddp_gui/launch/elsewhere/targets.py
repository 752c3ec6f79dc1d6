"""The places a run can be taken to, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddp_gui.launch.elsewhere import sbatch, skypilot, torchrun_pair, trainjob
from ddp_gui.launch.elsewhere.job import Job


@dataclass(frozen=True, kw_only=True)
class Target:
    """One file that can be taken along.

    Attributes:
        proof: what of it was tried here, in words.
        ending: of the file's name, after the run's id.
    """

    label: str
    what_for: str
    proof: str
    ending: str
    make: Callable[[Job], str]

    def file_name(self, job: Job) -> str:
        """Return the name of the file; an id and this have only plain letters."""
        return f"{job.run_id}{self.ending}"


TARGETS = {
    "torchrun": Target(
        label="torchrun commands",
        what_for="A few computers that reach each other: one command for each.",
        proof=torchrun_pair.PROOF,
        ending="-torchrun.sh",
        make=torchrun_pair.text,
    ),
    "slurm": Target(
        label="Slurm script",
        what_for="A cluster with Slurm: submit it with sbatch.",
        proof=sbatch.PROOF,
        ending=".sbatch",
        make=sbatch.text,
    ),
    "kubeflow": Target(
        label="Kubeflow TrainJob",
        what_for="A Kubernetes cluster with Kubeflow Trainer: create it with kubectl.",
        proof=trainjob.PROOF,
        ending="-trainjob.yaml",
        make=trainjob.text,
    ),
    "skypilot": Target(
        label="SkyPilot task",
        what_for="Machines rented in a cloud: start it with sky launch.",
        proof=skypilot.PROOF,
        ending="-skypilot.yaml",
        make=skypilot.text,
    ),
}
