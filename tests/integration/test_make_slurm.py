"""Create a Slurm cluster from PCs: start Debian's daemons with the generated configuration.

`NOT_HERE` overrides the settings that this machine cannot use: system folders and ports, a user, cgroups.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import slurm_cluster
from tests.cluster.network import Host
from tests.cluster.ssh_hosts import PCS, SshHosts
from tests.harness import wait_until
from trainers.engines.slurm import make_conf
from trainers.engines.slurm.make_conf import Resources
from trainers.engines.ssh.client import SshError
from trainers.files.plain_files import REPOSITORY

UP_S = 60.0
# Slurm uses the last value of each.
NOT_HERE = """\
SlurmUser=root
AuthInfo=socket={socket}
SlurmctldPort={port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
"""


def test_two_pcs_become_a_cluster_that_runs_a_job_on_both(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    if missing := slurm_cluster.what_is_missing():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"NOT RUN: {missing}")
    files = tmp_path / "slurm-files"
    page = (REPOSITORY / "docs" / "make-slurm.md").read_text()
    (command,) = re.findall(r"python (-m trainers\.engines\.slurm\.make_conf) slurm-files pc1 pc2\n", page)
    done = subprocess.run(
        [sys.executable, *command.split(), str(files), *PCS, "--ssh-config", str(ssh_hosts.config)],
        cwd=REPOSITORY,
        env={**os.environ, **ssh_hosts.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "slurm.conf, cgroup.conf for 2 PCs" in done.stdout, "there is no GPU here"
    with started(files / "slurm.conf", ssh_hosts, tmp_path) as head:
        wait_until(
            "two idle PCs", lambda: asked(head, files, "sinfo", "-h", "-o", "%P %D %t") == "lab* 2 idle", UP_S
        )
        names = asked(head, files, "srun", "--nodes=2", "--chdir=/", "hostname").split()
        assert sorted(names) == list(PCS)


@contextlib.contextmanager
def started(conf: Path, hosts: SshHosts, folder: Path) -> Iterator[Host]:
    """Start the daemons of a configuration; yield the host of the controller."""
    number = os.getpid() % 10_000
    with contextlib.ExitStack() as stack:
        socket = slurm_cluster.start_munge(stack, folder)
        here = NOT_HERE.format(folder=folder, socket=socket, port=50_001 + number, node_port=40_001 + number)
        conf.write_text(conf.read_text() + here)
        for name in ("state", *(f"spool-{pc}" for pc in PCS)):
            (folder / name).mkdir()
        head = hosts.network.hosts[0]
        environment = {"SLURM_CONF": str(conf)}
        slurm_cluster.start_daemon(stack, folder, "slurmctld", head.inside(["slurmctld", "-D"]), environment)
        for host in hosts.network.hosts:
            command = host.inside(["slurmd", "-D", "-N", host.name])
            slurm_cluster.start_daemon(stack, folder, f"slurmd-{host.name}", command, environment)
        yield head


def asked(head: Host, files: Path, *command: str) -> str:
    environment = {**os.environ, "SLURM_CONF": str(files / "slurm.conf")}
    done = subprocess.run(
        head.inside(command), env=environment, capture_output=True, text=True, check=False, timeout=UP_S
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr


def test_what_a_pc_says_of_itself_is_read_and_written_with_its_gpus() -> None:
    said = (
        "NodeName=pc1 CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=16000\n"
    )
    shape = make_conf.read("pc1", f"{said}UpTime=1-00:00:00\ngpu 0\ngpu 1\n")
    cores = "CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=2"
    assert shape == Resources(name="pc1", cores=cores, memory_mb=15_200, num_gpus=2)
    other = Resources(name="pc2", cores="CPUs=4", memory_mb=4_000, num_gpus=1)
    files = make_conf.make_files([shape, other], "pc1", "room7")
    assert f"NodeName=pc1 {cores} RealMemory=15200 Gres=gpu:2 State=UNKNOWN\n" in files["slurm.conf"]
    assert "PartitionName=room7 Nodes=pc1,pc2 Default=YES" in files["slurm.conf"]
    assert "DefMemPerCPU=1000\n" in files["slurm.conf"] and "GresTypes=gpu\n" in files["slurm.conf"]
    assert files["gres.conf"].splitlines() == [
        "NodeName=pc1 Name=gpu File=/dev/nvidia[0-1]",
        "NodeName=pc2 Name=gpu File=/dev/nvidia0",
    ]


def test_what_makes_no_cluster_is_refused_in_words() -> None:
    shape = Resources(name="pc1", cores="CPUs=4", memory_mb=4_000, num_gpus=0)
    with pytest.raises(SshError, match="pc1: slurmd reports invalid resources: 'nothing'"):
        make_conf.read("pc1", "nothing")
    with pytest.raises(ValueError, match="two PCs are named pc1"):
        make_conf.make_files([shape, shape], "pc1", "lab")
    with pytest.raises(ValueError, match="--name is 'a b'"):
        make_conf.make_files([shape], "pc1", "a b")
