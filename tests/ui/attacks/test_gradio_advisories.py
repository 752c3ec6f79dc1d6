"""Gradio's past security advisories, by name, tested against our server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.attacks.attacking import NOT_SERVED, SECRET, ask
from tools import page_driver
from tools.page_driver import Server

FILE = "/gradio_api/file="
GET_ADVISORIES = {
    "CVE-2021-43831 any file by its path": "/file/etc/passwd",
    "CVE-2023-34239 read any file": f"{FILE}/etc/passwd",
    "CVE-2023-34239 proxy any address": "/gradio_api/proxy=http://127.0.0.1:1/",
    "CVE-2023-51449 file with traversal": f"{FILE}a/../../../../../../etc/passwd",
    "CVE-2024-1183 file of an address": f"{FILE}http://127.0.0.1:1/",
    "CVE-2024-2206 proxy": "/gradio_api/proxy=https://evil.hf.space/",
    "CVE-2024-4940 redirect by file": f"{FILE}http://evil.example",
    "CVE-2024-8021 redirect by file": f"{FILE}https:/evil.example/",
    "CVE-2024-12217 alternate data stream": f"{FILE}app.py::$DATA",
    "CVE-2024-47164 path check": f"{FILE}/tmp/../etc/passwd",
    "CVE-2024-47166 custom component": "/gradio_api/custom_component/x/client/../../__init__.py",
    "CVE-2024-47168 monitoring": "/monitoring",
    "CVE-2024-47168 monitoring summary": "/monitoring/summary",
    "CVE-2024-47872 uploaded page": f"{FILE}/tmp/gradio/x.html",
    "CVE-2025-23042 capitals": f"{FILE}/ETC/PASSWD",
    "CVE-2026-27167 login of somebody else": "/login/huggingface",
    "CVE-2026-28414 path from the root": "/static//etc/passwd",
    "CVE-2026-28415 redirect after login": "/logout?_target_url=http://evil.example",
    "CVE-2026-28416 proxy of a loaded space": "/gradio_api/proxy=http://169.254.169.254/latest/",
    "CVE-2026-48545 cookies through the proxy": "/gradio_api/proxy=https://a.hf.space/x",
    "CVE-2026-59806 file fetches an address": f"{FILE}https://169.254.169.254/latest/meta-data/",
    "editor in the page": "/gradio_api/vibe-code",
    "history of calls": "/gradio_api/runs",
    "state of somebody else's page": "/gradio_api/deep_link?session_hash=x",
    "profiling": "/gradio_api/profiling/traces",
    "development reload": "/gradio_api/dev/reload",
    "OpenAPI of everything": "/gradio_api/openapi.json",
    "FastAPI's own": "/openapi.json",
    "FastAPI's pages": "/docs",
    "node": "/svelte/x.js",
    "icon drawn in any size": "/pwa_icon/100000",
    "MCP": "/gradio_api/mcp/sse",
    "stream of somebody else": "/gradio_api/stream/x/1/2/playlist.m3u8",
}
FUNCTION = "/gradio_api/component_server"
POST_ADVISORIES: dict[str, tuple[str, dict[str, Any]]] = {
    "CVE-2023-41626 upload of a page": ("/upload", {}),
    "CVE-2024-1561 component's function": (
        FUNCTION,
        {"component_id": 1, "data": "/etc/passwd", "fn_name": "move_resource_to_block_cache"},
    ),
    "CVE-2024-34511 component's function": (
        FUNCTION,
        {"component_id": 1, "data": None, "fn_name": "as_example", "session_hash": "x"},
    ),
    "CVE-2026-49119 file explorer": (
        f"{FUNCTION}/",
        {"component_id": 1, "data": ["../.."], "fn_name": "ls", "session_hash": "x"},
    ),
    "editor in the page": ("/gradio_api/vibe-edit", {"prompt": "x"}),
    "recording": ("/gradio_api/process_recording", {}),
    "login of Gradio": ("/gradio_api/login", {}),
}


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("advisories") / "runs"


@pytest.fixture(scope="module")
def server(runs_dir: Path) -> Iterator[Server]:
    """Serve a separate page: calling every function by its number also pauses the queue."""
    with page_driver.serve(runs_dir, page_driver.NO_STANDBY) as served:
        yield served


@pytest.mark.parametrize("path", GET_ADVISORIES.values(), ids=GET_ADVISORIES)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_gradio_s_unneeded_routes_are_closed(server: Server, path: str, method: str) -> None:
    status, words = ask(server, method, path)
    assert status in NOT_SERVED, words
    assert "root:x" not in words
    assert "location" not in words


@pytest.mark.parametrize(("path", "body"), POST_ADVISORIES.values(), ids=POST_ADVISORIES)
def test_gradio_s_unneeded_actions_are_closed(server: Server, path: str, body: dict[str, Any]) -> None:
    status, words = ask(server, "POST", path, body)
    assert status in NOT_SERVED
    assert "root:x" not in words


@pytest.fixture
def neighbour() -> Iterator[socket.socket]:
    """Return the socket of a local server that the page must not connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def functions(server: Server) -> dict[int, dict[str, Any]]:
    """Return all functions of Gradio's page by number, including private ones."""
    found = json.loads(ask(server, "GET", "/config")[1])["dependencies"]
    return {function["id"]: function for function in found}


def test_a_file_that_was_not_uploaded(server: Server, runs_dir: Path, neighbour: socket.socket) -> None:
    """CVE-2024-0964, 1728, 4325, 4941, 47167, 48052, 51751, CVE-2025-48889: a file that was not uploaded."""
    secret = runs_dir.parent / "not-uploaded.csv"
    secret.write_text(SECRET)
    upload = next(
        number
        for number, function in functions(server).items()
        if any(event == "upload" for _, event in function["targets"])
    )
    meta = {"meta": {"_type": "gradio.FileData"}}
    elsewhere = f"http://127.0.0.1:{neighbour.getsockname()[1]}/x.csv"
    for given in (
        str(secret),
        {"path": str(secret), **meta},
        {"path": str(secret), "orig_name": "a.csv", "is_stream": False, **meta},
        {"path": str(secret), "url": elsewhere, **meta},
        {"path": elsewhere, **meta},
        {"path": "../not-uploaded.csv", **meta},
        {"path": f"/proc/self/root{secret}", **meta},
        [{"path": str(secret), **meta}],
        {"nested": {"path": str(secret), **meta}},
    ):
        body = {"data": [given], "fn_index": upload, "session_hash": "attacker"}
        status, words = ask(server, "POST", "/gradio_api/run/predict", body)
        assert status in NOT_SERVED | {500}, words
        assert SECRET not in words and "Traceback" not in words
    assert secret.read_text() == SECRET
    with pytest.raises(BlockingIOError):
        neighbour.accept()
    kept = [path for path in (runs_dir.parent / "uploads").rglob("*") if path.is_file()]
    assert not any(SECRET in path.read_text(encoding="utf-8", errors="replace") for path in kept)


def test_functions_by_number_and_by_name_say_no_more_than_they_should(server: Server) -> None:
    for number in (*functions(server), 10**6, -1):
        for data in ([], [None] * 60, [{"path": "/etc/passwd"}] * 60):
            body = {"data": data, "fn_index": number, "session_hash": "x", "trigger_id": 1}
            _, words = ask(server, "POST", "/gradio_api/run/predict", body)
            # The catalogue may contain the searched data folders, because the page explains how to get data
            # sets.
            assert "Traceback" not in words and "root:x" not in words
