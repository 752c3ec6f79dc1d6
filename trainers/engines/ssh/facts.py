"""What each host has, and whether all fit together (versions, clocks, files), in words with what to do."""

from __future__ import annotations

import os
import secrets
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from trainers.engines.reports import HostReport
from trainers.engines.ssh import scripts
from trainers.engines.ssh.client import Ssh, SshError
from trainers.engines.ssh.site import SshHost

LIMIT_S = 20.0
# Telemetry of several hosts on one axis of time is wrong by as much.
CLOCK_MAY_DIFFER_S = 1.0
CODE_SHOWN = 12

_FACTS = """\
echo "clock $(date +%s.%N)"
{capacity}
if command -v nvidia-smi >/dev/null; then
  for pid in $(nvidia-smi --query-compute-apps=pid --format=csv,noheader); do
    echo "user $(ps -o user= -p "$pid")"
  done
fi
echo "sees $(cat {token} 2>/dev/null)"
command -v rsync >/dev/null && echo "rsync yes"
echo "torch $({python} -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null)"
cd {project} 2>/dev/null || exit 0
echo "code $(find trainers -name '*.py' | LC_ALL=C sort | xargs cat | sha256sum | cut -c 1-{code_shown})"
"""


def ask(
    ssh: Ssh, host: SshHost, user: str | SshError, token_file: Path, token: str, *, is_shared: bool
) -> HostReport:
    """Return what a host says of itself.

    Args:
        user: the run that it trains, or why that is not known.
        token_file: in the folder of the runs; a host that sees it prints the token.
        is_shared: it is to see that folder, and to have this project; else both are brought.
    """
    script = scripts.filled(
        _FACTS,
        capacity=scripts.capacity(),
        token=shlex.quote(str(token_file)),
        project=shlex.quote(host.project_there),
        python=shlex.quote(host.python_there),
        code_shown=str(CODE_SHOWN),
    )
    asked_at = time.time()
    try:
        said = ssh.ask(host, script, limit_s=LIMIT_S)
        read = scripts.read_capacity(said)
    except (SshError, ValueError) as error:
        return HostReport(name=host.name, is_reachable=False, problems=(str(error),))
    rows = [line.partition(" ") for line in said.splitlines()]
    values = {key: value.strip() for key, _, value in rows}
    report = HostReport(
        name=host.name,
        is_reachable=True,
        run_id=user if isinstance(user, str) else "",
        num_cores=read.num_cores,
        memory_bytes=read.memory_bytes,
        gpu_names=tuple(gpu.name for gpu in read.gpus),
        gpu_users=tuple(sorted({value.strip() for key, _, value in rows if key == "user" and value.strip()})),
        torch=values.get("torch") or None,
        code=values.get("code") or None,
        clock_off_s=_clock_off_s(values.get("clock", ""), asked_at, time.time()),
        sees_runs=values.get("sees") == token if is_shared else None,
    )
    of_all = _clock_problems(host, report)
    if is_shared:
        return report.with_problems([*_own_problems(host, report), *of_all])
    return report.with_problems([*_problems_unshared(host, report, has_rsync="rsync" in values), *of_all])


def compare(reports: list[HostReport]) -> list[HostReport]:
    """Return the reports with what does not fit together; the first host that answers is the measure."""
    first = next((report for report in reports if report.is_reachable), None)
    if first is None:
        return reports
    return [report.with_problems(_differences(first, report)) for report in reports]


def make_token(runs_dir: Path) -> tuple[Path, str]:
    """Write a file that only who sees this very folder can know; return it and what is in it.

    Raises:
        OSError: when the folder takes no file.
    """
    token = secrets.token_hex(8)
    path = runs_dir / f".seen-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    return path, token


def _clock_off_s(said: str, asked_at: float, answered_at: float) -> float | None:
    """Return by how much at least a host's clock is ahead of this one's; it was read between two moments."""
    try:
        clock = float(said)
    except ValueError:
        return None
    if asked_at <= clock <= answered_at:
        return 0.0
    return round(clock - (asked_at if clock < asked_at else answered_at), 3)


def _own_problems(host: SshHost, report: HostReport) -> list[str]:
    found = []
    if report.code is None:
        found.append(
            f"{host.name} has no folder {host.project_there}: put this project there, or name its place with "
            "project in the site file."
        )
    elif report.torch is None:
        found.append(f"{host.name}: {host.python_there} has no torch: run ./run.sh there once.")
    if report.sees_runs is False:
        found.append(
            f"{host.name} does not see the folder of the runs: mount the shared folder there, at the same "
            "path."
        )
    return found


def _problems_unshared(host: SshHost, report: HostReport, *, has_rsync: bool) -> list[str]:
    found = []
    if report.torch is None:
        found.append(
            f"{host.name}: {host.python_there} has no torch: name a Python that has torch, psutil and "
            "nvidia-ml-py with python in the site file."
        )
    if not has_rsync:
        found.append(f"{host.name} has no rsync: install it there.")
    return found


def _clock_problems(host: SshHost, report: HostReport) -> list[str]:
    found = []
    if report.clock_off_s is not None and abs(report.clock_off_s) > CLOCK_MAY_DIFFER_S:
        side = "ahead of" if report.clock_off_s > 0 else "behind"
        found.append(
            f"The clock of {host.name} is {abs(report.clock_off_s):.1f} s {side} this one's: install chrony."
        )
    return found


def _differences(first: HostReport, report: HostReport) -> list[str]:
    pairs: Mapping[str, tuple[str | None, str | None]] = {
        "torch": (first.torch, report.torch),
        "this project's code": (first.code, report.code),
    }
    return [
        f"{report.name} has {what} {there}, and {first.name} {here}: a run over both may fail or compute "
        f"something else. Bring both to the same version."
        for what, (here, there) in pairs.items()
        if here and there and here != there
    ]
