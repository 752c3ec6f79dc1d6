"""Tests of the address in a QR code, and of the message if phones cannot reach the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddp_gui.learn import poll_routes
from ddp_gui.options import Options

pytestmark = pytest.mark.unit

ADDRESS = "http://192.168.1.20:7860/poll?id=k3m9x2ab"
# zxing-cpp 3.1.1 decodes this to ADDRESS.
KNOWN = """\
#######.#.###...##..#.#######
#.....#.#.##.##.##.##.#.....#
#.###.#.#..#.###..##..#.###.#
#.###.#..##..#.#####..#.###.#
#.###.#.#.#..#..##.##.#.###.#
#.....#..#..#....##.#.#.....#
#######.#.#.#.#.#.#.#.#######
............####..#..........
#..##########..#.#####..#.###
..#.#..#.#.....#######..#.##.
###...##..#..####...#...#.#..
..#....##.##...###.#...##...#
#.#.###.###.....#....##.....#
.#.#.....#..#####...###.##.##
.#...####.####.#..##.#...##.#
#.#.##...###......#.#.##..#.#
##....##..####..#....#.#.....
######.#..#....##.##...#####.
###.#.#.###...###..##..#....#
##.......######.#...#.#.###..
###.#.##...###.###.#########.
........#####.##.####...##...
#######.#..##.####.##.#.##...
#.....#.##.#....###.#...#..##
#.###.#.##.#.##.#..######..#.
#.###.#.#..##.######...#.##.#
#.###.#..#..####....#...#..##
#.....#..#....##..#...###.#.#
#######.##.#..#.#.#.#..#.#..."""


def options(**values: Any) -> Options:
    known = {"host": "127.0.0.1", "port": 7860, "runs_dir": Path("runs"), "open_browser": False}
    return Options(**(known | values))


def url(made: Options, scheme: str = "http", host: str = "127.0.0.1:7860") -> str | None:
    return poll_routes.address_of_page(made, scheme, host, 7860).url


def test_it_is_the_one_by_which_the_teacher_is_here_where_others_can_use_it() -> None:
    assert url(options(host="0.0.0.0"), host="192.168.1.20:7860") == "http://192.168.1.20:7860/"
    assert url(options(host="::"), host="[fd00::5]:7860") == "http://[fd00::5]:7860/"


def test_a_teacher_at_the_machine_itself_gets_the_machines_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_routes, "own_address", lambda: "192.168.1.20")
    assert url(options(host="0.0.0.0")) == "http://192.168.1.20:7860/"
    assert url(options(host="0.0.0.0"), host="localhost:7860") == "http://192.168.1.20:7860/"
    assert url(options(host="10.0.0.7")) == "http://10.0.0.7:7860/"
    monkeypatch.setattr(poll_routes, "own_address", lambda: "fd00::5")
    assert url(options(host="::"), host="[::1]:7860") == "http://[fd00::5]:7860/"
    monkeypatch.setattr(poll_routes, "own_address", lambda: None)
    found = poll_routes.address_of_page(options(host="0.0.0.0"), "http", "localhost", 7860)
    assert found.url is None and "no network address" in found.problem


def test_on_this_machine_alone_it_says_how_phones_could_reach_it() -> None:
    alone = poll_routes.address_of_page(options(has_anonymous_polls=True), "http", "127.0.0.1:7860", 7860)
    assert alone.url is None and "--host 0.0.0.0 --polls" in alone.problem
    school = poll_routes.address_of_page(
        options(auth_file=Path("accounts.json")), "http", "localhost:7860", 7860
    )
    assert "--host 0.0.0.0 --auth-file accounts.json" in school.problem and "--insecure" not in school.problem


def test_a_qr_code_is_the_known_one() -> None:
    drawn = [row.replace("1", "#").replace("0", ".") for row in poll_routes._rows(ADDRESS)]
    assert drawn == KNOWN.splitlines()
    assert poll_routes._rows(None) == []
    assert len(poll_routes._rows("a" * poll_routes.MAX_QR_CHARACTERS)) == 57
    assert poll_routes._rows("a" * (poll_routes.MAX_QR_CHARACTERS + 1)) == []
