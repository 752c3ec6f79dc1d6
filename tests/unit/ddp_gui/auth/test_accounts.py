"""Tests of the accounts file and of the command that creates it."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddp_gui.accounts import account_name
from ddp_gui.auth import account_file
from ddp_gui.auth.account_file import AccountError, AccountFile, checked_name
from ddp_gui.http.shell import visible
from tests.harness import REPOSITORY
from tests.unit import class_of
from tests.unit.class_of import ANN, BOB


def run_command(file: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddp_gui.accounts", str(file), *words]
    return subprocess.run(
        command, cwd=REPOSITORY, input=given, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_a_password_fits_only_itself() -> None:
    kept = account_file.hash_password("correct horse")
    assert "correct horse" not in json.dumps(kept)
    assert account_file.fits_password("correct horse", kept)
    assert not account_file.fits_password("correct horsf", kept)
    assert not account_file.fits_password("correct horse", account_file.NOBODYS)
    assert account_file.hash_password("correct horse") != kept, "each has salt of its own"


@pytest.mark.parametrize("broken", [{}, {"method": "plain"}, {"salt": "zz"}, {"n": 3}, {"hash": ""}])
def test_what_was_kept_and_makes_no_sense_lets_nobody_in(broken: dict[str, object]) -> None:
    kept = {**class_of.cheap("secret"), **broken} if broken else {}
    with pytest.raises(ValueError, match="is damaged"):
        account_file.fits_password("secret", kept)


def test_made_up_passwords_differ_and_can_be_typed() -> None:
    found = {account_file.random_password() for _ in range(200)}
    assert len(found) == 200
    assert all(len(password) == 17 and password.isascii() for password in found)


@pytest.mark.parametrize("name", ["", "Ännchen", "-a", "a/b", "..", "a b", "x" * 33, "a\x00", "a\nb"])
def test_a_name_that_could_be_mistaken_for_a_path_is_refused(name: str) -> None:
    with pytest.raises(AccountError):
        checked_name(name)


@pytest.mark.parametrize(
    ("line", "name"),
    [("Anna Müller", "anna-mueller"), (" José Ñandú ", "jose-nandu"), ("o'Neil, Pat", "o-neil-pat")],
)
def test_names_of_a_class_become_names_of_accounts(line: str, name: str) -> None:
    assert account_name(line) == name


def test_the_file_is_read_again_when_it_changes_and_private(tmp_path: Path) -> None:
    file = class_of.make(tmp_path / "accounts.json", ANN)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    reader = AccountFile(file.path)
    assert reader.find("ann") is not None and reader.find("bob") is None
    class_of.make(tmp_path / "accounts.json", BOB)
    assert reader.find("bob") is not None and reader.find("ann") is not None
    with file.changing() as accounts:
        del accounts["ann"]
    assert reader.find("ann") is None


def test_while_the_file_is_broken_the_accounts_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = class_of.make(tmp_path / "accounts.json", ANN)
    assert file.find("ann") is not None
    file.path.write_text('{"format": 1, "acc')
    assert file.find("ann") is not None
    assert "cannot be read" in capsys.readouterr().out
    with pytest.raises(AccountError, match="cannot be read"), file.changing():
        pass
    assert file.path.read_text() == '{"format": 1, "acc', "nothing is written over what is not understood"


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "\u202enna", "\x1b]0;title\x07", "../ann", ""])
@pytest.mark.parametrize("role", ["student", "\x1b[31mroot\u202e"])
def test_a_file_with_a_name_that_acts_is_refused_in_words_that_do_not(
    tmp_path: Path, name: str, role: str
) -> None:
    file = class_of.make(tmp_path / "accounts.json", ANN)
    kept = json.loads(file.path.read_text())
    kept["accounts"][name] = {"role": role, "password": class_of.cheap("secret")}
    file.path.write_text(json.dumps(kept))
    with pytest.raises(AccountError, match="cannot be the name of an account") as refused:
        AccountFile(file.path).read()
    assert visible(str(refused.value)) == str(refused.value)


def test_a_name_written_in_capitals_by_hand_can_log_in(tmp_path: Path) -> None:
    file = class_of.make(tmp_path / "accounts.json")
    file.path.write_text(file.path.read_text().replace('"ann"', '"Ann"'))
    found = file.find("ann")
    assert found is not None and found.name == "ann"


def test_people_added_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "accounts.json"
    people = [class_of.Person(name=f"p{number}", role="student") for number in range(8)]
    threads = [threading.Thread(target=class_of.make, args=(path, person)) for person in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(AccountFile(path).read()) == {person.name for person in people}


@pytest.mark.slow
def test_the_command_adds_lists_changes_and_removes(tmp_path: Path) -> None:
    path = tmp_path / "accounts.json"
    assert run_command(path, "add", "Ann", "--role", "teacher", given="long enough\n").returncode == 0
    again = run_command(path, "add", "ann", given="long enough\n")
    assert again.returncode == 1 and "set-password" in again.stderr
    before = AccountFile(path).read()["ann"]
    assert before.role == "teacher" and account_file.fits_password("long enough", before.password)
    short = run_command(path, "set-password", "ann", given="short\n")
    assert short.returncode == 1 and "from 8 to 200 characters" in short.stderr
    assert run_command(path, "remove", "ann").returncode == 0
    assert AccountFile(path).read() == {}


def test_the_command_adds_a_class(tmp_path: Path) -> None:
    path = class_of.make(tmp_path / "accounts.json", ANN).path
    names = tmp_path / "names.txt"
    names.write_text("\ufeffAnn\n\nBob Öst\n", encoding="utf-8")
    made = run_command(path, "add-class", str(names))
    name, password = made.stdout.split()
    assert name == "bob-oest" and "ann already exists" in made.stderr
    assert account_file.fits_password(password, AccountFile(path).read()["bob-oest"].password)
    assert password not in path.read_text()
