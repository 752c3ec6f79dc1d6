"""Accounts, sessions and limits of logins, with a simulated clock."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.accounts import account_name
from ddp_gui.auth import account_file, login_routes, sessions
from ddp_gui.auth import login as login_module
from ddp_gui.auth.account_file import Account, AccountError, AccountFile, validate_name
from ddp_gui.auth.login import MAX_WAITING, Login, LoginError, LoginLimits, TooManyTriesError
from ddp_gui.auth.sessions import Sessions
from ddp_gui.http.front import network_of
from ddp_gui.http.shell import visible
from tests.harness import REPOSITORY
from tests.unit import class_of
from tests.unit.class_of import ANN, BOB, password_of


def run_command(file: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddp_gui.accounts", str(file), *words]
    return subprocess.run(
        command, cwd=REPOSITORY, input=given, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_a_password_fits_only_itself() -> None:
    kept = account_file.hash_password("correct horse")
    assert "correct horse" not in json.dumps(kept)
    assert account_file.verify_password("correct horse", kept)
    assert not account_file.verify_password("correct horsf", kept)
    assert not account_file.verify_password("correct horse", account_file.DUMMY_HASH)
    assert account_file.hash_password("correct horse") != kept, "each has salt of its own"


@pytest.mark.parametrize("broken", [{}, {"method": "plain"}, {"salt": "zz"}, {"n": 3}, {"hash": ""}])
def test_what_was_kept_and_makes_no_sense_lets_nobody_in(broken: dict[str, object]) -> None:
    kept = {**class_of.cheap("secret"), **broken} if broken else {}
    with pytest.raises(ValueError, match="is damaged"):
        account_file.verify_password("secret", kept)


@pytest.mark.parametrize("name", ["", "Ännchen", "-a", "..", "a b", "x" * 33, "a\x00"])
def test_a_name_that_could_be_mistaken_for_a_path_is_refused(name: str) -> None:
    with pytest.raises(AccountError):
        validate_name(name)


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


def test_accounts_stay_while_the_file_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = class_of.make(tmp_path / "accounts.json", ANN)
    assert file.find("ann") is not None
    file.path.write_text('{"format": 1, "acc')
    assert file.find("ann") is not None
    assert "cannot be read" in capsys.readouterr().out
    with pytest.raises(AccountError, match="cannot be read"), file.changing():
        pass
    assert file.path.read_text() == '{"format": 1, "acc', "nothing is written over what is not understood"


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "\u202enna", "\x1b]0;title\x07", "../ann", ""])
def test_a_file_with_a_name_that_acts_is_refused_in_words_that_do_not(tmp_path: Path, name: str) -> None:
    file = class_of.make(tmp_path / "accounts.json", ANN)
    kept = json.loads(file.path.read_text())
    kept["accounts"][name] = {"role": "\x1b[31mroot\u202e", "password": class_of.cheap("secret")}
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
    assert before.role == "teacher" and account_file.verify_password("long enough", before.password)
    short = run_command(path, "set-password", "ann", given="short\n")
    assert short.returncode == 1 and "must have 8 to 200 characters" in short.stderr
    assert run_command(path, "remove", "ann").returncode == 0
    assert AccountFile(path).read() == {}


def test_the_command_adds_a_class(tmp_path: Path) -> None:
    path = class_of.make(tmp_path / "accounts.json", ANN).path
    names = tmp_path / "names.txt"
    names.write_text("\ufeffAnn\n\nBob Öst\n", encoding="utf-8")
    made = run_command(path, "add-class", str(names))
    name, password = made.stdout.split()
    assert name == "bob-oest" and "ann already exists" in made.stderr
    assert account_file.verify_password(password, AccountFile(path).read()["bob-oest"].password)
    assert password not in path.read_text()


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> AccountFile:
    return class_of.make(tmp_path / "accounts.json")


@pytest.fixture
def cheap_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the check of an unknown name as cheap as that of the accounts here."""
    monkeypatch.setattr(account_file, "DUMMY_HASH", class_of.cheap("nobody's"))


@pytest.fixture
def held(file: AccountFile, tmp_path: Path, clock: Clock) -> Sessions:
    return Sessions(file, tmp_path / "sessions", clock)


def begin(held: Sessions, file: AccountFile, name: str = "ann") -> str:
    account = file.find(name)
    assert account is not None
    return held.begin(account)


def test_a_session_lasts_while_it_is_used_but_not_for_ever(held: Sessions, file: AccountFile, clock) -> None:
    token, watched = begin(held, file), begin(held, file)
    for number in range(int(sessions.ABSOLUTE_S / sessions.IDLE_S)):
        clock.now += sessions.IDLE_S - 1
        assert held.person(token) == ANN
        assert held.person(watched, is_seen=False) == (ANN if number == 0 else None), (
            "looking at it is no use"
        )
    clock.now += sessions.IDLE_S - 1
    assert held.person(token) is None


@pytest.mark.parametrize("change", ["remove", "password", "role"])
def test_a_session_ends_when_its_account_changes(held: Sessions, file: AccountFile, change: str) -> None:
    token, other = begin(held, file), begin(held, file, "bob")
    with file.changing() as accounts:
        ann = accounts.pop("ann")
        if change != "remove":
            password = class_of.cheap("another") if change == "password" else ann.password
            accounts["ann"] = Account(
                name="ann", role="teacher" if change == "role" else ann.role, password=password
            )
    assert held.person(token) is None
    assert held.person(other) == BOB


def test_sessions_are_kept_as_hashes_only(held: Sessions, file: AccountFile, tmp_path: Path, clock) -> None:
    token = begin(held, file)
    kept = tmp_path / "sessions"
    assert token not in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert Sessions(file, kept, clock).person(token) == ANN
    kept.write_text("[]")
    assert Sessions(file, kept, clock).person(token) is None


def test_one_person_has_a_bounded_number_of_sessions(held: Sessions, file: AccountFile) -> None:
    other = begin(held, file, "bob")
    tokens = [begin(held, file) for _ in range(sessions.MAX_PER_PERSON + 3)]
    left = [token for token in tokens if held.person(token) is not None]
    assert left == tokens[3:]
    assert held.person(other) == BOB


def fail(limits: LoginLimits, name: str, source: str = "10.0.0.1", *, is_known: bool = False) -> float:
    try:
        limits.check(name, source, is_known=is_known)
    except TooManyTriesError as error:
        return error.wait_s
    limits.count(name, source, is_right=False, is_known=is_known)
    return 0.0


def test_the_wait_grows_up_to_a_minute_and_is_forgotten(clock) -> None:
    limits = LoginLimits(clock)
    waits = []
    for _ in range(12):
        wait_s = fail(limits, "ann")
        if wait_s:
            waits.append(wait_s)
            clock.now += wait_s
            assert fail(limits, "ann") == 0.0
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0][: len(waits)]
    assert len(waits) == 7
    assert fail(limits, "bob") == 0.0, "another name need not wait"
    assert fail(limits, "ann", "10.0.0.2") == 0.0, "nor the same one elsewhere"
    clock.now += login_module.FORGOTTEN_AFTER_S + 1
    assert fail(limits, "ann") == 0.0


def test_one_phone_s_wrong_names_lock_nobody_else_out(clock) -> None:
    limits = LoginLimits(clock)
    assert not any(fail(limits, f"name-{number}") for number in range(300))
    limits.check("ann", "10.0.0.1")


def test_guesses_from_many_addresses_lock_a_name_but_not_its_known_devices(clock) -> None:
    limits = LoginLimits(clock)
    waits = [fail(limits, "ann", f"10.0.0.{n}") for n in range(login_module.FREE_FAILURES_PER_NAME + 1)]
    assert waits[:-1] == [0.0] * login_module.FREE_FAILURES_PER_NAME and waits[-1] > 0
    limits.check("ann", "device 1", is_known=True)
    waits = [fail(limits, "ann", "device 1", is_known=True) for _ in range(login_module.FREE_FAILURES + 1)]
    assert waits[:-1] == [0.0] * login_module.FREE_FAILURES and waits[-1] > 0, "it may not guess for ever"
    limits.check("ann", "device 2", is_known=True)


def test_a_right_password_clears_the_failures_of_its_source_alone(clock) -> None:
    limits = LoginLimits(clock)
    for address in ("10.0.0.1", "10.0.0.2"):
        while not fail(limits, "ann", address):
            pass
    limits.count("ann", "10.0.0.1", is_right=True)
    assert fail(limits, "ann", "10.0.0.1") == 0.0
    assert fail(limits, "ann", "10.0.0.2") > 0


def test_memory_is_bounded(clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_module, "MAX_REMEMBERED", 10)
    failures = login_module.Failures(1, clock)
    for number in range(100):
        failures.add((str(number),))
    assert failures.wait_s(("99",)) > 0 and failures.wait_s(("0",)) == 0.0


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("x" * 99, "x" * 80),
    ],
)
def test_an_address_is_what_one_customer_has(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.usefixtures("cheap_nobody")
def test_logging_in_and_out(file: AccountFile) -> None:
    login = Login(file, "cookie", Clock())
    token = asyncio.run(login.begin(" ANN ", password_of(ANN), "10.0.0.1"))
    other = asyncio.run(login.begin("ann", password_of(ANN), "10.0.0.1"))
    assert login.person(token) == ANN
    login.end(token)
    assert login.person(token) is None and login.person(other) == ANN
    for name in ("ann", "nobody", "x" * 5000, "\ud800"):
        with pytest.raises(LoginError, match="name or the password is incorrect") as refused:
            asyncio.run(login.begin(name, "wrong", "10.0.0.1"))
        assert refused.value.status == 401


def at_once(login: Login, tries: list[tuple[str, str, str]]) -> list[int]:
    """Attempt logins from addresses concurrently; return the statuses, 200 for a session."""

    async def ask() -> list[int]:
        tried = [login.begin(name, password, address) for name, password, address in tries]
        found = await asyncio.gather(*tried, return_exceptions=True)
        return [each.status if isinstance(each, LoginError) else 200 for each in found]

    return asyncio.run(ask())


def test_a_hundred_tries_at_once_are_not_a_hundred_guesses(file: AccountFile) -> None:
    statuses = at_once(
        Login(file, "cookie", Clock()), [("ann", f"guess-{n}", "10.0.0.1") for n in range(100)]
    )
    assert statuses.count(401) == login_module.FREE_FAILURES
    assert statuses.count(429) + statuses.count(503) == 100 - login_module.FREE_FAILURES


@pytest.mark.usefixtures("cheap_nobody")
@pytest.mark.parametrize("name", ["name-{}", "bob"], ids=["names without account", "one name"])
def test_who_fills_the_queue_leaves_room_behind_any_address(file: AccountFile, name: str) -> None:
    flood = [(name.format(n), "wrong", "10.0.0.1") for n in range(MAX_WAITING)]
    statuses = at_once(
        Login(file, "cookie", Clock()),
        [*flood, *[("ann", password_of(ANN), "10.0.0.1")] * 30, ("ann", password_of(ANN), "10.0.0.2")],
    )
    assert statuses[MAX_WAITING:] == [200] * 31
    assert set(statuses[:MAX_WAITING]) <= {401, 429, 503}


@pytest.mark.usefixtures("cheap_nobody")
def test_a_known_device_gets_in_whatever_others_try(file: AccountFile) -> None:
    login = Login(file, "cookie", Clock())
    device = login.device_token("ann", None)
    at_once(login, [("ann", "wrong", "10.0.0.1") for _ in range(20)])
    for given in (None, "", "x" * 97, login.device_token("bob", None), device[:-1] + "x"):
        with pytest.raises(LoginError, match="Too many failed attempts"):
            asyncio.run(login.begin("ann", password_of(ANN), "10.0.0.1", given))
    with pytest.raises(LoginError, match="name or the password is incorrect"):
        asyncio.run(login.begin("ann", "wrong", "10.0.0.1", device))

    async def beside_a_flood() -> str:
        flood = [asyncio.ensure_future(login.begin(f"n-{n}", "wrong", f"10.0.{n % 3}.1")) for n in range(200)]
        await asyncio.sleep(0)
        token = await login.begin("ann", password_of(ANN), "10.0.0.1", device)
        await asyncio.gather(*flood, return_exceptions=True)
        return token

    assert login.person(asyncio.run(beside_a_flood())) == ANN
    assert login.device_token("ann", device) == device, "it keeps its number, and its failures"
    with file.changing() as accounts:
        accounts["ann"] = Account(name="ann", role="student", password=class_of.cheap("another"))
    with pytest.raises(LoginError, match="Too many failed attempts"):
        asyncio.run(login.begin("ann", "another", "10.0.0.1", device))


@pytest.mark.slow
def test_a_name_that_is_not_there_takes_as_long(tmp_path: Path) -> None:
    file = AccountFile(tmp_path / "accounts.json")
    with file.changing() as accounts:
        accounts["ann"] = Account(
            name="ann", role="student", password=account_file.hash_password("long enough")
        )
    login = Login(file, "cookie", Clock())

    def took_s(name: str) -> float:
        began = time.process_time()
        with pytest.raises(LoginError):
            asyncio.run(login.begin(name, "wrong password", "10.0.0.1"))
        return time.process_time() - began

    known, unknown = (min(took_s(name) for _ in range(2)) for name in ("ann", "bob"))
    assert unknown > 0.5 * known


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"username=ann&password=x" + b"&a=1" * 9, 400, "at most 10 fields"),
        (b"username=ann&password=" + b"x" * 4_096, 413, "at most 4,096 bytes"),
        (b"username=ann&password=\xff", 400, "in UTF-8"),
        (b"", 400, "fields username and password"),
    ],
)
def test_what_is_no_login_form_is_refused(body: bytes, status: int, words: str, file: AccountFile) -> None:
    app = FastAPI()
    app.include_router(login_routes.make_router(Login(file, "cookie", Clock())))
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = TestClient(app).post("/login", content=body, headers=headers)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
    right = TestClient(app).post("/login", data={"username": "ann", "password": password_of(ANN)})
    assert right.status_code == 200
