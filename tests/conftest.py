"""Fixtures and markers for all tests; each folder is a marker of its own."""

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

# Always the same examples, so that a failure is the change's; `--hypothesis-profile=long` tries new ones.
# How long examples take to be made and tried says how busy the machine is, not whether the code is right.
ANY_SPEED: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("short", derandomize=True, database=None, max_examples=30, **ANY_SPEED)
settings.register_profile("long", max_examples=10_000, print_blob=True, **ANY_SPEED)
settings.load_profile("short")

FOLDERS = ("unit", "integration", "faults", "gpu", "paper_gpu", "ui")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the limit that keeps `make quick` quick."""
    parser.addoption("--most-cpu-s", type=float, help="a test that takes more processor time fails")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that costs more than it may. Processor time, not the clock: the machine may be busy."""
    before_s = _cpu_s()
    yield
    cost_s, most_s = _cpu_s() - before_s, item.config.getoption("--most-cpu-s")
    if most_s is not None and cost_s > most_s:
        pytest.fail(
            f"took {cost_s:.1f} s of processor time, more than {most_s:g}: mark it slow, or make it cheaper"
        )


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by the folder it lies in, so that `-m unit` picks what is cheap."""
    here = Path(__file__).parent
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        folder = item.path.relative_to(here).parts[0]
        if folder in FOLDERS:
            item.add_marker(folder)
    # What is cheap first; but side by side what is long, so that no core waits for it at the end.
    is_worker = hasattr(config, "workerinput")
    items.sort(key=_cost, reverse=is_worker)
    if is_worker:
        items[:] = _between(items)


def _cost(item: pytest.Item) -> int:
    return next((position for position, folder in enumerate(FOLDERS) if folder in item.keywords), 0)


def _between(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the items with the files that mostly wait, for clusters, spread between those that compute.

    Workers take file by file: so one seldom waits while another does, and no core is idle.
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
    """Start runs in the test's own folder; afterwards none of their processes is left."""
    is_literal = "faults" in request.node.keywords  # what goes wrong, goes wrong with what users run
    started = Launcher(tmp_path / "runs", REPOSITORY if is_literal else None)
    yield started
    started.close()


@pytest.fixture(scope="session")
def shared_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Start runs that several tests look at."""
    started = Launcher(tmp_path_factory.mktemp("shared") / "runs")
    yield started
    started.close()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Start a real Slurm cluster of two nodes; in CI its absence is a failure."""
    if missing := what_is_missing():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"NOT RUN: {missing}")
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def slurm_with_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Start a real Slurm cluster with two partitions, one of which has GPUs as far as Slurm knows."""
    if missing := what_is_missing():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"NOT RUN: {missing}")
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), WITH_GPUS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def slurm_with_accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Start a real Slurm cluster with accounting, QOS and preemption; the database is the test's own."""
    if missing := what_is_missing(has_accounting=True):
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"NOT RUN: {missing}")
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), WITH_ACCOUNTS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Start two hosts that are reached by SSH; in CI their absence is a failure."""
    if missing := ssh_hosts_module.what_is_missing():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"NOT RUN: {missing}")
    with ssh_hosts_module.ssh_hosts(tmp_path_factory.mktemp("ssh")) as hosts:
        yield hosts


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system of 48 MiB; the test is skipped where none can be mounted."""
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
