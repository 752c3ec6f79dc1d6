"""Every route and endpoint of the app has an access rule and enforces it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts
from fastapi.testclient import TestClient
from starlette.routing import Mount

from ddp_gui.auth import rights
from ddp_gui.auth.login import Login
from ddp_gui.auth.rights import Person
from ddp_gui.http import shell
from ddp_gui.options import Options
from ddp_gui.plan.catalogue import CatalogueSource, default_cache_file
from ddp_gui.server import add_access_checks, build_app
from tests.unit import class_of
from tests.unit.class_of import ANN, BOB, EVE, password_of
from tests.unit.ddp_gui.runs.test_runs import make_run
from trainers.contract.rundir import RunDirectory

NO_RULE = (
    "Something new can be asked of the page. Say in this file who may: add it to ENDPOINTS or ROUTES, and "
    "where it is about a run open that with RunStore.open, to change it with to_change."
)
ABSENT = "not-there-1"

# Access rule of each endpoint, and its arguments for a run. "see": users who may view the run; "change": its
# owner and teachers; "bin": the same for a run in the bin; "teacher"; "anybody": any logged-in user.
ENDPOINTS: dict[str, tuple[str, Any]] = {
    "catalog": ("anybody", None),
    "start_run": ("anybody", None),
    "as_code": ("anybody", None),
    "start_lesson_run": ("anybody", None),
    # As start_script.
    "start_code_lesson": ("anybody", None),
    "keep_progress": ("anybody", None),
    "open_poll": ("teacher", ["global-batch"]),
    "answer_poll": ("anybody", None),
    "change_poll": ("teacher", ["a2b3c4d5", "close"]),
    "list_runs": ("anybody", None),
    "import_run": ("anybody", None),
    "list_bin": ("anybody", None),
    "check_communication": ("anybody", None),
    "communication_check": ("anybody", None),
    "stop_communication_check": ("anybody", None),
    "measure_links": ("teacher", []),
    "check_machine": ("teacher", []),
    "machine_check": ("anybody", None),
    "install_data_set": ("teacher", ["names"]),
    "data_set_install": ("anybody", None),
    "cancel_machine_check": ("teacher", ["0" * 12]),
    "queue": ("anybody", None),
    "move_in_queue": ("teacher", [ABSENT, 1]),
    "pause_queue": ("teacher", []),
    "resume_queue": ("teacher", []),
    "stop_all": ("teacher", []),
    "set_limits": ("teacher", [{"num_ranks": 1}, None]),
    "use_occupied_gpus": ("change", lambda run_id: [run_id]),
    "class_settings": ("teacher", [{"everyone_sees": True}]),
    "script_page": ("anybody", None),
    "read_script": ("anybody", None),
    # Users whom a teacher allows to run scripts: tests/unit/ddp_gui/script/test_rules.py.
    "open_script": ("anybody", None),
    "check_python": ("anybody", None),
    "start_script": ("anybody", None),
    "script_code": ("see", lambda run_id: [run_id]),
    "run_status": ("see", lambda run_id: [run_id]),
    "predict": ("see", lambda run_id: [run_id, {"pixels": []}, None, 0]),
    "generate": ("see", lambda run_id: [run_id, "", None, 0.8, None, 10, 0]),
    "take_home": ("see", lambda run_id: [run_id, None]),
    "taken_home": ("anybody", None),
    "stop_run": ("change", lambda run_id: [run_id, True]),
    "checkpoint_run": ("change", lambda run_id: [run_id]),
    "record_steps": ("change", lambda run_id: [run_id, 3]),
    "slow_rank": ("change", lambda run_id: [run_id, 0, 0]),
    "kill_rank": ("change", lambda run_id: [run_id, 0]),
    "pause_run": ("change", lambda run_id: [run_id]),
    "set_learning_rate": ("change", lambda run_id: [run_id, 0.1]),
    "resume_run": ("change", lambda run_id: [run_id, None, None, "keep"]),
    "train_more": ("change", lambda run_id: [run_id, 1, None, None, "keep"]),
    "edit_run": ("change", lambda run_id: [run_id, None, None, None]),
    "delete_runs": ("change", lambda run_id: [[run_id]]),
    "restore_runs": ("bin", lambda run_id: [[run_id]]),
    "empty_bin": ("bin", lambda run_id: [[run_id]]),
}
# Access rule of each of our routes: "open" without login, "anybody" who is logged in, "see" as above; for
# "see" also the query.
ROUTES: dict[str, tuple[str, str]] = {
    "/login": ("open", ""),
    "/logout": ("anybody", ""),
    "/runs": ("anybody", ""),
    "/run": ("anybody", ""),
    "/machine": ("anybody", ""),
    "/script": ("anybody", ""),
    "/learn": ("anybody", ""),
    "/live/learn": ("anybody", ""),
    "/live/learn/lesson": ("anybody", "?name=global-batch"),
    "/live/learn/outcome": ("anybody", "?name=global-batch"),
    "/live/learn/code": ("anybody", ""),
    "/live/learn/code/lesson": ("anybody", "?name=two-ranks"),
    "/live/learn/code/solution": ("anybody", "?name=two-ranks"),
    # It opens the run with RunStore.open, and 404 is also the answer for a run of no lesson.
    "/live/learn/code/result": ("anybody", "?name=two-ranks&run=not-there-1"),
    "/live/learn/progress": ("anybody", ""),
    "/live/learn/class.csv": ("anybody", ""),  # only teachers: test_polls.py
    "/poll": ("anybody", ""),
    "/live/polls": ("anybody", ""),
    "/live/polls/{poll_id}": ("anybody", ""),
    "/live/polls/{poll_id}/stream": ("anybody", ""),
    "/live/polls/{poll_id}/people": ("anybody", ""),  # only teachers: test_polls.py
    "/live/polls/{poll}/answer": ("anybody", ""),
    "/live/polls/{poll_id}/qr": ("anybody", ""),
    "/live/learn/report": ("see", "?runs=RUN"),
    "/queue": ("anybody", ""),
    "/live/queue": ("anybody", ""),
    "/live/queue/brief": ("anybody", ""),
    "/live/queue/expected": ("anybody", "?kind=cpu&num_ranks=1"),
    "/live/queue/run": ("see", "?id=RUN"),
    "/live/me": ("anybody", ""),
    "/live/plotly.min.js": ("anybody", ""),
    "/live/codemirror.min.js": ("anybody", ""),
    f"/{shell.TYPEFACE}": ("open", ""),
    "/live/glossary": ("anybody", ""),
    "/live/machine": ("anybody", ""),
    "/live/machine/check/{check_id}/report.txt": ("anybody", ""),
    "/live/runs": ("anybody", ""),
    "/live/runs/compare": ("anybody", "?ids=RUN"),
    "/live/runs/export.zip": ("see", "?ids=RUN"),
    "/live/runs/{run_id}/export.{kind}": ("see", ""),
    "/live/runs/{run_id}/run.zip": ("see", ""),
    "/live/runs/{run_id}/summary": ("see", ""),
    "/live/runs/{run_id}/forwarding": ("see", ""),
    "/live/runs/{run_id}/configuration": ("see", ""),
    "/live/runs/{run_id}/poll": ("see", ""),
    "/live/runs/{run_id}/view": ("see", "?from=0&to=9"),
    "/live/runs/{run_id}/stream": ("see", ""),
    "/live/runs/{run_id}/log/{source}": ("see", ""),
    "/live/runs/{run_id}/log/{source}/search": ("see", "?words=a"),
    "/live/runs/{run_id}/checkpoints/{step}/download": ("see", ""),
    "/live/runs/{run_id}/samples": ("see", ""),
    "/live/runs/{run_id}/samples/{sample}": ("see", ""),
    "/live/runs/{run_id}/references": ("see", ""),
    "/live/runs/{run_id}/recordings": ("see", ""),
    "/live/runs/{run_id}/recordings/{step}": ("see", ""),
    "/live/runs/{run_id}/recordings/{step}/trace.json": ("see", ""),
    "/live/runs/{run_id}/model": ("see", ""),
    "/live/runs/{run_id}/model/confused": ("see", "?label=0&prediction=1"),
    "/live/runs/{run_id}/model/ready": ("see by post", ""),
    "/live/runs/{run_id}/model/predict": ("see by post", ""),
    "/live/runs/{run_id}/model/generate": ("see by post", ""),
    "/live/runs/{run_id}/take_home/{take_home_id}": ("see", ""),
    "/live/runs/{run_id}/take_home/{take_home_id}/try.html": ("see", ""),
    "/live/runs/{run_id}/code": ("see", ""),
    "/live/runs/{run_id}/code/{name}": ("see", ""),
    "/live/runs/{run_id}/elsewhere": ("see", ""),
    "/live/runs/{run_id}/elsewhere/{target}": ("see", ""),
}
PLACES = {"name": "train.py", "sample": "0", "kind": "csv", "source": "0", "step": "7", "target": "slurm"}
# Mounts with only static files, and Gradio.
MOUNTED = {"/live/assets/css", "/live/assets/js", "/live/assets/icons", ""}


@dataclass
class Page:
    """The complete app, and one browser per user."""

    app: FastAPI
    browsers: dict[str, TestClient]
    runs_dir: Path
    anns: RunDirectory

    def see_all(self, is_on: bool) -> None:
        """Set the class setting as the teacher."""
        assert self.ask(EVE, "class_settings", [{"everyone_sees": is_on}])["everyone_sees"] is is_on

    def ask(self, person: Person, endpoint: str, values: list[Any]) -> Any:
        """Call an endpoint; return its result or the text of its error."""
        answer = self.browsers[person.name].post(f"/gradio_api/run/{endpoint}", json={"data": values})
        found = answer.json()
        return found["data"][0] if answer.is_success else found["error"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("rights")
    runs_dir = folder / "runs"
    anns = make_run(runs_dir)
    rights.note_owner(anns, "ann")
    options = Options(host="127.0.0.1", port=7860, runs_dir=runs_dir, open_browser=False)
    login = Login(class_of.make(folder / "accounts.json"), "session")
    app = build_app(options, CatalogueSource(default_cache_file()), login)
    behind = add_access_checks(app, options, login)
    browsers = {"": TestClient(behind, base_url="http://localhost", follow_redirects=False)}
    for person in (ANN, BOB, EVE):
        browser = TestClient(behind, base_url="http://localhost", follow_redirects=False)
        form = {"username": person.name, "password": password_of(person)}
        assert browser.post("/login", data=form).json() == {"success": True}
        browsers[person.name] = browser
    with browsers[""]:
        yield Page(app, browsers, runs_dir, anns)


def routes_of(app: FastAPI) -> list[tuple[str, set[str]]]:
    """Return the path and methods of every route, including those of included routers."""
    contexts = iter_route_contexts(app.routes)
    return [(str(route.path), set(route.methods or ())) for route in contexts if not is_mount(route)]


def is_mount(route: RouteContext) -> bool:
    return isinstance(route.original_route, Mount)


def gradio_of(app: FastAPI) -> FastAPI:
    mounted = next(route for route in app.routes if isinstance(route, Mount) and route.path == "")
    gradio = mounted.app._gradio  # behind the access check
    assert isinstance(gradio, FastAPI)
    return gradio


def test_there_is_a_rule_for_everything(page: Page) -> None:
    assert {path for path, _ in routes_of(page.app)} == ROUTES.keys(), NO_RULE
    assert {route.path for route in page.app.routes if isinstance(route, Mount)} == MOUNTED, NO_RULE
    info = page.browsers["eve"].get("/gradio_api/info").json()["named_endpoints"]
    assert {name.removeprefix("/") for name in info} == ENDPOINTS.keys(), NO_RULE


def test_without_a_session_nothing_answers(page: Page) -> None:
    stranger = page.browsers[""]
    routes = routes_of(page.app) + routes_of(gradio_of(page.app))
    assert len(routes) > 60, "Gradio's are among them"
    for template, methods in routes:
        if ROUTES.get(template, ("",))[0] == "open":
            continue
        path = re.sub(r"\{[^}]*\}", "x", template)
        for method in methods:
            for accept in ("*/*", "text/html"):
                answer = stranger.request(method, path, headers={"accept": accept})
                assert answer.status_code in (303, 401), (method, path)
                if answer.status_code == 303:
                    assert answer.headers["location"].startswith("/login"), (method, path)
    for path in ("/live/assets/js/main.js", "/live/assets/css/runs/page.css", "/gradio_api/file=/etc/passwd"):
        assert stranger.get(path).status_code == 401


def test_without_a_name_from_the_proxy_nothing_answers(page: Page) -> None:
    options = Options(
        host="127.0.0.1",
        port=7860,
        runs_dir=page.runs_dir,
        open_browser=False,
        auth_header="X-Remote-User",
        teachers=frozenset({"eve"}),
    )
    asking = TestClient(
        add_access_checks(page.app, options, None), base_url="http://localhost", follow_redirects=False
    )
    for template, methods in routes_of(page.app) + routes_of(gradio_of(page.app)):
        path = re.sub(r"\{[^}]*\}", "x", template)
        for method in methods:
            assert asking.request(method, path).status_code == 401, (method, path)
            forged = {"x-remote-user": "a,b"}
            assert asking.request(method, path, headers=forged).status_code == 400, (method, path)
    for name, role in (("ann", "student"), ("eve", "teacher")):
        about = asking.get("/live/me", headers={"x-remote-user": name}).json()
        assert (about["name"], about["role"]) == (name, role)


@pytest.mark.parametrize("path", [path for path, (rule, _) in ROUTES.items() if rule.startswith("see")])
def test_a_route_about_a_run_hides_what_is_not_shown(page: Page, path: str) -> None:
    rule, query = ROUTES[path]

    def get(person: Person, run_id: str) -> Any:
        whole = path + query.replace("RUN", run_id)
        for name, value in (PLACES | {"run_id": run_id}).items():
            whole = whole.replace("{" + name + "}", value)
        browser = page.browsers[person.name]
        return browser.get(whole) if rule == "see" else browser.post(whole, json={})

    page.see_all(True)
    # The run has not started: it has no checkpoint, no recording, and no sample.
    expected = 404 if any(part in path for part in ("{step}", "/samples", "/model", "/take_home")) else 200
    assert get(BOB, page.anns.run_id).status_code == expected
    page.see_all(False)
    for person in (ANN, EVE):
        assert get(person, page.anns.run_id).status_code == expected
    hidden, absent = get(BOB, page.anns.run_id), get(BOB, ABSENT)
    assert hidden.status_code == absent.status_code == 404
    assert hidden.text == absent.text.replace(ABSENT, page.anns.run_id)


@pytest.mark.parametrize("name", [name for name, (rule, _) in ENDPOINTS.items() if rule in ("see", "change")])
def test_an_endpoint_about_a_run_keeps_to_its_rule(page: Page, name: str) -> None:
    rule, values = ENDPOINTS[name]
    page.see_all(True)
    answer = page.ask(BOB, name, values(page.anns.run_id))
    if name in ("predict", "generate", "take_home"):
        assert f"run {page.anns.run_id} has no checkpoint" in answer
    elif rule == "see":
        assert answer["run_id"] == page.anns.run_id
    else:
        assert "belongs to ann: only ann or a teacher can change it" in answer
    page.see_all(False)
    hidden, absent = page.ask(BOB, name, values(page.anns.run_id)), page.ask(BOB, name, values(ABSENT))
    assert "there is no run of this id" in hidden
    assert hidden == absent.replace(ABSENT, page.anns.run_id)
    for person in (ANN, EVE):
        assert "no run of this id" not in str(answer := page.ask(person, name, values(page.anns.run_id)))
        assert "belongs to" not in str(answer)
        if name == "delete_runs":
            page.ask(person, "restore_runs", [[page.anns.run_id]])


def test_the_bin_keeps_to_the_same_rules(page: Page) -> None:
    page.see_all(True)
    page.ask(ANN, "delete_runs", [[page.anns.run_id]])
    names = [name for name, (rule, _) in ENDPOINTS.items() if rule == "bin"]
    for name in names:
        assert "belongs to ann" in page.ask(BOB, name, ENDPOINTS[name][1](page.anns.run_id))
    page.see_all(False)
    for name in names:
        assert "a run in the bin" in page.ask(BOB, name, ENDPOINTS[name][1](page.anns.run_id))
    assert page.ask(BOB, "list_bin", []) == []
    assert page.ask(BOB, "empty_bin", [None])["num_runs"] == 0
    assert page.ask(ANN, "restore_runs", [[page.anns.run_id]])["restored"]


def test_lists_leave_out_what_is_not_shown(page: Page) -> None:
    page.see_all(False)
    run_id = page.anns.run_id
    for person, is_shown in ((ANN, True), (BOB, False), (EVE, True)):
        browser = page.browsers[person.name]
        assert (run_id in str(page.ask(person, "list_runs", []))) is is_shown
        for path in ("/live/runs", "/live/runs?since=-1", "/live/machine"):
            answer = browser.get(path)
            assert answer.status_code == 200
            if "runs" in path:
                assert (run_id in answer.text) is is_shown
        compared = browser.get(f"/live/runs/compare?ids={run_id}").json()
        assert (compared["missing"] == []) is is_shown


def test_only_a_teacher_changes_the_class(page: Page) -> None:
    for name in (name for name, (rule, _) in ENDPOINTS.items() if rule == "teacher"):
        for person in (ANN, BOB):
            assert "only a teacher" in page.ask(person, name, ENDPOINTS[name][1])


def test_a_form_from_another_site_logs_nobody_in(page: Page) -> None:
    form = {"username": "bob", "password": password_of(BOB)}
    for origin in ("http://evil.example", "null"):
        refused = page.browsers[""].post("/login", data=form, headers={"origin": origin})
        assert refused.status_code == 403 and not refused.cookies
    for origin in ("http://evil.example", "null"):
        assert page.browsers["ann"].post("/logout", headers={"origin": origin}).status_code == 403
    assert page.browsers["ann"].get("/live/me").json()["name"] == "ann"


def test_the_wished_page_is_always_one_of_ours(page: Page) -> None:
    stranger = TestClient(page.browsers[""].app, base_url="http://localhost", follow_redirects=False)
    form = {"username": "bob", "password": password_of(BOB)}
    html = {"accept": "text/html"}
    for wished in (
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "\\\\evil",
        "a\r\nSet-Cookie: b=c",
        "run/../../evil",
        "%2E./evil",
    ):
        answer = stranger.post("/login", data=form | {"next": wished}, headers=html)
        location = answer.headers["location"]
        assert answer.status_code == 303
        assert re.fullmatch(r"/([^/\\\s][^\\\s]*)?", location) and ".." not in unquote(location), location
    answer = stranger.post("/login", data=form | {"next": "run?id=a&x=1"}, headers=html)
    assert answer.headers["location"] == "/run?id=a&x=1"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Secure" not in cookie
    secure = TestClient(stranger.app, base_url="https://localhost").post("/login", data=form)
    assert "Secure" in secure.headers["set-cookie"]


def test_a_log_in_makes_a_new_token_and_ends_the_old_one(page: Page) -> None:
    def with_cookie(token: str) -> TestClient:
        app = page.browsers[""].app
        return TestClient(app, base_url="http://localhost", headers={"cookie": f"session={token}"})

    form = {"username": "bob", "password": password_of(BOB)}
    answer = with_cookie("chosen-by-somebody-else").post("/login", data=form)
    first = answer.cookies["session"]
    assert first != "chosen-by-somebody-else"
    assert with_cookie("chosen-by-somebody-else").get("/live/me").status_code == 401
    assert with_cookie(first).get("/live/me").json()["name"] == "bob"
    assert with_cookie(first).post("/login", data=form).cookies["session"] != first
    assert with_cookie(first).get("/live/me").status_code == 401
