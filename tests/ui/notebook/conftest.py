"""Fixture of the tests in this folder: one JupyterLab for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ui.notebook import jupyter
from tests.ui.notebook.jupyter import Jupyter


@pytest.fixture(scope="package")
def jupyterlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    jupyter.require("jupyterlab", "anywidget", "jupyter_server_proxy")
    with jupyter.serve(tmp_path_factory.mktemp("jupyter")) as served:
        yield served
