"""Access rights of polls over HTTP, with and without logins."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ddp_gui import options
from ddp_gui.auth.login import Login
from ddp_gui.auth.rights import Person
from ddp_gui.http import listening, shell
from ddp_gui.learn import polls
from ddp_gui.options import Options
from ddp_gui.plan.catalogue import CatalogueSource, default_cache_file
from ddp_gui.server import add_access_checks, build_app, make_phone_app
from tests.harness import ANSWER_TIMEOUT_S, wait_until
from tests.integration.test_login_rights import gradio_of, routes_of
from tests.unit import class_of
from tests.unit.class_of import ANN, BOB, EVE, password_of
from tests.unit.ddp_gui.learn.lessons import LESSON

PREDICTED = {"prediction": 0, "isLocked": True}


class Browser:
    """The browser of one user."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def ask(self, endpoint: str, *values: Any) -> Any:
        """Call an endpoint; return its result or the text of its error."""
        answer = self.client.post(f"/gradio_api/run/{endpoint}", json={"data": values})
        return answer.json()["data"][0] if answer.is_success else answer.json()["error"]

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        return answer.json() if answer.is_success else answer.status_code


def options_of(folder: Path, **given: Any) -> Options:
    """Return the options of a page with a single lesson."""
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "lessons").mkdir(exist_ok=True)
    (folder / "lessons" / "batch.md").write_text(LESSON)
    known = {"host": "127.0.0.1", "port": 7860, "runs_dir": folder / "runs", "open_browser": False}
    return Options(**(known | {"lessons": folder / "lessons", "keeps_standby": False} | given))


@contextmanager
def served(folder: Path, people: tuple[Person, ...] = (), **given: Any) -> Iterator[list[Browser]]:
    """Serve the complete app over a runs directory; yield one browser per user, or two without users."""
    made = options_of(folder, auth_file=folder / "accounts.json" if people else None, **given)
    login = Login(class_of.make(folder / "accounts.json"), "session") if people else None
    app = add_access_checks(build_app(made, CatalogueSource(default_cache_file()), login), made, login)
    browsers = []
    with TestClient(app, base_url="http://localhost") as serving:
        for person in people or (None, None):
            client = TestClient(app, base_url="http://localhost")
            client.portal = serving.portal  # one event loop for all, as in the server
            if person is not None:
                form = {"username": person.name, "password": password_of(person)}
                assert client.post("/login", data=form).json() == {"success": True}
            browsers.append(Browser(client))
        yield browsers


def test_answers_by_person_are_the_teachers_alone(tmp_path: Path) -> None:
    with served(tmp_path, (EVE, ANN, BOB)) as (eve, ann, bob):
        assert "only a teacher" in ann.ask("open_poll", "batch")
        assert "there is no lesson 'nonsense'" in eve.ask("open_poll", "nonsense")
        poll_id = eve.ask("open_poll", "batch")["poll_id"]
        path = f"/live/polls/{poll_id}"
        assert ann.ask("answer_poll", poll_id, 0, "")["num_answers"] == 1
        # Tokens are only for anonymous answers: they do not give a logged-in user a second vote.
        assert "cannot be changed" in ann.ask("answer_poll", poll_id, 1, secrets.token_hex(16))
        assert bob.get(f"{path}/people") == 403
        assert [each["person"] for each in eve.get(f"{path}/people")["people"]] == ["ann"]
        # The response also hides her answer and the current results.
        told = bob.get(path)
        assert (told["num_answers"], told["results"], told["mine"]) == (1, None, None)
        assert "ann" not in str(told) and not {"right", "because"} & told["question"].keys()
        assert eve.get(path)["results"] is None, "a teacher has a switch for it"
        assert eve.get(f"{path}?early=true")["results"] == {"counts": [1, 0]}
        assert bob.get(f"{path}?early=true")["results"] is None
        assert ann.get(path)["mine"] == 0
        assert bob.get("/live/polls")["may_open"] is False
        for action in ("close", "start", "reopen", "end"):
            assert "only a teacher" in bob.ask("change_poll", poll_id, action)
        assert eve.ask("change_poll", poll_id, "close")["state"] == "closed"
        assert "accepts no more" in bob.ask("answer_poll", poll_id, 1, "")
        assert bob.get(path)["results"] == {"counts": [1, 0]}, "once it is closed, by nobody in particular"
        assert eve.ask("change_poll", poll_id, "end")["state"] == "closed"
        assert bob.get(path) == 404 and eve.get("/live/polls")["polls"] == []


def test_progress_is_each_persons_own_and_the_table_the_teachers(tmp_path: Path) -> None:
    with served(tmp_path, (EVE, ANN, BOB)) as (eve, ann, bob):
        assert ann.ask("keep_progress", "batch", PREDICTED)["isLocked"]
        assert bob.get("/live/learn/progress") == {"progress": {}}
        assert ann.get("/live/learn/progress")["progress"]["batch"]["prediction"] == 0
        assert "there is no lesson '../ann'" in bob.ask("keep_progress", "../ann", PREDICTED)
        assert "progress: runs[0] is '../x'" in bob.ask("keep_progress", "batch", {"runs": ["../x"]})
        assert bob.client.get("/live/learn/class.csv").status_code == 403
        table = eve.client.get("/live/learn/class.csv")
        assert table.headers["content-type"] == "text/csv; charset=utf-8"
        assert '"ann","batch","the first","no",' in table.text


def test_without_logins_there_are_no_polls_unless_asked_for(tmp_path: Path) -> None:
    with served(tmp_path) as (teacher, phone):
        assert "start the page with --polls" in teacher.ask("open_poll", "batch")
        assert teacher.get("/live/polls") == {"may_open": False, "has_login": False, "polls": []}
        assert "there is no poll" in phone.ask("answer_poll", "a2b3c4d5", 0, secrets.token_hex(16))
        assert phone.get("/live/polls/a2b3c4d5") == 404
        assert "stored in the browser" in phone.ask("keep_progress", "batch", PREDICTED)
        assert teacher.client.get("/live/learn/class.csv").status_code == 404


def test_anonymous_answers_are_limited_and_keep_nothing_of_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "MAX_ANONYMOUS_ANSWERS", 3)
    with served(tmp_path, has_anonymous_polls=True) as (teacher, phone):
        poll_id = teacher.ask("open_poll", "batch")["poll_id"]
        token = secrets.token_hex(16)
        assert "token must be 32" in phone.ask("answer_poll", poll_id, 0, "ann")
        assert phone.ask("answer_poll", poll_id, 0, token)["num_answers"] == 1
        assert "cannot be changed" in phone.ask("answer_poll", poll_id, 1, token)
        phone.ask("answer_poll", poll_id, 1, secrets.token_hex(16))
        assert "3 answers arrived within 10 seconds" in phone.ask(
            "answer_poll", poll_id, 1, secrets.token_hex(16)
        )
        assert teacher.get(f"/live/polls/{poll_id}/people") == {"people": []}
        told = teacher.get(f"/live/polls/{poll_id}/qr")
        assert told["address"] is None and "--host 0.0.0.0 --polls" in told["problem"]
        # Requests from another site's page are refused.
        body = {"data": [poll_id, 1, secrets.token_hex(16)]}
        for origin in ("http://evil.example", "null"):
            refused = phone.client.post("/gradio_api/run/answer_poll", json=body, headers={"origin": origin})
            assert refused.status_code == 403
        file = tmp_path / "runs" / ".class" / "polls" / f"{poll_id}.json"
        wait_until("the answers on the disk", file.exists, ANSWER_TIMEOUT_S)
        assert "127.0.0.1" not in file.read_text() and "testclient" not in file.read_text()
    with served(tmp_path, has_anonymous_polls=True) as (teacher, phone):  # the page was restarted
        assert "cannot be changed" in phone.ask("answer_poll", poll_id, 1, token)
        assert teacher.ask("change_poll", poll_id, "close")["state"] == "closed"


def test_strangers_reach_a_polls_question_and_nothing_else(tmp_path: Path) -> None:
    """Strangers are recognised by their connection, which test_connections.py covers."""
    made = options_of(tmp_path, host="0.0.0.0", has_anonymous_polls=True)
    app = build_app(made, CatalogueSource(default_cache_file()))
    behind = make_phone_app(app, made)
    assert behind is not None
    with TestClient(add_access_checks(app, made, None), base_url="http://localhost") as own:
        teacher, client = Browser(own), TestClient(behind, base_url="http://localhost")
        client.portal = own.portal
        phone = Browser(client)
        poll_id = teacher.ask("open_poll", "batch")["poll_id"]
        path = f"/live/polls/{poll_id}"
        allowed = {"/poll", "/live/me", "/live/glossary", f"/{shell.TYPEFACE}"}
        allowed |= {"/live/polls/{poll_id}", "/live/polls/{poll_id}/stream", "/live/polls/{poll}/answer"}
        for template, methods in routes_of(app) + routes_of(gradio_of(app)):
            for method in methods | {"PUT", "DELETE", "OPTIONS"}:
                way = re.sub(r"[{]poll(_id)?[}]", poll_id, template)
                if template in allowed and method in ("GET", "HEAD", "POST"):
                    continue
                answer = client.request(method, re.sub(r"[{][^}]*[}]", "x", way))
                assert answer.status_code in (403, 411), (method, way)
        for way in ("/", "/live/assets/js/../../../app.py", "/gradio_api/run/answer_poll"):
            assert client.get(way).status_code == 403
            assert client.post(way, json={"data": [], "fn_index": 0}).status_code == 403
        for way in ("/live/assets/js/main.js", "/live/assets/css/learn/polls.css", f"/poll?id={poll_id}"):
            assert client.get(way).status_code == 200
        assert phone.get("/live/me")["role"] == "student"
        sent = {"answer": 1, "token": secrets.token_hex(16)}
        assert client.post(f"{path}/answer", json=sent).json()["num_answers"] == 1
        again = client.post(f"{path}/answer", json=sent | {"answer": 0})
        assert again.status_code == 422 and "cannot be changed" in again.text
        assert client.post(f"{path}/answer", content=b"x" * 5000).status_code == 413
        assert client.post(f"{path}/answer", content=b"[]").status_code == 422
        assert client.post(f"{path}/answer", json=sent, headers={"origin": "null"}).status_code == 403
        early = f"{path}?early=true"
        assert phone.get(early)["results"] is None and teacher.get(path)["results"] is None
        assert teacher.get(early)["results"] == {"counts": [0, 1]}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"host": "0.0.0.0"}, "without a login anyone who reaches this page can start jobs"),
        ({"host": "0.0.0.0", "has_anonymous_polls": True}, None),
        (
            {"has_anonymous_polls": True, "allowed_hosts": ("lab",)},
            "--allow-host lab makes the page reachable",
        ),
        (
            {"host": "0.0.0.0", "has_anonymous_polls": True, "trusted_proxies": "127.0.0.1"},
            "can start jobs",
        ),
        ({"has_anonymous_polls": True, "auth_file": Path("a.json")}, "--polls is for a page without logins"),
    ],
)
def test_which_options_open_the_page_to_phones(
    tmp_path: Path, given: dict[str, Any], words: str | None
) -> None:
    made = options_of(tmp_path, **given)
    if words is None:
        options.check(made)
    else:
        with pytest.raises(ValueError, match=words):
            options.check(made)


def test_where_the_system_does_not_tell_strangers_apart_no_phone_is_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "can_tell_users_apart", lambda: False)
    with pytest.raises(ValueError, match="add --insecure if everyone on the network may do everything"):
        options.check(options_of(tmp_path, host="0.0.0.0", has_anonymous_polls=True))
    options.check(options_of(tmp_path, host="0.0.0.0", has_anonymous_polls=True, is_insecure=True))
