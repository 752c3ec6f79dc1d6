"""No request blocks the event loop, regardless of its content: all routes, streams and endpoints."""

from __future__ import annotations

from pathlib import Path

from ddp_gui.auth.login import Login
from ddp_gui.background.loop_delay import LIMIT_S
from tests import loop_delay
from tests.unit import class_of
from tests.unit.class_of import ANN, password_of

# More runs than a class has on one page.
NUM_RUNS = 1000
ROUTES = 100


def test_no_request_holds_the_loop(tmp_path: Path) -> None:
    """Logins are enabled, because a request then passes through all code of a request without login too."""
    login = Login(class_of.make(tmp_path / "accounts.json"), "session")
    form = {"username": ANN.name, "password": password_of(ANN)}
    with loop_delay.served(tmp_path, NUM_RUNS, login, form) as page:
        rows = loop_delay.measure_all(page, wanted=loop_delay.is_usual)
        still = loop_delay.ask(page, loop_delay.request("GET", "/live/me"))
    assert len(rows) > ROUTES and sum(row.num_inputs for row in rows) > 8 * ROUTES
    # The session must still be valid: requests refused for a missing login do not reach the functions.
    assert b'"name":"ann"' in still
    over = [f"{row.target}: {row.seconds * 1e3:.0f} ms, {row.what}" for row in rows if row.seconds > LIMIT_S]
    assert over == []
