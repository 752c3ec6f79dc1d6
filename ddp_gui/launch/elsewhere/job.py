"""What every target is made from: a run's configuration on other machines, and its torchrun command."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from dataclasses import dataclass, replace
from typing import Any

import yaml

from trainers.contract.config import Config
from trainers.contract.run_ids import file_stem
from trainers.contract.rundir import RunDirectory
from trainers.engines.local import torchrun

WORKER = "trainers.worker"
PORT = 29500
_COMMENT_WIDTH = 96
# A Kubernetes name has at most 63 characters, and the names of pods are made from this one.
_MAX_LABEL = 40


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run as it would be on other machines.

    Attributes:
        config: with the number of machines that it is taken to.
        runs_dir: the folder of runs and the project's, as on this machine.
        with_gpus: one GPU is asked for for each rank.
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
        """The name of the new run, where nothing there gives it a better one."""
        return f"{self.run_id[:80]}-elsewhere"

    @property
    def label(self) -> str:
        """The run's id as a name that Kubernetes and SkyPilot accept: small letters, digits, hyphens."""
        words = re.sub(r"[^a-z0-9]+", "-", self.run_id.lower())[:_MAX_LABEL].strip("-")
        return words if words[:1].isalpha() else f"run-{words}".rstrip("-")

    @property
    def config_text(self) -> str:
        """The configuration as the worker reads it: ASCII, on one line."""
        return json.dumps(self.config.changed())


def of_run(
    run: RunDirectory, config: Config, *, runs_dir: str, project: str, num_nodes: int, with_gpus: bool
) -> Job:
    """Return the job of a run on so many machines, with GPUs or without."""
    device = config.device
    if device != "auto" and (device == "cuda") != with_gpus:
        device = "auto" if with_gpus else "cpu"
    return Job(
        run_id=file_stem(run.run_id),
        config=replace(config, num_nodes=num_nodes, device=device),
        runs_dir=runs_dir,
        project=project,
        with_gpus=with_gpus,
    )


def torchrun_words(job: Job) -> list[str]:
    """Return the command up to the run directory, but for what says which machine of several this is.

    Several machines find each other by the static rendezvous, which exchanges JSON: torchrun's c10d
    rendezvous unpickles what any machine of the network sends. A machine alone needs no port.
    """
    if job.num_nodes == 1:
        return torchrun.literal_command(torchrun.torchrun_arguments(job.num_ranks_each, WORKER))
    ranks = ["--nnodes", str(job.num_nodes), "--nproc-per-node", str(job.num_ranks_each)]
    return ["torchrun", *ranks, "-m", WORKER]


def torchrun_line(job: Job, run_dir: str, machine: str) -> str:
    """Return the command for a shell.

    Args:
        run_dir, machine: words of a shell, quoted already: the new run's directory, and torchrun's options
            for this machine of several.
    """
    words = torchrun_words(job)
    if job.num_nodes > 1:
        program, *others = words
        beginning = f"{program} {machine} {shlex.join(others)}"
    else:
        beginning = shlex.join(words)
    return f"{beginning} {run_dir} --config {shlex.quote(job.config_text)}"


def comment(paragraphs: list[str]) -> str:
    """Return paragraphs as comments of a shell or of YAML."""
    assert all("\n" not in paragraph for paragraph in paragraphs)
    lines = [line for text in paragraphs for line in textwrap.wrap(text, _COMMENT_WIDTH)]
    return "".join(f"# {line}\n" for line in lines)


def needs(job: Job) -> list[str]:
    """Return, in words, what there has to be on the machines, and who must be kept out."""
    said = []
    if job.num_nodes > 1:
        said.append("All machines must see the same folder of runs: checkpoints come from every rank.")
    if job.config.data_path:
        said.append("Your own data must be at the same path on every machine (data_path below).")
    if job.config.pretrained_path:
        said.append("The pretrained model must be at the same path on every machine (pretrained_path below).")
    if job.num_nodes > 1:
        said.append(
            "While it runs, ports of these machines answer every computer that reaches them, without a "
            "password: use it only in a network whose computers you trust."
        )
    return said


class Script(str):
    """A text of several lines, which YAML shows as such."""

    __slots__ = ()


class _Emitter(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """PyYAML's own, with scripts as blocks."""


def _as_block(emitter: Any, text: Script) -> Any:
    return emitter.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")


_Emitter.add_representer(Script, _as_block)


def yaml_text(value: dict[str, Any]) -> str:
    """Return a value as YAML, in the order it has."""
    text = yaml.dump(value, Dumper=_Emitter, sort_keys=False, allow_unicode=True, width=10_000)
    assert isinstance(text, str)
    return text
