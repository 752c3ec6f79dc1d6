"""Serves the complete page from a notebook: in Colab's output, as a tile of JupyterLab, or at a URL."""

from __future__ import annotations

import atexit
import contextlib
import html
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from ddp_gui.http.own_proxy import FRAMES_VARIABLE, ORIGIN_VARIABLE, SECRET_HEADER, SECRET_VARIABLE
from ddp_gui.login_node import READY
from ddp_gui.notebook.runs import RUNS_DIR
from trainers.files.plain_files import ASSETS, REPOSITORY
from trainers.machine import environment, lifeline
from trainers.machine.os_errors import explain

NAME = "rankscope"
USER = "me"
HOST = "127.0.0.1"
# Time limit for the start, which may read the catalogue in a process that imports torch.
ANSWERS_WITHIN_S = 180.0
MOST_OUTPUT = 2**20
# JavaScript expressions for the URL of Colab's proxy of a port, and for the origins of the pages around an
# output, which Firefox does not provide.
COLAB_ADDRESS = "google.colab.kernel.proxyPort({port})"
COLAB_FRAMES = (
    "[...new Set([location.origin, ...(location.ancestorOrigins ?? ['https://colab.research.google.com'])])]"
    ".join(' ')"
)


@dataclass(frozen=True, kw_only=True)
class ShownPage:
    """A page that runs until `stop`, or until the kernel ends; its runs continue."""

    address: str
    process: subprocess.Popen[bytes]
    # The password of the only account, for a public URL.
    password: str | None = None
    # Functions to call at the end of the page, which close the tunnel and delete the file of the account.
    belongings: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)

    def stop(self) -> None:
        """End the page and its tunnel, because another user's server could take over the port."""
        self.belongings.close()
        self.process.terminate()
        self.process.wait()

    def _repr_html_(self) -> str:
        shown = html.escape(self.address)
        link = f'<a href="{shown}" target="_blank" rel="noopener">{shown}</a>'
        if self.password is None:
            return f"<p>The page: {link}</p>"
        account = f"user <code>{USER}</code>, password <code>{html.escape(self.password)}</code>"
        return f"<p>Anyone with this URL and the password can use the page: {link}, {account}</p>"


def show_page(*, runs_dir: Path | str = RUNS_DIR, share: bool = False, height: int = 900) -> ShownPage:
    """Serve the page of a folder of runs and show it.

    In Colab the page appears in the output. Elsewhere the URL works in browsers on this machine; on a
    JupyterHub, use the tile in JupyterLab's launcher.

    Args:
        share: True to also serve the page at a public URL, through Gradio's tunnel. All traffic then passes a
            server of Gradio, and the page requires a generated password.
        height: height of the page in Colab's output, in pixels.

    Raises:
        RuntimeError: if the page or the tunnel does not start.
    """
    port = _free_port()
    if share:
        return _shared(port, Path(runs_dir))
    if not _is_colab():
        return _served(port, Path(runs_dir), f"http://{HOST}:{port}")
    from google.colab import output

    address = str(output.eval_js(COLAB_ADDRESS.format(port=port)))
    variables = {ORIGIN_VARIABLE: _origin(address), FRAMES_VARIABLE: str(output.eval_js(COLAB_FRAMES))}
    page = _served(port, Path(runs_dir), address, variables)
    output.serve_kernel_port_as_iframe(port, height=str(height))
    return page


def tile() -> dict[str, Any]:
    """Return the tile of JupyterLab's launcher, for an entry point of jupyter-server-proxy. Jupyter admits
    only its own user. The page recognises Jupyter's requests by a secret, so it needs neither a login nor the
    host name of Jupyter.
    """
    secret = secrets.token_urlsafe(32)

    def command(port: int, base_url: str) -> list[str]:
        prefix = f"{unquote(base_url).rstrip('/')}/{NAME}"
        arguments = [*_command(port), "--root-path", prefix]
        # Escape braces, because jupyter-server-proxy formats the command again.
        return [word.replace("{", "{{").replace("}", "}}") for word in arguments]

    return {
        "command": command,
        "environment": {SECRET_VARIABLE: secret},
        "request_headers_override": {SECRET_HEADER: secret},
        "timeout": ANSWERS_WITHIN_S,
        # Use the default category (Notebook): JupyterLab does not show the icon in the category Other.
        "launcher_entry": {"title": "Rankscope", "icon_path": str(ASSETS / "icons" / "favicon.svg")},
    }


def _shared(port: int, runs_dir: Path) -> ShownPage:
    """Serve the page at a public URL of Gradio, with one account."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    from gradio import networking

    from ddp_gui.auth.account_file import Account, AccountFile, hash_password

    password = secrets.token_urlsafe(16)
    with contextlib.ExitStack() as belongings:
        # The page reads this file while it runs; the folder is private.
        folder = tempfile.mkdtemp(prefix="rankscope-")
        belongings.callback(shutil.rmtree, folder, ignore_errors=True)
        file = AccountFile(Path(folder, "accounts.json"))
        with file.changing() as accounts:
            accounts[USER] = Account(name=USER, role="teacher", password=hash_password(password))
        belongings.callback(_end_tunnel, port)
        try:
            address = networking.setup_tunnel(HOST, port, secrets.token_urlsafe(32), None, None)
        except Exception as error:
            raise RuntimeError(f"Gradio's tunnel did not start: {explain(error)}") from error
        variables = {ORIGIN_VARIABLE: _origin(address)}
        page = _served(port, runs_dir, address, variables, "--auth-file", str(file.path), password=password)
        page = replace(page, belongings=belongings.pop_all())
    atexit.register(page.belongings.close)
    return page


def _end_tunnel(port: int) -> None:
    from gradio import tunneling

    for tunnel in tunneling.CURRENT_TUNNELS:
        if tunnel.local_port == port:
            tunnel.kill()  # type: ignore[no-untyped-call]


def _served(
    port: int,
    runs_dir: Path,
    address: str,
    variables: dict[str, str] | None = None,
    *options: str,
    password: str | None = None,
) -> ShownPage:
    """Start the page and wait until it responds."""
    command = [*_command(port), "--runs-dir", str(runs_dir.resolve()), *options]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            lifeline.bound(*command),
            cwd=REPOSITORY,
            env=environment.for_a_child(variables, keep=(environment.NOTIFY_URLS,)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # interrupting a cell must not end the page
        )
        ends_at = time.monotonic() + ANSWERS_WITHIN_S
        # Wait for the page's own output, because another user's server could have taken the port.
        while not (READY in _text_of(output) and _answers(port)):
            if process.poll() is not None or time.monotonic() > ends_at:
                process.kill()
                last = _text_of(output).strip().splitlines()[-1:]
                raise RuntimeError(f"the page did not start: {''.join(last) or 'no answer'}")
            time.sleep(0.1)
    return ShownPage(address=address, process=process, password=password)


def _text_of(output: IO[bytes]) -> str:
    """Return the output of a process without moving the file position, which the process shares."""
    return os.pread(output.fileno(), MOST_OUTPUT, 0).decode(errors="replace")


def _command(port: int) -> list[str]:
    return [sys.executable, str(REPOSITORY / "app.py"), "--no-browser", "--port", str(port)]


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=5):  # nosec B310
            return True
    except urllib.error.HTTPError:
        return True  # a login
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_colab() -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # the package google is not installed
        return importlib.util.find_spec("google.colab") is not None
    return False


def _origin(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"
