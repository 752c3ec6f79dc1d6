"""Writes the configuration of a Slurm cluster for a few PCs, whose resources are read by SSH.

python -m trainers.engines.slurm.make_conf FOLDER HOST… [--controller HOST] [--name NAME]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.engines.ssh.client import Ssh, SshError
from trainers.engines.ssh.site import SshHost
from trainers.machine.os_errors import explain

# Share of memory kept for the system. Otherwise a job that requests a node's entire memory never starts.
RESERVED_SHARE = 0.05
ANSWER_LIMIT_S = 20.0
_QUERY_SCRIPT = """\
PATH=$PATH:/usr/sbin:/sbin
command -v slurmd >/dev/null || { echo "slurmd is not installed: sudo apt install slurmd" >&2; exit 1; }
slurmd -C
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=index --format=csv,noheader | sed 's/^/gpu /'
fi
"""
_RESOURCES_LINE = re.compile(
    r"^NodeName=(?P<name>\S+) (?P<cores>CPUs=.*) RealMemory=(?P<memory>\d+)", re.MULTILINE
)
_CONF = """\
# Written by trainers.engines.slurm.make_conf. Every PC has the same file as /etc/slurm/slurm.conf.
ClusterName={name}
SlurmctldHost={controller}
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
# Slurm ends all processes that a job leaves behind. A job can use only its allocated cores and GPUs.
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={memory_a_core}
# Use a PC again after it was switched off; requeue the job that ran on it.
ReturnToService=2
JobRequeue=1
# Seconds without an answer after which a PC counts as down.
SlurmdTimeout=60
{gpus}{nodes}
PartitionName={name} Nodes={names} Default=YES MaxTime=1-00:00:00 State=UP
"""
_CGROUP = """\
ConstrainCores=yes
ConstrainDevices=yes
"""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of a PC.

    Attributes:
        cores: In the format of slurm.conf.
        memory_mb: Available to jobs.
        num_gpus: NVIDIA GPUs.
    """

    name: str
    cores: str
    memory_mb: int
    num_gpus: int

    @property
    def num_cpus(self) -> int:
        return int(self.cores.partition("CPUs=")[2].partition(" ")[0])


def main() -> None:
    """Read the resources of all PCs and write the files."""
    parser = argparse.ArgumentParser(description="Write the configuration of a Slurm cluster of a few PCs.")
    parser.add_argument("folder", type=Path, help="folder for the files")
    parser.add_argument("hosts", nargs="+", metavar="HOST", help="as typed after ssh")
    parser.add_argument(
        "--controller", metavar="HOST", help="PC that runs the controller (default: the first)"
    )
    parser.add_argument(
        "--name", default="lab", help="name of the cluster and of its partition (default: %(default)s)"
    )
    parser.add_argument(
        "--ssh-config", default="", metavar="FILE", help="SSH configuration to use instead of ~/.ssh/config"
    )
    options = parser.parse_args()
    try:
        ssh = Ssh(options.ssh_config)
        computers = [query(ssh, SshHost(name=name)) for name in options.hosts]
        files = make_files(computers, options.controller or computers[0].name, options.name)
        options.folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (options.folder / name).write_text(text)
    except (OSError, ValueError) as error:
        sys.exit(f"Nothing was written: {explain(error)}")
    print(
        f"{', '.join(files)} for {len(computers)} PCs are in {options.folder}: "
        "copy them to /etc/slurm on each."
    )


def query(ssh: Ssh, host: SshHost) -> Resources:
    """Return the resources of a PC.

    Raises:
        SshError: If they cannot be read.
    """
    return read(host.name, ssh.ask(host, _QUERY_SCRIPT, limit_s=ANSWER_LIMIT_S))


def read(host: str, output: str) -> Resources:
    """Parse the output of `slurmd -C` and nvidia-smi on a PC.

    Raises:
        SshError: If it is invalid.
    """
    if (match := _RESOURCES_LINE.search(output)) is None:
        raise SshError(f"{host}: slurmd reports invalid resources: {output[:200]!r}")
    return Resources(
        name=match["name"],
        cores=match["cores"],
        memory_mb=int(int(match["memory"]) * (1 - RESERVED_SHARE)),
        num_gpus=len(re.findall(r"^gpu \d+$", output, re.MULTILINE)),
    )


def make_files(computers: Sequence[Resources], controller: str, name: str) -> dict[str, str]:
    """Return the files' contents by name.

    Raises:
        ValueError: If two PCs have the same name, or the cluster's name is invalid.
    """
    names = [computer.name for computer in computers]
    if duplicates := sorted({host for host in names if names.count(host) > 1}):
        raise ValueError(f"two PCs are named {duplicates[0]}: give each its own name (hostnamectl)")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,30}", name):
        raise ValueError(f"--name is {name[:80]!r}; allowed: letters, digits, dashes")
    has_gpus = any(computer.num_gpus for computer in computers)
    conf = _CONF.format(
        name=name,
        controller=controller,
        memory_a_core=min(computer.memory_mb // computer.num_cpus for computer in computers),
        gpus="GresTypes=gpu\n" if has_gpus else "",
        nodes="\n".join(map(_node_line, computers)),
        names=",".join(names),
    )
    gres = [_gres_line(computer) for computer in computers if computer.num_gpus]
    return {
        "slurm.conf": conf,
        "cgroup.conf": _CGROUP,
        **({"gres.conf": "\n".join(gres) + "\n"} if has_gpus else {}),
    }


def _node_line(computer: Resources) -> str:
    gpus = f" Gres=gpu:{computer.num_gpus}" if computer.num_gpus else ""
    return f"NodeName={computer.name} {computer.cores} RealMemory={computer.memory_mb}{gpus} State=UNKNOWN"


def _gres_line(computer: Resources) -> str:
    last = computer.num_gpus - 1
    indices = f"[0-{last}]" if last else "0"
    return f"NodeName={computer.name} Name=gpu File=/dev/nvidia{indices}"


if __name__ == "__main__":
    main()
