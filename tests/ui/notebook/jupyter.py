"""JupyterLab and JupyterHub with this checkout's notebook module and tile, and notebooks in a browser."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page

from tools import page_driver
from trainers.files.plain_files import REPOSITORY

TOKEN = "a-token-of-a-test"
# A name that Chromium resolves to this machine, and that the page does not know.
HOST = "lab.localhost"
ENTRY_POINT = "[jupyter_serverproxy_servers]\nrankscope = ddp_gui.notebook.page:tile\n"
HTTP_PROXY = "configurable-http-proxy"
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}


def require(*packages: str, program: str = "") -> None:
    """Skip the test, with the reason, if a package is missing, or a program of npm."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        pytest.skip(f"NOT RUN: {', '.join(missing)} not installed: pip install -r requirements-notebook.txt")
    if program and shutil.which(program) is None:
        pytest.skip(f"NOT RUN: {program} not installed: npm install --global {program}")


@dataclass(frozen=True, kw_only=True)
class Jupyter:
    """A running JupyterLab.

    Attributes:
        folder: the folder that it shows.
    """

    address: str
    port: int
    folder: Path

    @property
    def runs_dir(self) -> Path:
        """Return the folder of the runs of the tile's page: the default, below Jupyter's current folder."""
        return self.folder / "runs"

    def open_notebook(self, page: Page, *cells: str) -> list[Locator]:
        """Open a new notebook; return its cells."""
        path = self.folder / f"notebook-{len(list(self.folder.glob('*.ipynb')))}.ipynb"
        path.write_text(json.dumps(notebook(*cells)))
        page.goto(f"{self.address}/doc/tree/{path.name}?token={TOKEN}")
        shown = page.locator(".jp-Notebook .jp-CodeCell")
        shown.nth(len(cells) - 1).wait_for()
        # Until the kernel is connected, JupyterLab ignores the keys that run a cell.
        page.get_by_role("button", name="Python 3 (ipykernel) | Idle").wait_for()
        return [shown.nth(number) for number in range(len(cells))]

    def tell_kernel(self, action: str) -> None:
        """Restart or interrupt the kernel that was started last, as the buttons of JupyterLab do."""
        kernels = json.loads(self._ask("GET", "api/kernels"))  # in the order of their starts
        self._ask("POST", f"api/kernels/{kernels[-1]['id']}/{action}")

    def _ask(self, method: str, path: str) -> bytes:
        headers = {"Authorization": f"token {TOKEN}"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}", method=method, headers=headers
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())


def run_cell(cell: Locator) -> None:
    cell.locator(".cm-content").click()
    cell.page.keyboard.press("Control+Enter")


def notebook(*cells: str) -> dict[str, Any]:
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    about = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": kernel},
        "cells": [{**about, "id": f"cell-{number}", "source": text} for number, text in enumerate(cells)],
    }


def environment(folder: Path, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which Jupyter has its own settings, and this checkout is as if installed."""
    about = folder / "site" / "rankscope-0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rankscope\nVersion: 0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINT)
    settings = folder / "config" / "lab" / "user-settings"
    for name, values in SETTINGS.items():
        extension, plugin = name.split(":")
        file = settings / extension / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    paths = {"CONFIG": "config", "DATA": "data", "RUNTIME": "runtime"}
    return {
        **{f"JUPYTER_{name}_DIR": str(folder / path) for name, path in paths.items()},
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(folder / "site")]),
        **(variables or {}),
    }


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[Jupyter]:
    shown = folder / "notebooks"
    shown.mkdir(parents=True)
    port = page_driver.free_port()
    command = [
        "env", f"--chdir={shown}", sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
        f"--port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={shown}",
        f"--IdentityProvider.token={TOKEN}", "--ServerApp.allow_remote_access=True",
    ]  # fmt: skip
    with (
        page_driver.variables_set(environment(folder)),
        page_driver.serve_command(command, port, first_path=f"api?token={TOKEN}"),
    ):
        yield Jupyter(address=f"http://{HOST}:{port}", port=port, folder=shown)


@contextlib.contextmanager
def serve_hub(folder: Path, password: str) -> Iterator[str]:
    """Run a JupyterHub, in which any name can log in, until the block ends; yield its address.

    The users' servers are processes of the user who runs the tests, each in `folder/home/NAME`.
    """
    hub, port = folder / "hub", page_driver.free_port()
    hub.mkdir(parents=True)
    variables = environment(folder)
    (hub / "config.py").write_text(f"""\
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_port = {page_driver.free_port()}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{page_driver.free_port()}"
c.ConfigurableHTTPProxy.command = [{HTTP_PROXY!r}]
c.JupyterHub.db_url = "sqlite:///{hub}/hub.sqlite"
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/home/{{username}}"
c.Spawner.cmd = [{sys.executable!r}, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"]
c.Spawner.http_timeout = c.Spawner.start_timeout = 120
c.Spawner.environment = {variables!r}
""")
    command = ["env", f"--chdir={hub}", sys.executable, "-m", "jupyterhub", f"--config={hub}/config.py"]
    with page_driver.serve_command(command, port, first_path="hub/login", timeout_s=120.0):
        yield f"http://{HOST}:{port}"
