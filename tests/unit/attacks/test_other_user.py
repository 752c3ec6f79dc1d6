"""Another user of the machine can neither block this program nor make it trust their files."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import app
from ddp_gui.auth.account_file import AccountError, AccountFile
from ddp_gui.auth.rights import STRICTEST, ClassSettingsFile
from ddp_gui.auth.sessions import Sessions
from ddp_gui.background import trainer_process
from ddp_gui.gradio_routes import uploads
from ddp_gui.queue.snapshot import SnapshotReader
from ddp_gui.queue.store import QueueStore, QueueStoreError
from ddp_gui.runs import bin as run_bin
from ddp_gui.runs import listing
from tests import other_user
from tests.other_user import give_away, needs_a_second_user
from tests.unit.stand_in import FakeDevices
from trainers.contract import config, events, rundir, tickets
from trainers.contract.commands import Incoming
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.status import process_handle
from trainers.contract.tickets import Ticket, TicketError
from trainers.data.own import cache
from trainers.data.own.problems import DataError
from trainers.engines import liveness
from trainers.engines.heartbeats import HeartbeatMemory
from trainers.engines.local import stopping
from trainers.files import private_files
from trainers.files.private_files import ForeignFileError

TICKET = Ticket(person="", kind="cpu", num_ranks=1, asked_unix_s=time.time())


@pytest.fixture
def shared() -> Iterator[Path]:
    """Yield a folder that all users may enter, like the parent of a runs folder."""
    with other_user.shared_folder() as folder:
        yield folder


@pytest.fixture
def careless() -> Iterator[None]:
    """Set umask 0: files are private only if the program makes them private."""
    before = os.umask(0)
    yield
    os.umask(before)


def make(runs_dir: Path) -> RunDirectory:
    return rundir.create(runs_dir, config.parse({"dataset": "digits", "model": "mlp"}))


def open_to_all(*paths: Path) -> None:
    """Set the permissions that earlier versions used."""
    for path in paths:
        path.chmod(0o755 if path.is_dir() else 0o644)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Resources held by another user


@needs_a_second_user
@pytest.mark.parametrize("is_old", [True, False], ids=["left by an earlier version", "made now"])
def test_his_lock_on_the_queue_stops_nobody(shared: Path, careless: None, is_old: bool) -> None:
    folder = shared / "runs" / ".class"
    if is_old:
        folder.mkdir(parents=True)
        (folder / "queue.lock").touch()
        open_to_all(shared / "runs", folder, folder / "queue.lock")
    else:
        with QueueStore(shared / "runs").open():
            pass
    with other_user.holding(folder / "queue.lock"), QueueStore(shared / "runs").open() as book:
        book.is_paused = True
    assert not other_user.has_done("cat", folder / "queue.json")


@needs_a_second_user
def test_he_can_hold_no_file_of_a_run(shared: Path, careless: None) -> None:
    run = make(shared / "runs")
    os.close(run.acquire_lock())
    EventFile(run.events).close()
    run.append_command("stop")
    for path in (run.lock, run.events, run.commands, run.path):
        assert not other_user.has_done("flock", "--nonblock", path, "true"), path
        with other_user.holding(path):
            os.close(run.acquire_lock())


@needs_a_second_user
def test_a_run_that_was_open_to_all_is_closed_when_it_is_used_or_a_page_starts(shared: Path) -> None:
    run, other = make(shared / "runs"), make(shared / "runs")
    open_to_all(shared / "runs", run.path, other.path)
    run.lock.touch()
    open_to_all(run.lock)
    assert other_user.has_done("flock", "--nonblock", run.lock, "true")
    assert not run.is_locked()
    assert not other_user.has_done("flock", "--nonblock", run.lock, "true"), "a look closes the lock"
    os.close(run.acquire_lock())
    assert (mode(run.path), mode(other.path)) == (0o700, 0o755)
    private_files.close_runs(shared / "runs")
    assert mode(other.path) == 0o700


@needs_a_second_user
def test_whoever_changes_the_accounts_does_not_wait_for_him(shared: Path, careless: None) -> None:
    file = AccountFile(shared / "accounts.json")
    with file.changing():
        pass
    with (
        other_user.holding(shared),
        other_user.holding(shared / ".accounts.json.lock"),
        other_user.holding(file.path),
        file.changing(),
    ):
        pass
    assert mode(file.path) == mode(shared / ".accounts.json.lock") == 0o600


@needs_a_second_user
def test_his_lock_delays_no_preparation(
    shared: Path, careless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(shared / "cache"))
    lock = shared / "cache" / "abc.lock"
    lock.parent.mkdir()
    with cache._locked(lock):
        pass
    with other_user.holding(lock), cache._locked(lock):
        assert mode(lock) == 0o600


@needs_a_second_user
def test_he_opens_no_memory_of_a_job() -> None:
    """Shared memory is reachable only through our own file descriptor."""
    board = HeartbeatMemory(1)
    assert Path(board.address).exists()
    assert not other_user.has_done("sh", "-c", f": < {board.address}")
    assert not other_user.has_done("sh", "-c", f": > {board.address}")


# Files planted by another user


def test_a_planted_answer_of_the_catalogue_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = tmp_path / "catalogue.json"
    answer = {"models": [], "watched_paths": []}
    planted.write_text(json.dumps({"key": trainer_process.current_key(answer), "answer": answer}))
    assert trainer_process.read_cached(planted) == answer
    give_away(planted, monkeypatch)
    assert trainer_process.read_cached(planted) is None
    assert f"{planted} is not used, because it belongs to" in capsys.readouterr().out


def test_nothing_is_kept_in_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is in the user's cache folder if the checkout is read-only; without either, there is none."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(private_files, "REPOSITORY", tmp_path / "file")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    kept = trainer_process.default_cache_file("catalogue")
    assert kept is not None and kept.is_relative_to(tmp_path / "mine") and mode(kept.parent) == 0o700
    give_away(kept.parent, monkeypatch)
    assert trainer_process.default_cache_file("catalogue") is None
    trainer_process.write_cached(None, {})
    assert trainer_process.read_cached(None) is None


@pytest.mark.parametrize("place", ["none", "a link he made", "his"])
def test_the_compiler_keeps_its_work_where_nobody_else_can_put_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, careless: None, place: str
) -> None:
    """torch executes the files in its compiler cache."""
    monkeypatch.setattr(private_files, "REPOSITORY", tmp_path / "checkout")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(private_files.COMPILER_CACHE, raising=False)
    (tmp_path / "his").mkdir()
    if place == "a link he made":
        (tmp_path / "checkout").mkdir()
        (tmp_path / "checkout" / ".cache").symlink_to(tmp_path / "his")
        give_away(tmp_path / "checkout" / ".cache", monkeypatch)
    elif place == "his":
        give_away(tmp_path / "his", monkeypatch)
        monkeypatch.setenv(private_files.COMPILER_CACHE, str(tmp_path / "his"))
    private_files.begin()
    used = Path(os.environ[private_files.COMPILER_CACHE])
    assert used != tmp_path / "his" and not list((tmp_path / "his").iterdir())
    if os.geteuid() == 0 or place == "none":
        above = tmp_path / ("home" if place == "a link he made" else "checkout")
        assert used.is_relative_to(above) and mode(used) == mode(used.parent) == 0o700


def test_his_queue_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = QueueStore(tmp_path)
    with keeper.open() as book:
        book.is_paused = True
    give_away(tmp_path / ".class" / "queue.json", monkeypatch)
    with pytest.raises(QueueStoreError, match=r"queue\.json is not used, because it belongs to"):
        keeper.read()
    give_away(tmp_path / ".class", monkeypatch)
    with pytest.raises(QueueStoreError, match=r"\.class is not used, because it belongs to"), keeper.open():
        pass


def test_his_ticket_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path)
    tickets.write_queued(run, TICKET)
    assert SnapshotReader(tmp_path, FakeDevices(2)).search() == {run.run_id}
    give_away(run.queued, monkeypatch)
    with pytest.raises(TicketError, match=r"queued\.json is not used, because it belongs to"):
        tickets.read_queued(run)
    give_away(run.path, monkeypatch)
    assert SnapshotReader(tmp_path, FakeDevices(2)).search() == set(), "his run takes no part in the queue"


def test_his_settings_show_nothing_to_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ClassSettingsFile(tmp_path)
    settings.change(everyone_sees=True)
    give_away(settings.path, monkeypatch)
    assert ClassSettingsFile(tmp_path).read() == STRICTEST
    assert "settings.json is not used, because it belongs to" in capsys.readouterr().out


def test_his_accounts_and_sessions_let_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = AccountFile(tmp_path / "accounts.json")
    with file.changing():
        pass
    kept = tmp_path / "accounts.json.sessions"
    kept.write_text(json.dumps({"a": {"name": "n", "mark": "m", "began_unix_s": 0, "seen_unix_s": 0}}))
    assert Sessions(file, kept)._sessions
    give_away(kept, monkeypatch)
    assert not Sessions(file, kept)._sessions
    assert "belongs to" in capsys.readouterr().out
    give_away(file.path, monkeypatch)
    with pytest.raises(AccountError, match="belongs to"):
        file.read()


def test_accounts_and_keys_that_others_can_read_are_not_left_so(tmp_path: Path) -> None:
    file = AccountFile(tmp_path / "accounts.json")
    with file.changing():
        pass
    key = tmp_path / "key.pem"
    key.touch()
    open_to_all(file.path, key)
    file.read()
    assert mode(file.path) == 0o600
    with pytest.raises(ValueError, match="every user of this machine can read the private key"):
        app.checked_options(
            app.parse_options([f"--ssl-certfile={key}", f"--ssl-keyfile={key}", f"--runs-dir={tmp_path}"])
        )


def test_his_list_of_runs_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listing.save_listing(tmp_path, "key", {"a": {}})
    assert listing.load_listing(tmp_path, "key") == {"a": {}}
    give_away(listing.cache_path(tmp_path), monkeypatch)
    assert listing.load_listing(tmp_path, "key") == {}
    assert "list.json is not used, because it belongs to" in capsys.readouterr().out


def test_his_folder_receives_no_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    incoming = uploads.make_incoming(tmp_path / "uploads")
    assert mode(incoming) == mode(incoming.parent) == 0o700
    give_away(incoming.parent, monkeypatch)
    with pytest.raises(ForeignFileError, match="uploads is not used, because it belongs to"):
        uploads.make_incoming(tmp_path / "uploads")


def test_what_he_prepared_is_not_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))

    def prepare(folder: Path) -> dict[str, Any]:
        return {"arrays": {}}

    cache.find_or_make("abc", prepare)
    assert cache.find("abc") is not None
    give_away(tmp_path / "abc", monkeypatch)
    with pytest.raises(DataError, match="abc is not used, because it belongs to"):
        cache.find_or_make("abc", prepare)


def test_his_commands_are_not_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path)
    requests = Incoming(run.commands)
    run.append_command("stop")
    give_away(run.commands, monkeypatch)
    assert requests.stops() == requests.stops() == []
    with pytest.raises(ForeignFileError):
        run.append_command("stop")


def test_no_process_is_ended_because_he_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A status names the supervisor of a run, and Stop kills that process as the last resort."""
    run = make(tmp_path)
    me = psutil.Process()
    run.write_status(Status(state="running", handle=process_handle(me.pid, me.create_time())))
    lock = run.acquire_lock()
    assert stopping.supervisor_of(run, liveness.read_status(run)) == me
    give_away(run.status, monkeypatch)
    assert liveness.read_status(run).state == "running", "it is shown all the same"
    with pytest.raises(ForeignFileError):
        stopping.supervisor_of(run, liveness.read_status(run))
    os.close(lock)


@needs_a_second_user
def test_a_lock_he_put_into_a_run_says_nothing(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.write_status(Status(state="finished"))
    run.lock.touch()
    os.chown(run.lock, other_user.UID, other_user.UID)
    descriptor = os.open(run.lock, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert not run.is_locked()
    with pytest.raises(ForeignFileError, match=r"run\.lock is not used, because it belongs to nobody"):
        run.acquire_lock()
    os.close(descriptor)
    assert run_bin.delete(tmp_path, [run.run_id]), "the run's owner gets rid of it"


# Shared runs and folders


@needs_a_second_user
def test_another_users_run_is_shown_but_nothing_is_done_to_it(tmp_path: Path) -> None:
    run = make(tmp_path)
    writer = EventFile(run.events)
    writer.append([(time.time(), "state", {"state": "finished", "reason": "All 3 steps done."})])
    writer.close()
    for path in (run.path, *run.path.rglob("*")):
        os.chown(path, other_user.UID, other_user.UID)
    opened = rundir.open_run(tmp_path, run.run_id)
    assert opened.read_config().dataset == "digits" and liveness.read_status(opened).state == "finished"
    assert len(list(events.read_all(opened.events))) == 1
    for act in (opened.acquire_lock, lambda: opened.append_command("stop")):
        with pytest.raises(ForeignFileError, match=f"{run.run_id}.* it belongs to nobody and not to root"):
            act()
    assert run_bin.delete(tmp_path, [run.run_id]), "a planted one can be taken away"


@needs_a_second_user
def test_a_folder_that_is_shared_on_purpose_lets_its_group_read_and_hold_nothing(shared: Path) -> None:
    runs_dir, group = shared / "runs", 54321
    runs_dir.mkdir()
    os.chown(runs_dir, 0, group)
    runs_dir.chmod(0o2750)
    before = os.umask(0o022)
    try:
        private_files.begin(runs_dir)
        run = make(runs_dir)
        EventFile(run.events).close()
        lock = run.acquire_lock()
    finally:
        os.umask(before)
    for path in (run.config, run.events):
        assert other_user.has_done("cat", path, gid=group), path
        assert not other_user.has_done("cat", path)
    assert not other_user.has_done("flock", "--nonblock", run.lock, "true", gid=group)
    assert not other_user.has_done("sh", "-c", f"echo >> '{run.events}'", gid=group)
    # A page that may not open the lock file still detects that the run is live.
    assert private_files.is_lock_listed(run.lock)
    os.close(lock)
    assert not private_files.is_lock_listed(run.lock)


def test_a_page_closes_its_runs_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, thesis = make(tmp_path), tmp_path / "thesis"
    thesis.mkdir()
    (tmp_path / "link-1").symlink_to(thesis)
    (tmp_path / "README").touch()
    open_to_all(tmp_path, run.path, thesis)
    private_files.close_runs(tmp_path)
    assert (mode(tmp_path), mode(run.path), mode(thesis)) == (0o755, 0o700, 0o755)
    assert "docs/files.md" in caplog.text
    caplog.clear()
    private_files.close_runs(tmp_path)
    assert not caplog.text


def test_a_new_folder_of_runs_is_closed(tmp_path: Path, careless: None) -> None:
    private_files.close_runs(tmp_path / "new" / "runs")
    assert mode(tmp_path / "new" / "runs") == 0o700
    run = make(tmp_path / "other")
    assert mode(tmp_path / "other") == mode(run.path) == 0o700
