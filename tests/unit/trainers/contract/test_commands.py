"""Tests of commands to a run: as lines of a file, as numbers between ranks, and as user input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainers.contract import commands
from trainers.contract.commands import COMMAND_NAMES, COMMANDS, Command, Incoming, Unreadable
from trainers.files import private_files


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_every_command_travels_between_the_ranks_as_it_is(name: str) -> None:
    given = {
        "save": False,
        "anyway": True,
        "learning_rate": 0.125,
        "num_steps": 7,
        "rank": 3,
        "delay_ms": 250,
    }
    arguments: dict[str, Any] = {each.name: given[each.name] for each in COMMANDS[name].arguments}
    asked = Command(name=name, **arguments)
    assert commands.from_numbers(commands.to_numbers(asked)) == asked
    assert len(commands.to_numbers(asked)) == len(commands.to_numbers(None)) == commands.NUM_SENT


def test_a_line_gives_a_command_with_what_it_leaves_out() -> None:
    assert commands.parse({"name": "stop", "id": 7}) == Command(name="stop", id="7", save=True)
    asked = {"name": "set_lr", "id": "a", "learning_rate": "0.5", "more": 1}
    assert commands.parse(asked) == Command(name="set_lr", id="a", learning_rate=0.5)


def test_a_file_of_another_user_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "commands.jsonl"
    path.write_bytes(b'{"name":"stop","id":"a"}\n[]\n')
    assert [type(each) for each in Incoming(path, 0).read()] == [Command, Unreadable]
    assert list(Incoming(path).read()) == []
    monkeypatch.setattr(private_files, "is_ours", lambda _: False)
    incoming = Incoming(path, 0)
    (problem,) = incoming.read()
    assert isinstance(problem, Unreadable) and "belongs to" in problem.message
    assert list(incoming.read()) == []


def test_a_rank_to_slow_down_must_be_named_and_the_delay_has_an_end() -> None:
    asked = {"name": "slow_rank", "id": "a", "rank": 1, "delay_ms": 200}
    command = commands.parse(asked)
    assert commands.arguments_of(command) == {"rank": 1, "delay_ms": 200}
    wrong = ({"rank": None}, {"rank": -1}, {"rank": True}, {"rank": 10**400}, {"delay_ms": 0.5})
    for changes in (*wrong, {"delay_ms": 1001}, {"delay_ms": float("nan")}):
        (name,) = changes
        with pytest.raises(ValueError, match=rf"{name} is .*; allowed: a whole number from 0 to"):
            commands.parse(asked | changes)
