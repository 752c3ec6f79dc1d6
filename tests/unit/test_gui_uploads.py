"""Uploads: only what was uploaded is taken, under a name of ours, and what nobody takes is tidied away."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from ddp_gui import uploads


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return uploads.folder_beside(tmp_path / "runs")


@pytest.fixture
def incoming(folder: Path) -> Path:
    return uploads.make_incoming(folder)


@pytest.mark.parametrize(
    ("name", "kept"), [("my <b>photos.ZIP", "my-b-photos.zip"), ("...csv.csv", "csv.csv")]
)
def test_an_upload_gets_a_name_of_ours_and_never_replaces_another(
    folder: Path, incoming: Path, name: str, kept: str
) -> None:
    for number in range(2):
        source = incoming / name
        source.write_text(str(number))
        target = uploads.keep(str(source), incoming, folder)
        assert target.read_text() == str(number)
    assert (folder / kept).read_text() == "0"
    assert len([path for path in folder.iterdir() if path != incoming]) == 2
    assert list(incoming.iterdir()) == []


def test_an_upload_of_another_kind_is_refused(folder: Path, incoming: Path) -> None:
    (incoming / "a.exe").write_text("x")
    with pytest.raises(ValueError, match=r"kind \.exe cannot be used; one of \.zip"):
        uploads.keep(str(incoming / "a.exe"), incoming, folder)


def test_a_file_that_was_not_uploaded_stays_where_it_is(tmp_path: Path, folder: Path, incoming: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("not theirs")
    (incoming / "link.csv").symlink_to(other)
    (incoming / "folder.csv").mkdir()
    for path in (
        str(other),
        f"{incoming}/../../other.csv",
        f"{incoming}/link.csv",
        f"{incoming}/folder.csv",
        f"{incoming}/none.csv",
        "other.csv",
        "",
    ):
        with pytest.raises(ValueError, match="this file was not uploaded: choose it again"):
            uploads.keep(path, incoming, folder)
    assert other.read_text() == "not theirs"


def test_nobody_else_on_the_machine_reads_what_arrives(incoming: Path) -> None:
    assert stat.S_IMODE(incoming.stat().st_mode) == 0o700


def test_what_nobody_took_for_an_hour_is_deleted_and_the_rest_is_not(incoming: Path) -> None:
    old, young = incoming / "a" / "old.csv", incoming / "b" / "young.csv"
    for path in (old, young):
        path.parent.mkdir()
        path.write_text("x")
    before_unix_s = time.time() - uploads.FORGOTTEN_AFTER_S - 1
    os.utime(old, (before_unix_s, before_unix_s))
    uploads.tidy(incoming)
    assert not old.exists() and young.exists()
    uploads.tidy(incoming, time.time() + 2 * uploads.FORGOTTEN_AFTER_S)
    assert not young.exists()
    uploads.tidy(incoming, time.time() + 2 * uploads.FORGOTTEN_AFTER_S)
    assert list(incoming.iterdir()) == []


def test_there_is_room_for_so_much_and_no_more(
    folder: Path, incoming: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_KEPT_BYTES", 100)
    monkeypatch.setattr(uploads, "LEFT_FREE_BYTES", 0)
    (incoming / "a.csv").write_bytes(bytes(60))
    assert uploads.has_room(incoming, 40)
    assert not uploads.has_room(incoming, 41)
    (folder / "kept.csv").write_bytes(bytes(50))
    with pytest.raises(ValueError, match="there is no room for it"):
        uploads.keep(str(incoming / "a.csv"), incoming, folder)
    monkeypatch.setattr(uploads, "LEFT_FREE_BYTES", 2**80)
    assert not uploads.has_room(incoming, 1)
