"""A real Slurm cluster for tests: Debian's daemons with a private configuration, on two simulated hosts.

The controller and Slurm's commands run on a login node. No system service is changed, and every daemon is
terminated by its own process ID.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import stall
from tests.cluster.disk import SMALL_DISK, mount_small_disk
from tests.cluster.network import Host, Network, end, network, processes_on, without_cable
from tests.cluster.stall import Stall
from tests.harness import wait_until

NODES = ("node1", "node2")
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "ip", "nsenter")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb")
COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun", "sacct", "sacctmgr")
UP_S = 60.0
# Longer than a job waits after its start time is updated.
AGAIN_AFTER_S = 15.0
IDLE_S = 180.0
CORES_A_NODE = 4
OTHER_ADMINISTRATOR = "nobody"
_WITHOUT_ACCOUNTING = ("AccountingStorageType=accounting_storage/none",)
_ACCOUNTS = (
    "add cluster test",
    "add account lab",
    "add qos low preemptmode=cancel",
    "add qos high preempt=low",
    "add user root account=lab defaultaccount=lab qos=normal,low,high",
    f"add user {OTHER_ADMINISTRATOR} account=lab adminlevel=admin",
)

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=login({login})
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={socket}
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
{accounting}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
ReturnToService={returns_to_service}
SlurmdTimeout={node_timeout_s}
InactiveLimit=0
KillWait=5
MinJobAge={forgets_after_s}
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,requeue_delay=1
{nodes}
{partitions}
{lines}
"""
_DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={socket}
DbdHost=login
DbdAddr={login}
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""
LAB = f"PartitionName=lab Nodes={','.join(NODES)} Default=YES MaxTime=00:30:00 State=UP"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Configuration of a cluster in addition to two nodes with cores.

    Attributes:
        partitions: lines of slurm.conf.
        node_timeout_s: time until Slurm marks a node that does not answer as down.
        returns_to_service: 2: every node that answers; 1: except nodes that an administrator set down.
        gpus: of a node, by type. Slurm allocates them to jobs like real ones; there is no device behind them.
        has_accounting: slurmdbd with a private database, QOS `low` and `high`, and a second administrator.
        forgets_after_s: time for which squeue lists a job that has ended.
        lines: additional lines of slurm.conf.
    """

    partitions: Sequence[str] = (LAB,)
    node_timeout_s: int = 300
    returns_to_service: int = 2
    gpus: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    has_accounting: bool = False
    forgets_after_s: int = 300
    lines: Sequence[str] = ()


PLAIN = Shape()
WITH_ACCOUNTS = Shape(
    has_accounting=True,
    forgets_after_s=5,
    lines=("PreemptType=preempt/qos", "PreemptMode=CANCEL", "OverTimeLimit=0"),
)
WITH_GPUS = Shape(
    partitions=(
        "PartitionName=cpu Nodes=node1 Default=YES MaxTime=00:05:00 State=UP",
        "PartitionName=gpu Nodes=node2 MaxTime=1-00:00:00 State=UP",
    ),
    gpus={"node2": {"tesla": 2, "k80": 1}},
)


@dataclass(frozen=True, kw_only=True)
class SlurmCluster:
    """A cluster that is up.

    Attributes:
        environment: variables with which Slurm's commands find it.
    """

    network: Network
    environment: Mapping[str, str]
    folder: Path
    munge_folder: Path
    stall: Stall

    def ask(self, *command: str) -> str:
        """Return the output of a Slurm command.

        Raises:
            CalledProcessError: the command failed.
        """
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=UP_S
        ).stdout

    def ask_as_other_administrator(self, *command: str) -> None:
        """Run a Slurm command as another user, who is an administrator of the accounts."""
        readable = self.munge_folder / "slurm.conf"  # other users cannot read the test's folder
        shutil.copy(self.folder / "slurm.conf", readable)
        readable.chmod(0o644)
        become = ["setpriv", f"--reuid={OTHER_ADMINISTRATOR}", "--clear-groups", "--", *command]
        environment = {**os.environ, "SLURM_CONF": str(readable)}
        subprocess.run(self.network.login.inside(become), env=environment, check=True, timeout=UP_S)

    @property
    def small_disk(self) -> Path:
        """A folder of 64 MB that all hosts share."""
        return self.folder / SMALL_DISK

    def wait_until_idle(self) -> None:
        """Wait until no job is on any node."""
        wait_until("both nodes being idle", lambda: _num_idle(self) == len(NODES), IDLE_S)

    def is_delayed(self, job_id: str) -> bool:
        """Return True if a requeued job waits for its start time, by default for two minutes."""
        said = self.ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%T %r")
        return said == "PENDING BeginTime\n"

    def without_delay(self, job_id: str) -> Callable[[], None]:
        """Return a function that starts a requeued job without its delay, and is called until it runs.

        A job that restarts too early is refused by the nodes ("Job credential revoked") and delayed again.
        """
        asked_at = float("-inf")

        def start_now() -> None:
            nonlocal asked_at
            if time.monotonic() - asked_at > AGAIN_AFTER_S and self.is_delayed(job_id):
                self.ask("scontrol", "update", f"JobId={job_id}", "StartTime=now+4")
                asked_at = time.monotonic()

        return start_now

    def processes_on(self, node: str) -> list[int]:
        """Return the PIDs of all processes on a node."""
        return processes_on(self._host(node))

    @contextlib.contextmanager
    def without_cable(self, node: str) -> Iterator[None]:
        """Disconnect a node until the block ends."""
        with without_cable(self._host(node)):
            yield

    @contextlib.contextmanager
    def cut_off(self, node: str) -> Iterator[None]:
        """Disconnect a node, and the shared folder of runs in `stall.under`, until the block ends."""
        with self.without_cable(node), self.stall.on(node):
            yield
        self.ask("scontrol", "reconfigure")  # the node registers immediately; otherwise Slurm needs minutes

    def _host(self, name: str) -> Host:
        return next(host for host in self.network.hosts if host.name == name)


def what_is_missing(*, has_accounting: bool = False) -> str:
    """Return the reason why no cluster can be created here, or ""."""
    programs = (*PROGRAMS, *ACCOUNTING_PROGRAMS) if has_accounting else PROGRAMS
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        packages = "slurm-wlm munge" + (" slurmdbd mariadb-server" if has_accounting else "")
        return f"{', '.join(missing)} not installed: apt-get install {packages}"
    return "" if os.geteuid() == 0 else "network namespaces and Slurm's daemons need root"


@contextlib.contextmanager
def slurm_cluster(folder: Path, shape: Shape = PLAIN) -> Iterator[SlurmCluster]:
    """Start the daemons. At the end of the block each is terminated and waited for."""
    with contextlib.ExitStack() as stack:
        mount_small_disk(stack, folder)
        made = stack.enter_context(network(folder, NODES))
        socket = start_munge(stack, folder)
        configuration = _write_configuration(folder, made, socket, shape)
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        environment = {"SLURM_CONF": str(configuration)}
        stalling = stall.build(folder)
        path = f"{_commands_on(made.login, folder)}{os.pathsep}{os.environ['PATH']}"
        cluster = SlurmCluster(
            network=made,
            environment={**environment, "PATH": path, **stalling.environment},
            folder=folder,
            munge_folder=socket.parent,
            stall=stalling,
        )
        if shape.has_accounting:
            _start_accounting(stack, folder, made.login, socket, environment)
            for words in _ACCOUNTS:
                cluster.ask("sacctmgr", "--immediate", *words.split())
        start_daemon(stack, folder, "slurmctld", made.login.inside(["slurmctld", "-D"]), environment)
        for host in made.hosts:
            command = host.inside(["slurmd", "-D", "-N", host.name])
            start_daemon(stack, folder, f"slurmd-{host.name}", command, environment)
        cluster.wait_until_idle()
        yield cluster


def _commands_on(host: Host, folder: Path) -> Path:
    """Return a folder with Slurm's commands, each of which runs on a host."""
    commands = folder / "bin"
    commands.mkdir()
    for name in COMMANDS:
        script, program = commands / name, shutil.which(name) or name
        words = shlex.join(host.inside([program]))
        # A job inherits this path and runs Slurm's commands on its node.
        on_node = f'case $(uname -n) in {"|".join(NODES)}) exec {program} "$@" ;; esac'
        script.write_text(f'#!/bin/sh\n{on_node}\nexec {words} "$@"\n')
        script.chmod(0o755)
    return commands


def start_munge(stack: contextlib.ExitStack, folder: Path) -> Path:
    """Start an authentication daemon with a private key. Return its socket."""
    # munged refuses folders below one that other users can write to, such as /tmp, so it gets a folder in
    # /run.
    place = Path("/run") / f"ddp-munge-{os.getpid()}-{secrets.token_hex(4)}"
    place.mkdir()
    place.chmod(0o755)  # regardless of the umask, which a test may have changed
    stack.callback(shutil.rmtree, place)
    key = place / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    options = {
        "key-file": key,
        "socket": place / "socket",
        "pid-file": place / "pid",
        "log-file": place / "log",
        "seed-file": place / "seed",
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    start_daemon(stack, folder, "munged", ["munged", "--foreground", *arguments], {})
    wait_until("munge's socket", (place / "socket").exists, UP_S)
    return place / "socket"


def _write_configuration(folder: Path, made: Network, socket: Path, shape: Shape) -> Path:
    number = os.getpid() % 20_000
    nodes = [
        f"NodeName={host.name} NodeAddr={host.address} CPUs={CORES_A_NODE} RealMemory=8000 State=UNKNOWN"
        f"{_gres(shape.gpus.get(host.name, {}))}"
        for host in made.hosts
    ]
    if shape.gpus:
        nodes.insert(0, "GresTypes=gpu")
        _write_gres(folder, shape.gpus)
    path = folder / "slurm.conf"
    path.write_text(
        _CONFIGURATION.format(
            login=made.login.address,
            controller_port=20_000 + number,
            node_port=40_001 + number,
            socket=socket,
            folder=folder,
            node_timeout_s=shape.node_timeout_s,
            returns_to_service=shape.returns_to_service,
            nodes="\n".join(nodes),
            partitions="\n".join(shape.partitions),
            lines="\n".join(shape.lines),
            forgets_after_s=shape.forgets_after_s,
            accounting="\n".join(_with_accounting(socket) if shape.has_accounting else _WITHOUT_ACCOUNTING),
        )
    )
    return path


def _with_accounting(socket: Path) -> list[str]:
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=login",
        f"AccountingStoragePort={_database_port()}",
        f"AccountingStoragePass={socket}",
        "AccountingStorageEnforce=associations,limits,qos",
    ]


def _database_port() -> int:
    return 62_000 + os.getpid() % 3_000


def _start_accounting(
    stack: contextlib.ExitStack, folder: Path, login: Host, socket: Path, environment: Mapping[str, str]
) -> None:
    """Start a database with a private folder and socket, and slurmdbd on the login node."""
    data, mysql = folder / "database", folder / "mysql.socket"
    data.mkdir()
    plain = ["--no-defaults", f"--datadir={data}", "--user=root"]
    subprocess.run(
        ["mariadb-install-db", *plain, "--skip-test-db", "--auth-root-authentication-method=normal"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    options = [f"--socket={mysql}", "--skip-networking", "--innodb-flush-log-at-trx-commit=0"]
    start_daemon(stack, folder, "mariadbd", ["mariadbd", *plain, *options], {})
    wait_until("the database's socket", mysql.exists, UP_S)
    configuration = folder / "slurmdbd.conf"
    configuration.touch(mode=0o600)
    configuration.write_text(
        _DATABASE.format(socket=socket, login=login.address, port=_database_port(), folder=folder)
    )
    command = login.inside(["slurmdbd", "-D"])
    start_daemon(stack, folder, "slurmdbd", command, {**environment, "MYSQL_UNIX_PORT": str(mysql)})
    log = folder / "slurmdbd.log"
    wait_until("slurmdbd", lambda: log.exists() and "started" in log.read_text(), UP_S)


def _gres(gpus: Mapping[str, int]) -> str:
    return " Gres=" + ",".join(f"gpu:{kind}:{count}" for kind, count in gpus.items()) if gpus else ""


def _write_gres(folder: Path, gpus: Mapping[str, Mapping[str, int]]) -> None:
    """Write gres.conf with a file per GPU: slurmd only checks that the file exists."""
    lines = []
    for node, kinds in gpus.items():
        for kind, count in kinds.items():
            for number in range(count):
                (folder / f"{kind}{number}").touch()
            lines.append(f"NodeName={node} Name=gpu Type={kind} File={folder}/{kind}[0-{count - 1}]")
    (folder / "gres.conf").write_text("\n".join(lines) + "\n")


def start_daemon(
    stack: contextlib.ExitStack,
    folder: Path,
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
) -> None:
    """Start a daemon in the foreground. The stack terminates it."""
    # slurmd passes its own OMP_ and SLURM_ variables, such as the number of threads, to its jobs.
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "SLURM_"))}
    log = stack.enter_context((folder / f"{name}.out").open("wb"))
    process = subprocess.Popen(
        command, env={**kept, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    stack.callback(end, process)


def _num_idle(cluster: SlurmCluster) -> int:
    try:
        # A node is listed once for each of its partitions.
        found = set(cluster.ask("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines())
    except subprocess.CalledProcessError:
        time.sleep(0.2)
        return 0
    return sum(node.split()[-1:] == ["idle"] for node in found)
