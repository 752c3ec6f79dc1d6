"""Tests of uploads: separate folders, access only for the sender, and limits shared by all users."""

from __future__ import annotations

import os
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddp_gui.auth import rights
from ddp_gui.auth.rights import DataAccess, Person
from ddp_gui.gradio_routes import uploads
from ddp_gui.gradio_routes.uploads import NoRoomError, Uploads
from tests.unit.class_of import ANN, BOB

CLASS = [Person(name=f"student{number}", role="student") for number in range(8)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return uploads.uploads_folder(tmp_path / "runs")


@pytest.fixture
def uploaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Uploads:
    monkeypatch.setattr(uploads, "RESERVED_BYTES", 0)
    return Uploads(folder, DataAccess(folder))


def arrive(uploaded: Uploads, name: str = "data.csv", words: bytes = b"x") -> Path:
    with uploaded.make_upload_folder(len(words)) as place:
        (place / name).write_bytes(words)
    return place / name


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("name", "kept"), [("my <b>photos.ZIP", "my-b-photos.zip"), ("...csv.csv", "csv.csv")]
)
def test_an_upload_never_replaces_another(folder: Path, uploaded: Uploads, name: str, kept: str) -> None:
    for number in range(2):
        target = uploaded.keep(str(arrive(uploaded, name, b"%d" % number)))
        assert target.read_text() == str(number)
    assert (folder / kept).read_text() == "0"
    assert len(files_below(folder)) == 2
    assert list(uploaded.user_incoming_folder().iterdir()) == []


def test_nobody_takes_what_somebody_else_uploaded(uploaded: Uploads) -> None:
    with rights.acting_as(ANN):
        anns = arrive(uploaded)
    everybodys = arrive(uploaded)
    for path in (anns, everybodys):
        with rights.acting_as(BOB), pytest.raises(ValueError, match="the file was not uploaded"):
            uploaded.keep(str(path))
    with rights.acting_as(ANN):
        assert uploaded.keep(str(anns)).read_text() == "x"


def test_an_upload_of_another_kind_is_refused(uploaded: Uploads) -> None:
    with pytest.raises(ValueError, match=r"kind \.exe cannot be used; allowed: \.zip"):
        uploaded.keep(str(arrive(uploaded, "a.exe")))


def test_a_file_that_was_not_uploaded_stays_where_it_is(tmp_path: Path, uploaded: Uploads) -> None:
    other = tmp_path / "other.csv"
    other.write_text("not theirs")
    incoming = arrive(uploaded).parent
    (incoming / "link.csv").symlink_to(other)
    (incoming / "folder.csv").mkdir()
    inside = ("../../../../../other.csv", "link.csv", "folder.csv", "none.csv")
    for path in (str(other), *(f"{incoming}/{name}" for name in inside), "other.csv", ""):
        with pytest.raises(ValueError, match="the file was not uploaded: choose it again"):
            uploaded.keep(path)
    assert other.read_text() == "not theirs"


def test_nobody_else_on_the_machine_reads_what_arrives(uploaded: Uploads) -> None:
    for folder in (uploaded.incoming, arrive(uploaded).parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_nobody_took_for_an_hour_is_deleted_and_the_rest_is_not(uploaded: Uploads) -> None:
    old, young = arrive(uploaded), arrive(uploaded)
    before_unix_s = time.time() - uploads.FORGOTTEN_AFTER_S - 1
    os.utime(old, (before_unix_s, before_unix_s))
    uploaded.tidy()
    assert not old.exists() and young.exists()
    for _ in range(4):
        uploaded.tidy(time.time() + 2 * uploads.FORGOTTEN_AFTER_S)
    assert list(uploaded.incoming.iterdir()) == []
    assert arrive(uploaded).exists()


def test_what_is_broken_off_leaves_nothing(uploaded: Uploads) -> None:
    with pytest.raises(FileNotFoundError), uploaded.make_upload_folder(5) as place:
        (place / "no folder").touch() or (place / "none" / "file").touch()
    assert not place.exists()


@pytest.fixture
def small(uploaded: Uploads, monkeypatch: pytest.MonkeyPatch) -> Uploads:
    """Return uploads limited to 100 bytes in total and 60 per user."""
    monkeypatch.setattr(uploads, "MAX_STORED_BYTES", 100)
    monkeypatch.setattr(uploads, "MAX_STORED_BYTES_PER_USER", 60)
    monkeypatch.setattr(uploads, "MIN_COUNTED_BYTES", 1)
    return uploaded


def has_room(uploaded: Uploads, size_bytes: int) -> bool:
    try:
        with uploaded.make_upload_folder(size_bytes) as place:
            place.rmdir()
            return True
    except NoRoomError:
        return False


def test_the_room_is_shared_and_limited_per_person(small: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    with rights.acting_as(ANN):
        arrive(small, words=bytes(30))  # not kept yet
        small.keep(str(arrive(small, words=bytes(25))))
        assert has_room(small, 5) and not has_room(small, 6)
    with rights.acting_as(BOB):
        assert has_room(small, 45) and not has_room(small, 46)
    # Without logins the limit per user does not apply.
    assert has_room(small, 45) and not has_room(small, 46)
    monkeypatch.setattr(uploads, "MIN_COUNTED_BYTES", 40)
    assert not has_room(small, 1), "small files count as more than they are"
    monkeypatch.setattr(uploads, "MIN_COUNTED_BYTES", 1)
    monkeypatch.setattr(uploads, "RESERVED_BYTES", 2**80)
    assert not has_room(small, 1), "the disk keeps some room"


def test_what_others_upload_at_this_moment_counts_as_what_it_may_become(small: Uploads) -> None:
    with rights.acting_as(ANN), small.make_upload_folder(50) as place:
        (place / "begun").write_bytes(bytes(30))
        with rights.acting_as(BOB):
            assert has_room(small, 50) and not has_room(small, 51)
        assert has_room(small, 10) and not has_room(small, 11)


def test_of_many_that_begin_at_once_only_as_many_pass_as_there_is_room_for(small: Uploads) -> None:
    together = threading.Barrier(len(CLASS))

    def upload(person: Person) -> bool:
        with rights.acting_as(person):
            together.wait(60)
            try:
                arrive(small, words=bytes(30))
            except NoRoomError:
                return False
            return True

    with ThreadPoolExecutor(len(CLASS)) as threads:
        assert sum(threads.map(upload, CLASS)) == 3
