"""The page from a notebook: Colab's module, Gradio's tunnel and jupyter-server-proxy are stubs here."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gradio import networking, tunneling

from ddp_gui.auth.account_file import AccountFile, fits_password
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


def test_in_colab_the_page_is_shown_through_the_proxy_of_its_port(
    served: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    output = types.ModuleType("google.colab.output")
    asked = {"proxyPort": ADDRESS, "ancestorOrigins": FRAMES}
    output.eval_js = lambda text: next(answer for name, answer in asked.items() if name in text)  # type: ignore[attr-defined]
    output.serve_kernel_port_as_iframe = lambda *values, **named: calls.append((values, named))  # type: ignore[attr-defined]
    colab = types.ModuleType("google.colab")
    colab.output = output  # type: ignore[attr-defined]
    colab.__spec__ = types.SimpleNamespace(name="google.colab")  # type: ignore[assignment]
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
    assert len(password) >= 20 and fits_password(password, account.password)
    show_page(share=True)
    assert served[1][4] != password


def test_the_end_of_a_shared_page_ends_its_tunnel_and_its_account(
    served: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_server_of_another_user_on_the_port_is_not_taken_for_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
