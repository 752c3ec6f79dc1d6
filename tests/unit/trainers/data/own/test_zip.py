"""Untrusted zip files are read in place, and rejected entirely if any entry is invalid."""

from __future__ import annotations

import stat
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.own_files import fault, faults, make_images, make_zip, own
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


def encrypt(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[raw.find(b"PK\x01\x02") + 8] |= 1  # the encryption flag of the first directory entry
    path.write_bytes(raw)


def pack(path: Path, kind: int) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a/packed.png", b"x", kind)


BOMB = bytes(image_files.RATIO_MATTERS_FROM + 1)
SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "link": (lambda path: add(path, "a/link.png", b"/etc/passwd", mode=stat.S_IFLNK | 0o777), "not an image"),
    "bomb": (lambda path: add(path, "a/bomb.png", BOMB, compress=True), "-fold when unpacked"),
    "encrypted": (encrypt, "is encrypted"),
    "bzip2": (lambda path: pack(path, zipfile.ZIP_BZIP2), "is not compressed with deflate"),
    "lzma": (lambda path: pack(path, zipfile.ZIP_LZMA), "is not compressed with deflate"),
    "one name twice": (lambda path: add(path, "a/000.png"), "twice"),
    "behind a script": (lambda path: path.write_bytes(b"#!\n" + path.read_bytes()), "begin like a zip"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-40]), "cannot be opened"),
    "no zip": (lambda path: path.write_bytes(b"PK\x03\x04 and nothing"), "cannot be opened"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("what", SPOILT)
def test_zip_with_one_bad_entry_is_refused(pets: Path, what: str) -> None:
    spoil, words = SPOILT[what]
    spoil(pets)
    assert words in fault(pets).message


def test_archives_in_a_zip_are_named(tmp_path: Path) -> None:
    add(tmp_path / "outer.zip", "train.zip", b"PK\x03\x04")
    assert fault(tmp_path / "outer.zip").message == "it is compressed twice."
    add(tmp_path / "outer.zip", "test.zip", b"PK\x03\x04")
    found = fault(tmp_path / "outer.zip")
    assert "there is no image in it, but 'test.zip', 'train.zip'" in found.message
    assert found.hint.startswith("Unpack what is in it.")


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


def test_names_with_backslashes_are_folders_and_any_suffix_will_do(tmp_path: Path) -> None:
    root = make_images(tmp_path / "d", {"a": 3, "b": 3})
    with zipfile.ZipFile(tmp_path / "w.zip", "w") as archive:
        for file in sorted(root.rglob("*.png")):
            info = zipfile.ZipInfo("x")
            info.filename = str(file.relative_to(tmp_path)).replace("/", "\\")
            archive.writestr(info, file.read_bytes())
    assert b"d\\a\\000.png" in (tmp_path / "w.zip").read_bytes()
    renamed = (tmp_path / "w.zip").rename(tmp_path / "w.upload")
    assert own(renamed).spec().class_names == ("a", "b")


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
