"""Requests of a hostile student: paths, links, numbers, and excessive sizes.

docs/security.md lists the attacks.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ddp_gui.gradio_routes.gate import UPLOAD
from ddp_gui.http import front
from tests.ui.attacks.attacking import NOT_SERVED, SECRET, ask
from tools.page_driver import Server
from trainers.contract import config, rundir
from trainers.contract.rundir import RunDirectory


@pytest.fixture(scope="module")
def run(server: Server, runs_dir: Path) -> RunDirectory:
    """Return a run that another user copied here; it contains links that lead out of it."""
    secret = runs_dir.parent / "secret.csv"
    secret.write_text(SECRET)
    run = rundir.create(runs_dir, config.parse({"dataset": "digits", "model": "mlp", "device": "cpu"}))
    (run.logs / "rank_0.log").symlink_to(secret)
    (run.logs / "torchrun.log").symlink_to("/etc/passwd")
    (run.logs / "supervisor.log").symlink_to(run.config)
    step = run.checkpoints / "step_3"
    step.mkdir()
    (step / "manifest.json").write_text('{"files": {"a": {"size_bytes": 3}}, "saved_unix_s": 1}')
    (step / "weights").symlink_to(secret)
    (step / "folder").symlink_to(runs_dir.parent)
    elsewhere = runs_dir.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "manifest.json").write_text('{"files": {"a": {"size_bytes": 3}}, "saved_unix_s": 1}')
    (elsewhere / "secret").write_text(SECRET)
    (run.checkpoints / "step_4").symlink_to(elsewhere)
    return run


# Paths

IDS = (
    "..",
    "..%2f..%2fetc",
    "%2e%2e%2f%2e%2e%2fetc",
    "%252e%252e%252fetc",
    "..%c0%af..%c0%afetc",
    "%00",
    "%2fetc%2fpasswd",
    "file:%2f%2f%2fetc%2fpasswd",
    ".bin",
    "a" * 5000,
    "%e2%80%ae",
    "%0d%0aSet-Cookie:%20a=b",
)
ROUTES = (
    *("summary", "configuration", "poll", "stream", "view?from=0&to=1"),
    *("export.csv", "log/0", "log/torchrun", "elsewhere", "elsewhere/slurm"),
)


@pytest.mark.parametrize("run_id", IDS)
def test_an_id_that_is_none_leads_nowhere(server: Server, run_id: str) -> None:
    for route in ROUTES:
        status, words = ask(server, "GET", f"/live/runs/{run_id}/{route}")
        assert status in NOT_SERVED and "root:" not in words
    for endpoint in ("run_status", "stop_run", "edit_run", "delete_runs", "restore_runs"):
        given = [run_id] if endpoint.endswith("s") and endpoint != "run_status" else run_id
        status, _ = ask(server, "POST", f"/gradio_api/run/{endpoint}", {"data": [given]})
        assert status in (400, 500)
    assert ask(server, "GET", f"/live/runs/export.zip?ids={run_id}")[0] in NOT_SERVED


@pytest.mark.parametrize(
    "source",
    ["..", "%2e%2e%2fconfig.json", "0%2f..", "0.log", "%00", "%ef%bc%91", "-1", "9" * 400, "TORCHRUN"],
)
def test_a_log_that_is_none_leads_nowhere(server: Server, run: RunDirectory, source: str) -> None:
    for route in ("", "/search?words=a"):
        status, words = ask(server, "GET", f"/live/runs/{run.run_id}/log/{source}{route}")
        assert status in NOT_SERVED, words


def test_links_in_a_copied_run_are_not_followed(server: Server, runs_dir: Path, run: RunDirectory) -> None:
    for source in ("0", "torchrun", "supervisor"):
        for route in ("", "/search?words=e"):
            status, words = ask(server, "GET", f"/live/runs/{run.run_id}/log/{source}{route}")
            assert SECRET not in words and "root:" not in words and "digits" not in words, (status, words)
    for step in (3, 4):
        assert SECRET not in ask(server, "GET", f"/live/runs/{run.run_id}/checkpoints/{step}/download")[1]
    linked, outside = runs_dir / "linked-1", runs_dir.parent / "outside.jsonl"
    linked.mkdir()
    (linked / "config.json").write_bytes(run.config.read_bytes())
    outside.write_text(
        json.dumps({"seq": 0, "time_unix_s": 1.0, "kind": "state", "state": "failed", "reason": SECRET})
    )
    for name in ("events.jsonl", "status.json", "notes.json", "commands.jsonl"):
        (linked / name).symlink_to(outside)
    (runs_dir / "whole-1").symlink_to(run.path)
    for path in ("linked-1", "whole-1"):
        for route in ("summary", "poll", "configuration", "export.json", "export.csv"):
            assert SECRET not in ask(server, "GET", f"/live/runs/{path}/{route}")[1], route
    assert SECRET not in ask(server, "GET", "/live/runs")[1]


# Numbers and nesting


@pytest.mark.parametrize(
    "value",
    ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 400, "[" * 900 + "]" * 900, "null"],
)
def test_numbers_that_are_none_are_refused_in_words(server: Server, value: str) -> None:
    raw = f'{{"data": [{{"learning_rate": {value}, "device": "cpu"}}, false]}}'
    status, words = ask(server, "POST", "/gradio_api/run/start_run", raw.encode())
    assert status == 400 or (status == 500 and "learning_rate is" in words and "allowed: " in words)
    assert "Traceback" not in words and "site-packages" not in words


CALL = "/gradio_api/run/list_runs"
NONSENSE: dict[str, tuple[str, str, Any, dict[str, str]]] = {
    "origin": ("GET", "/live/runs", None, {"Origin": "http://["}),
    "host's port": ("GET", "/config", None, {"Host": "127.0.0.1:99999"}),
    "host in brackets": ("GET", "/config", None, {"Host": "[127.0.0.1]"}),
    "referer": ("GET", "/live/runs", None, {"Referer": "http://[", "Cookie": 'a=b;;=;"\\', "Range": "x"}),
    "range": ("GET", "/live/assets/css/run/page.css", None, {"Range": "bytes=5-1,,9-"}),
    "range of thousands": ("GET", "/live/assets/css/run/page.css", None, {"Range": "bytes=" + "0-," * 9000}),
    "event": ("GET", "/live/runs/{id}/stream", None, {"Last-Event-ID": "9" * 5000}),
    "event in other digits": ("GET", "/live/runs/{id}/poll?since=٣", None, {}),
    "since": ("GET", f"/live/runs/{{id}}/poll?since={'9' * 400}", None, {}),
    "since too far": ("GET", f"/live/runs/{{id}}/poll?since={2**80}", None, {}),
    "list since": ("GET", f"/live/runs?since={'9' * 5000}", None, {}),
    "view": ("GET", "/live/runs/{id}/view?from=nan&to=inf", None, {}),
    "log": ("GET", f"/live/runs/{{id}}/log/0?offset={2**80}", None, {}),
    "checkpoint": ("GET", f"/live/runs/{{id}}/checkpoints/{'9' * 5000}/download", None, {}),
    "machines": ("GET", f"/live/runs/{{id}}/elsewhere?num_nodes={'9' * 5000}&gpus=maybe", None, {}),
    "target": ("GET", "/live/runs/{id}/elsewhere/%2e%2e%2fconfig.json", None, {}),
    "export": ("GET", "/live/runs/export.zip?ids=&kind=exe", None, {}),
    "accept": ("GET", "/", None, {"Accept-Encoding": "\x00gzip", "Accept-Language": ";q=,," * 999}),
    "length": ("POST", CALL, b"", {"Content-Length": "٣".encode().decode("latin-1")}),
    "function": ("POST", CALL, {"data": [], "fn_index": -1}, {}),
    "function by its name": ("POST", "/gradio_api/run/nothing", {"data": []}, {}),
    "call by its name": ("POST", "/gradio_api/call/nothing", {"data": []}, {}),
    "joining": ("POST", "/gradio_api/queue/join", {"data": [], "fn_index": -1, "session_hash": "x"}, {}),
    "session": ("POST", CALL, {"data": [], "session_hash": {"a": 1}}, {}),
    "trigger": ("POST", CALL, {"data": [], "trigger_id": [1], "event_data": {"a": []}}, {}),
    "cancel": ("POST", "/gradio_api/cancel", {"session_hash": "x", "fn_index": -1, "event_id": 5}, {}),
    "reset": ("POST", "/gradio_api/reset", {"event_id": None}, {}),
    "no object": ("POST", CALL, [1], {}),
    "type": ("POST", CALL, b"data=1", {"Content-Type": "multipart/form-data"}),
    "upload without a boundary": ("POST", UPLOAD, b"x", {"Content-Type": "multipart/form-data"}),
    "upload of another type": ("POST", UPLOAD, b"x", {"Content-Type": "application/json"}),
    "boundary": ("POST", UPLOAD, b"x", {"Content-Type": "multipart/form-data; boundary=" + "a" * 9000}),
    "charset": ("POST", UPLOAD, b"x", {"Content-Type": "multipart/form-data; boundary=a; charset=no"}),
}


@pytest.mark.parametrize("asked", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_in_order_and_every_answer_has_the_headers(
    server: Server, run: RunDirectory, asked: tuple[str, str, Any, dict[str, str]]
) -> None:
    method, path, body, headers = asked
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=180)
    with contextlib.closing(connection):
        sent = json.dumps(body).encode() if isinstance(body, dict | list) else body
        connection.putrequest(method, quote(path.replace("{id}", run.run_id), safe="/?=&"), skip_host=True)
        given = {"Host": connection.host + f":{connection.port}", "Content-Type": "application/json"}
        for name, value in (given | {"Content-Length": str(len(sent or b""))} | headers).items():
            connection.putheader(name, value)
        connection.endheaders(sent)
        answer = connection.getresponse()
        assert answer.status < 500, answer.read()
        for name, _ in (*front.HEADERS, (front.POLICY_HEADER, b"")):
            assert len(answer.headers.get_all(name.decode(), [])) == 1
        if answer.status >= 400:
            assert answer.headers["cache-control"] == "no-store"


def form(name: str, filename: str, words: bytes, boundary: str = "cut") -> bytes:
    """Return one part of a multipart form, as a browser sends it."""
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'
    return head.encode() + words + f"\r\n--{boundary}--\r\n".encode()


@pytest.mark.parametrize(
    "filename", ["../../evil.csv", "..", ".", "", "/etc/cron.d/x.csv", "a\\b.csv", "%2e%2e%2fx", ".bashrc"]
)
def test_an_upload_lands_in_its_own_place(server: Server, runs_dir: Path, filename: str) -> None:
    body = form("files", f'; filename="{filename}"', b"a,b")
    headers = {"Content_Type": "multipart/form-data; boundary=cut"}
    places = []
    for _ in range(2):
        status, words = ask(server, "POST", UPLOAD, body, **headers)
        assert status == 200, words
        (path,) = json.loads(words)
        assert Path(path).read_bytes() == b"a,b" and not Path(path).name.startswith(".")
        places.append(Path(path).parent)
    assert len(set(places)) == 2
    assert {place.parent for place in places} == {runs_dir.parent / "uploads/.incoming/everybody"}


def test_a_form_with_more_than_a_file_is_refused_and_leaves_nothing(server: Server, runs_dir: Path) -> None:
    incoming = runs_dir.parent / "uploads/.incoming"
    before = set(incoming.rglob("*"))
    two = form("files", '; filename="a.csv"', b"1")[: -len("--cut--\r\n")]
    for body in (form("files", "", b"x" * 99_999), two + two + b"--cut--\r\n", two[:60], b""):
        headers = {"Content_Type": "multipart/form-data; boundary=cut"}
        assert ask(server, "POST", UPLOAD, body, **headers)[0] == 400
    assert set(incoming.rglob("*")) == before


def test_nothing_changes_by_a_get_and_no_path_is_told(
    server: Server,
) -> None:
    for name in ("X_Forwarded_Host", "X_Gradio_Server"):
        assert "evil.example" not in ask(server, "GET", "/", **{name: "http://evil.example"})[1]
    for name in ("start_run", "stop_run", "delete_runs", "edit_run", "empty_bin", "checkpoint_run"):
        for path in (f"/gradio_api/run/{name}", f"/gradio_api/call/{name}", f"/gradio_api/api/{name}"):
            assert ask(server, "GET", f"{path}?data=[]")[0] in NOT_SERVED
    for path in ("/config", "/gradio_api/info", "/"):
        words = ask(server, "GET", path)[1]
        assert "site-packages" not in words
        assert str(Path.home()) + "/." not in words
