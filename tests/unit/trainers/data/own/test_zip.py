"""Untrusted zip files are read in place, and rejected entirely if any entry is invalid."""

from __future__ import annotations

import io
import stat
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from tests.unit.own_files import (
    fault,
    faults,
    make_images,
    make_zip,
    own,
    own_cache,  # noqa: F401 - a fixture
)
from trainers.data.own import image_files
from trainers.data.own.image_files import ZipSource
from trainers.data.own.problems import Problems


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Return a valid zip, to which tests add entries."""
    return make_zip(tmp_path / "pets.zip", make_images(tmp_path / "pets", {"a": 10, "b": 10}))


def add(path: Path, name: str, content: bytes = b"x", *, mode: int = 0, compress: bool = False) -> None:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    info.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(info, content)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../../evil.png", "leads out of the zip"),
        ("a/../../evil.png", "leads out of the zip"),
        ("..\\evil.png", "leads out of the zip"),
        ("/etc/evil.png", "leads out of the zip"),
        ("C:/evil.png", "leads out of the zip"),
        ("a/" * 40 + "deep.png", "more than 1,024 characters or 32 folders"),
        ("a/" + "x" * 2000 + ".png", "more than 1,024 characters or 32 folders"),
    ],
)
def test_bad_names_are_refused(pets: Path, name: str, words: str) -> None:
    before = set(pets.parent.rglob("*"))
    add(pets, name)
    assert words in fault(pets).message
    assert words in fault(pets, skip_unreadable=True).message, "not to be skipped"
    assert set(pets.parent.rglob("*")) == before, "nothing was unpacked"


def test_links_are_never_followed(pets: Path) -> None:
    add(pets, "a/link.png", b"/etc/passwd", mode=stat.S_IFLNK | 0o777)
    assert fault(pets).where == "a/link.png" and "not an image" in fault(pets).message


def test_archives_in_a_zip_are_named(tmp_path: Path) -> None:
    add(tmp_path / "outer.zip", "train.zip", b"PK\x03\x04")
    assert fault(tmp_path / "outer.zip").message == "it is compressed twice."
    add(tmp_path / "outer.zip", "test.zip", b"PK\x03\x04")
    found = fault(tmp_path / "outer.zip")
    assert "there is no image in it, but 'test.zip', 'train.zip'" in found.message
    assert found.hint.startswith("Unpack what is in it.")


def test_encrypted_member_is_refused(pets: Path) -> None:
    raw = bytearray(pets.read_bytes())
    at = raw.find(b"PK\x01\x02")
    raw[at + 8] |= 1  # the encryption flag of the first directory entry
    pets.write_bytes(raw)
    assert "is encrypted" in fault(pets).message


def test_bomb_is_refused_before_it_is_unpacked(pets: Path) -> None:
    add(pets, "a/bomb.png", bytes(image_files.RATIO_MATTERS_FROM + 1), compress=True)
    assert "-fold when unpacked" in fault(pets).message


def test_too_large_in_all_is_refused(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "MAX_UNPACKED_BYTES", 100)
    assert "when unpacked; at most" in fault(pets).message
    monkeypatch.undo()
    monkeypatch.setattr(image_files, "MAX_FILES", 5)
    assert "at most 5 are allowed" in faults(pets)[0].message


def test_member_that_lies_about_its_content_is_unreadable(pets: Path) -> None:
    raw = bytearray(pets.read_bytes())
    at = raw.find(b"IDAT")
    raw[at + 8] ^= 0xFF  # corrupts the first image, so that its checksum does not match
    pets.write_bytes(raw)
    problem = fault(pets)
    assert problem.where == "a/000.png" and "CRC" in problem.message


def test_what_is_no_zip_is_said_so(tmp_path: Path, pets: Path) -> None:
    (tmp_path / "no.zip").write_bytes(b"PK\x03\x04 and nothing")
    assert "cannot be opened" in fault(tmp_path / "no.zip").message
    pets.write_bytes(pets.read_bytes()[:-40])
    assert "cannot be opened" in fault(pets).message


def test_zip_by_another_name_is_read(pets: Path) -> None:
    renamed = pets.rename(pets.with_suffix(".upload"))
    assert own(renamed).spec().num_train == 16


def test_names_with_backslashes_are_folders(tmp_path: Path) -> None:
    root = make_images(tmp_path / "d", {"a": 3, "b": 3})
    with zipfile.ZipFile(tmp_path / "w.zip", "w") as archive:
        for file in sorted(root.rglob("*.png")):
            info = zipfile.ZipInfo("x")
            info.filename = str(file.relative_to(tmp_path)).replace("/", "\\")
            archive.writestr(info, file.read_bytes())
    assert b"d\\a\\000.png" in (tmp_path / "w.zip").read_bytes()
    assert own(tmp_path / "w.zip").spec().class_names == ("a", "b")


def test_same_name_twice_is_a_fault(pets: Path) -> None:
    content = io.BytesIO(b"x").getvalue()
    with pytest.warns(UserWarning, match="Duplicate"):
        add(pets, "a/000.png", content)
    assert "twice" in fault(pets).message


def test_file_that_is_larger_than_it_says_is_not_unpacked_whole(pets: Path) -> None:
    add(pets, "a/lies.png", bytes(50_000_000), compress=True)
    raw = pets.read_bytes()
    # Both headers claim 100 bytes; the data decompresses to 50 million.
    pets.write_bytes(raw.replace((50_000_000).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    source = ZipSource(pets, Problems())
    tracemalloc.start()
    with pytest.raises(zipfile.BadZipFile, match="CRC"):
        source.open("a/lies.png")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_files_that_lie_over_each_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "overlap.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/1.png", b"x" * 1000)
        first = archive.infolist()[0]
        for number in range(2, 5):  # further entries for the same bytes, under other names
            again = zipfile.ZipInfo(f"a/{number}.png")
            again.header_offset, again.CRC = first.header_offset, first.CRC
            again.file_size, again.compress_size = first.file_size, first.compress_size
            archive.filelist.append(again)
    assert any("File name in directory" in problem.message for problem in faults(path))


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_cannot_be_bounded_are_refused(pets: Path, kind: int) -> None:
    info = zipfile.ZipInfo("a/packed.png")
    info.compress_type = kind
    with zipfile.ZipFile(pets, "a") as archive:
        archive.writestr(info, b"x")
    assert "is not compressed with deflate" in fault(pets).message


def test_zip_behind_something_else_is_refused(pets: Path) -> None:
    pets.write_bytes(b"#!/bin/sh\n" + pets.read_bytes())
    assert "does not begin like a zip" in fault(pets).message
