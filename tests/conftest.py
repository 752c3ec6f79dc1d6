"""Fixtures and markers for all tests. Each folder has its own marker."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.cluster import ssh_hosts as ssh_hosts_module
from tests.cluster.slurm_cluster import WITH_ACCOUNTS, WITH_GPUS, SlurmCluster, slurm_cluster, what_is_missing
from tests.cluster.ssh_hosts import SshHosts
from tests.harness import REPOSITORY, Launcher
from trainers.contract.rundir import RunDirectory

# Use the same examples in every run, so that a failure is caused by the change; `--hypothesis-profile=long`
# tries new examples. The time per example depends on the load of the machine, so the profiles have no
# deadline.
ANY_SPEED: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("short", derandomize=True, database=None, max_examples=30, **ANY_SPEED)
settings.register_profile("long", max_examples=10_000, print_blob=True, **ANY_SPEED)
settings.load_profile("short")

UMASK = os.umask(0o077)
os.umask(UMASK)

FOLDERS = ("unit", "integration", "faults", "gpu", "paper_gpu", "ui")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--most-cpu-s`, the CPU time limit of `make quick`."""
    parser.addoption("--most-cpu-s", type=float, help="a test that takes more processor time fails")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that exceeds its limit of CPU time. Wall time would depend on the load of the machine."""
    before_s = _cpu_s()
    yield
    cost_s, most_s = _cpu_s() - before_s, item.config.getoption("--most-cpu-s")
    if most_s is not None and cost_s > most_s:
        pytest.fail(
            f"took {cost_s:.1f} s of processor time, more than {most_s:g}: mark it slow, or make it cheaper"
        )


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In CI, print the name of a failed test at once: a time limit may prevent pytest's summary."""
    if os.environ.get("CI") and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED in {report.duration:.0f} s ({report.when}): {report.nodeid}", flush=True)


@pytest.fixture(autouse=True)
def _usual_umask() -> None:
    """Undo what a command leaves that an earlier test called in this process: its files are private."""
    os.umask(UMASK)


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with the name of its folder, so that `-m unit` selects the cheap tests."""
    here = Path(__file__).parent
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        folder = item.path.relative_to(here).parts[0]
        if folder in FOLDERS:
            item.add_marker(folder)
    # Run cheap tests first in a single process. With xdist, start long tests first so that no core is idle at
    # the end.
    is_worker = hasattr(config, "workerinput")
    items.sort(key=_cost, reverse=is_worker)
    if is_worker:
        items[:] = _between(items)


def _cost(item: pytest.Item) -> int:
    return next((position for position, folder in enumerate(FOLDERS) if folder in item.keywords), 0)


def _between(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the items with files that mostly wait for clusters interleaved with files that compute.

    xdist workers take one file at a time, so interleaving keeps workers from waiting at the same time.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [path for path, inside in files.items() if any(map(_waits_for_a_cluster, inside))]
    computing = [path for path, inside in files.items() if path not in waiting and _cost(inside[0]) > 0]
    order = []
    for number, path in enumerate(computing):
        share = slice(number * len(waiting) // len(computing), (number + 1) * len(waiting) // len(computing))
        order += [*waiting[share], path]
    rest = [path for path in files if path not in order]
    return [item for path in [*order, *rest] for item in files[path]]


def _waits_for_a_cluster(item: pytest.Item) -> bool:
    module = vars(item.getparent(pytest.Module).obj)
    imported = {str(getattr(value, "__module__", "")) for value in module.values()}
    return _cost(item) > 0 and any(name.startswith("tests.cluster.") for name in imported)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return an empty run directory."""
    directory = RunDirectory(tmp_path / "run-1")
    directory.path.mkdir()
    return directory


@pytest.fixture
def launcher(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launcher]:
    """Start runs in the test's own folder, and kill all their processes afterwards."""
    is_literal = "faults" in request.node.keywords  # fault tests execute exactly what users run
    started = Launcher(tmp_path / "runs", REPOSITORY if is_literal else None)
    yield started
    started.close()


@pytest.fixture(scope="session")
def shared_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Start runs that several tests share."""
    started = Launcher(tmp_path_factory.mktemp("shared") / "runs")
    yield started
    started.close()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Start a real Slurm cluster of two nodes. A missing Slurm installation is a failure in CI."""
    if missing := what_is_missing():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"NOT RUN: {missing}")
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def slurm_with_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Start a real Slurm cluster with two partitions, one of which has GPUs in Slurm's configuration."""
    if missing := what_is_missing():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"NOT RUN: {missing}")
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), WITH_GPUS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def slurm_with_accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Start a real Slurm cluster with accounting (a private database), QOS and preemption."""
    if missing := what_is_missing(has_accounting=True):
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"NOT RUN: {missing}")
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), WITH_ACCOUNTS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Start two hosts that are reached by SSH. Missing requirements are a failure in CI."""
    if missing := ssh_hosts_module.what_is_missing():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"NOT RUN: {missing}")
    with ssh_hosts_module.ssh_hosts(tmp_path_factory.mktemp("ssh")) as hosts:
        yield hosts


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system of 48 MiB. Skip the test if it cannot be mounted."""
    folder = tmp_path / "small_disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a full disk needs a tmpfs of its own, and mounting one needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def repository() -> Path:
    """Return the root of the repository."""
    return REPOSITORY
