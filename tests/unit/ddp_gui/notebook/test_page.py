"""The page from a notebook and the bundled notebooks; Colab's module, tunnel and proxy are stubs."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gradio import networking, tunneling

from ddp_gui import notebook
from ddp_gui.auth.account_file import AccountFile, verify_password
from ddp_gui.http.own_proxy import FRAMES_VARIABLE, ORIGIN_VARIABLE, SECRET_HEADER, SECRET_VARIABLE
from ddp_gui.notebook import page as page_module
from ddp_gui.notebook import show_page
from ddp_gui.notebook.page import ShownPage

ADDRESS = "https://abc-7860.colab.example/"
FRAMES = "https://out.example https://colab.example"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Return the pages that would have been started; each is another program that ends with the test."""
    found: list[tuple[Any, ...]] = []
    processes: list[subprocess.Popen[bytes]] = []

    def serve(
        port: int, runs_dir: Path, address: str, variables: Any = None, *options: str, password: Any = None
    ) -> Any:
        found.append((port, address, variables, options, password))
        process = subprocess.Popen(["sleep", "60"])
        processes.append(process)
        return ShownPage(address=address, process=process, password=password)

    monkeypatch.setattr(page_module, "_served", serve)
    yield found
    for process in processes:
        process.kill()
        process.wait()


def test_colab_shows_it_by_its_proxy(served: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    output = types.ModuleType("google.colab.output")
    asked = {"proxyPort": ADDRESS, "ancestorOrigins": FRAMES}
    output.eval_js = lambda text: next(answer for name, answer in asked.items() if name in text)
    output.serve_kernel_port_as_iframe = lambda *values, **named: calls.append((values, named))
    colab = types.ModuleType("google.colab")
    colab.output = output
    colab.__spec__ = types.SimpleNamespace(name="google.colab")
    modules = {"google": types.ModuleType("google"), "google.colab": colab, "google.colab.output": output}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    show_page(height=700)
    ((port, address, variables, options, password),) = served
    assert (address, options, password) == (ADDRESS, (), None)
    assert variables == {ORIGIN_VARIABLE: ADDRESS.rstrip("/"), FRAMES_VARIABLE: FRAMES}
    assert calls == [((port,), {"height": "700"})]


def test_the_tunnel_is_off_by_default_and_its_page_has_a_generated_login(
    served: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tunnels: list[Any] = []
    monkeypatch.setattr(networking, "setup_tunnel", lambda *values: tunnels.append(values) or ADDRESS)
    show_page()
    assert tunnels == [] and served.pop()[2] is None
    show_page(share=True)
    ((port, _, variables, options, password),) = served
    assert tunnels[0][:2] == ("127.0.0.1", port) and variables == {ORIGIN_VARIABLE: ADDRESS.rstrip("/")}
    name, file = options
    assert name == "--auth-file" and Path(file).stat().st_mode & 0o077 == 0
    (account,) = AccountFile(Path(file)).read().values()
    assert len(password) >= 20 and verify_password(password, account.password)
    show_page(share=True)
    assert served[1][4] != password


def test_the_tunnel_ends_with_it(served: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []

    def open_tunnel(_host: str, port: int, *_others: Any) -> str:
        tunnel = types.SimpleNamespace(local_port=port, kill=lambda: killed.append(port))
        monkeypatch.setattr(tunneling, "CURRENT_TUNNELS", [tunnel])
        return ADDRESS

    monkeypatch.setattr(networking, "setup_tunnel", open_tunnel)
    page = show_page(share=True)
    ((port, _, _, (_, file), _),) = served
    assert killed == [] and Path(file).is_file()
    page.stop()
    assert killed == [port] and not Path(file).parent.exists()

    def fail(*_values: Any, **_named: Any) -> Any:
        raise RuntimeError("the page did not start")

    monkeypatch.setattr(page_module, "_served", fail)
    with pytest.raises(RuntimeError):
        show_page(share=True)
    assert len(killed) == 2


def test_another_users_server_is_not_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "_answers", lambda _port: True)
    monkeypatch.setattr(
        page_module, "_command", lambda _port: [sys.executable, "-c", "exit('the port is taken')"]
    )
    with pytest.raises(RuntimeError, match="the page did not start: the port is taken"):
        show_page(runs_dir=tmp_path)


def test_the_tile_has_a_secret_of_each_server_and_the_prefix_of_its_user() -> None:
    one, two = page_module.tile(), page_module.tile()
    secret = one["environment"][SECRET_VARIABLE]
    assert one["request_headers_override"] == {SECRET_HEADER: secret}
    assert len(secret) >= 32 and secret != two["environment"][SECRET_VARIABLE]
    words = one["command"](port=8123, base_url="/user/jane%40x.org/")
    assert secret not in " ".join(words)  # every user of the machine can read command lines
    assert words[words.index("--root-path") + 1] == "/user/jane@x.org/rankscope"
    assert words[words.index("--port") + 1] == "8123"
    assert Path(one["launcher_entry"]["icon_path"]).is_file()


WHEEL = "https://example.org/rankscope-0.1.0-py3-none-any.whl"
NO_ADDRESS = 'WHEEL = ""'


@pytest.fixture
def code_cells(request: pytest.FixtureRequest, repository: Path) -> list[str]:
    """Return the code of a notebook's cells; the parameter is its name."""
    content = json.loads((repository / "notebooks" / f"{request.param}.ipynb").read_text(encoding="utf-8"))
    assert content["nbformat"] == 4 and len({cell["id"] for cell in content["cells"]}) == len(
        content["cells"]
    )
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("code_cells", ["kaggle", "colab"], indirect=True)
def test_the_first_cell_keeps_the_torch(code_cells: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    package = types.ModuleType("rankscope")
    package.add_to_path = lambda: None
    monkeypatch.setitem(sys.modules, "rankscope", package)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    first = code_cells[0]
    with pytest.raises(SystemExit, match=r"docs/notebooks\.md"):
        exec(first, {})
    assert first.count(NO_ADDRESS) == 1 and commands == []
    exec(first.replace(NO_ADDRESS, f'WHEEL = "{WHEEL}"'), {})
    (command,) = commands
    # An address, because the name could belong to another package in a public index.
    assert command[-1] == f"rankscope[notebook] @ {WHEEL}"
    constraint = Path(command[command.index("--constraint") + 1]).read_text()
    assert constraint == f"torch=={importlib.metadata.version('torch')}\n"


@pytest.mark.parametrize(
    ("code_cells", "called", "values"),
    [
        ("kaggle", "start", {"model": "cnn", "dataset": "fashion_mnist", "gpus": 2}),
        ("colab", "show_page", {}),
    ],
    indirect=["code_cells"],
)
def test_the_second_cell_shows_a_run_or_the_page(
    code_cells: list[str], called: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(notebook, called, lambda **named: calls.append(named))
    assert len(code_cells) == 2
    exec(code_cells[1], {})
    assert calls == [values]
