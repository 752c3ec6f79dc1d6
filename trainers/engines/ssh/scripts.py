"""Scripts for a host's `sh`. Every value in them is quoted.

A live launcher holds a lock on its host, which the kernel releases when the launcher ends in any way. The
lock file names the run and its start. Therefore a host has one run at a time, and pids, which could be
reused, are not needed to check that a launcher is alive.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.engines.ssh.site import SshHost

# Environment variable of a launcher, inherited by its descendants.
TAG = "DDP_SSH_START"

_LOCK = """\
folder=${XDG_CACHE_HOME:-$HOME/.cache}/ddp-web
lock=$folder/$(uname -n).lock
"""
_START = """\
set -u
umask 077
say() { echo "$1" >&2; exit 1; }
{lock}
mkdir -p "$folder" || say "the cache folder of this host is not writable"
cd {project} || say {no_project}
[ -x {python} ] || say {no_python}
[ -d {run} ] || say {no_run}
exec 9>>"$lock"
flock -w 2 9 || say "this host already trains $(basename "$(cut -d ' ' -f 2- "$lock")"), one run at a time"
printf '%s %s\\n' {tag} {run} >"$lock"
{exports}
setsid {command} </dev/null >>{log} 2>&1 &
sed 's/.*) //' "/proc/$!/stat" | cut -d ' ' -f 20 | sed "s/^/$! /"
"""
_STATE = """\
{lock}
[ -e "$lock" ] || exit 0
flock -n -s "$lock" true || cat "$lock"
"""
# Prints a host's resources.
CAPACITY = """\
unset OMP_NUM_THREADS
echo "cores $(nproc)"
sed -n 's/^MemTotal: *\\([0-9]*\\) kB/memory_kib \\1/p' /proc/meminfo
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=memory.total,name --format=csv,noheader,nounits | sed 's/^/gpu /'
fi
"""
_REAP = """\
cd {project} || exit 1
exec {command}
"""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU of a host."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class HostCapacity:
    """Resources of a host."""

    num_cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]


def start_script(
    host: SshHost, run_dir: Path, tag: str, node: int, command: Sequence[str], variables: Mapping[str, str]
) -> str:
    """Return the script that starts a launcher in its own session and prints its pid and start time.

    Args:
        command: Arguments of Python.
    """
    suffix = f"_{node}" if node else ""
    exports = {**variables, TAG: f"{tag}:{node}"}
    return fill_script(
        _START,
        lock=_LOCK,
        project=shlex.quote(host.remote_project),
        no_project=shlex.quote(
            f"this host has no folder {host.remote_project}, in which this project must be"
        ),
        python=shlex.quote(host.remote_python),
        no_python=shlex.quote(f"this host has no {host.remote_python}"),
        run=shlex.quote(str(run_dir)),
        no_run=shlex.quote(f"this host cannot access the run's folder {run_dir}: is the folder shared?"),
        tag=shlex.quote(tag),
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in exports.items()),
        command=shlex.join([host.remote_python, *command]),
        log=shlex.quote(str(run_dir / "logs" / f"supervisor{suffix}.log")),
    )


def state_script() -> str:
    """Return the script that prints tag and run folder of the live launcher, or nothing."""
    return fill_script(_STATE, lock=_LOCK)


def read_capacity(output: str) -> HostCapacity:
    """Parse the output of the script `CAPACITY`.

    Raises:
        ValueError: If it is invalid.
    """
    rows = [line.partition(" ") for line in output.splitlines()]
    values = {key: value for key, _, value in rows if key in ("cores", "memory_kib")}
    if not values.get("cores", "").isdecimal() or not values.get("memory_kib", "").isdecimal():
        raise ValueError(f"the host reports invalid resources: {json.dumps(output[:200])}")
    gpus = []
    for key, _, value in rows:
        memory, _, name = value.partition(", ")
        if key == "gpu" and memory.strip().isdecimal():
            gpus.append(Gpu(name=name.strip(), memory_bytes=int(memory) * 2**20))
    return HostCapacity(
        num_cores=int(values["cores"]), memory_bytes=int(values["memory_kib"]) * 2**10, gpus=tuple(gpus)
    )


def reap_script(host: SshHost, tag: str, node: int) -> str:
    """Return the script that kills all processes of a start on a host and prints their number."""
    command = [host.remote_python, "-m", "trainers.engines.ssh.reap", f"{tag}:{node}"]
    return fill_script(_REAP, project=shlex.quote(host.remote_project), command=shlex.join(command))


def fill_script(script: str, **values: str) -> str:
    """Return a script with its values filled in; other braces belong to the shell and are not changed."""
    return re.sub(rf"\{{({'|'.join(values)})\}}", lambda match: values[match[1]], script)
