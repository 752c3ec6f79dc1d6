"""Requirements of the tests of this folder. A test whose requirement is missing is skipped and names it.

GPU_TESTS_ON_CPU=1 runs tests for which that makes sense on CPU ranks: the same code, so that mistakes in the
tests are found without a GPU. It proves nothing about GPUs.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.place import Place, gpus, names_processes
from trainers.machine import nvml

ON_CPU = "GPU_TESTS_ON_CPU"
FEW = 2
CPU = Place(device="cpu", num=2)
NEEDED_BY_THE_PAGE = ("gradio", "gradio_client", "plotly", "orjson", "tsdownsample", "playwright")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need real GPUs on simulated ones, and on many GPUs tests that need only two."""
    if not os.environ.get("PAPER_GPU"):
        return

    def is_here(item: pytest.Item) -> bool:
        return Path(__file__).parent in item.path.parents

    has_many = len(nvml.visible_gpus()) > FEW
    for item in items:
        if (marker := item.get_closest_marker("real_gpu")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs a real GPU: {marker.args[0]}"))
        elif has_many and is_here(item) and item.get_closest_marker("many_gpus") is None:
            item.add_marker(pytest.mark.skip(reason="runs on one and two paper GPUs"))


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    """Return the GPUs, or the CPU ranks selected instead."""
    if os.environ.get(ON_CPU):
        yield CPU
        return
    # The tests and each rank number the GPUs as the driver does.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        if (found := gpus()).num == 0:
            pytest.skip(f"torch {torch.__version__} sees no GPU here ({ON_CPU}=1 runs this on CPU ranks)")
        yield found


@pytest.fixture(scope="session")
def gpu(place: Place) -> Place:
    """Return the GPUs, for tests that make no sense on CPU ranks."""
    if not place.is_gpu:
        pytest.skip("this is about GPUs alone")
    return place


@pytest.fixture(scope="session")
def two(place: Place) -> Place:
    """Return two GPUs or more."""
    if place.num < 2:
        pytest.skip("torch sees one GPU here, and this needs two")
    return place


@pytest.fixture(scope="session")
def two_gpus(gpu: Place, two: Place) -> Place:
    """Return two GPUs or more, for tests that make no sense on CPU ranks."""
    return two


@pytest.fixture(scope="session")
def seen(place: Place) -> Place:
    """Return the GPUs if the driver reports which processes use them."""
    if place.is_gpu and not names_processes(place):
        pytest.skip("the driver names no process of ours (a container?), so who is on a GPU cannot be seen")
    return place


@pytest.fixture(scope="session")
def page_packages() -> None:
    """Skip the test if the page cannot be served."""
    missing = [name for name in NEEDED_BY_THE_PAGE if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the page cannot be served here: {', '.join(missing)} not installed")


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep datasets that are prepared by the test in the test's folder."""
    folder = tmp_path / "prepared"
    folder.mkdir()
    monkeypatch.setenv("TRAINERS_CACHE", str(folder))
    return folder
