"""Archives with path traversal, false sizes, unbounded growth or unusual names."""

from __future__ import annotations

import io
import stat
import struct
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tests.hostile_data.attack import Attack, Maker, with_bytes

GIGA = 10**9


def attacks() -> list[Attack]:
    """Return the attacks by archives."""
    return [
        *(Attack(name=f"zip: {about}", make=_with(name)) for about, name in NAMES.items()),
        Attack(name="zip: link to /etc/passwd", make=_with("a/1.png", b"/etc/passwd", mode=stat.S_IFLNK)),
        Attack(name="zip: device", make=_with("a/1.png", mode=stat.S_IFBLK)),
        Attack(name="zip: encrypted file", make=_patched(lambda raw: _flagged(raw, 1))),
        Attack(name="zip: packed with LZMA", make=_with("a/1.png", kind=zipfile.ZIP_LZMA)),
        Attack(name="zip: 1 GB of zeros in 1 MB", make=_with("a/0.png", bytes(GIGA))),
        Attack(name="zip: says 100 bytes, is 1 GB", make=_lying_size),
        Attack(name="zip: 50,000 files over the same bytes", make=_overlapping),
        Attack(name="zip: zips in a zip (42.zip)", make=_nested),
        Attack(name="zip: a million empty files", make=_empty_files),
        Attack(name="zip: the same name twice", make=_twice),
        Attack(name="zip: classes of the same look (Unicode)", make=_same_look, is_refused=False),
        Attack(name="zip: classes A and a", make=_classes("A", "a"), is_refused=False),
        Attack(name="zip: names that are no UTF-8", make=_classes("caf\u00e9", "th\u00e9"), is_refused=False),
        Attack(name="zip: 1,000 names of 32,000 folders each", make=_deep_names),
        Attack(name="zip: cut off", make=_patched(lambda raw: raw[: len(raw) // 2])),
        Attack(name="zip: damaged list of files", make=_patched(_damaged)),
        Attack(name="zip: zip64 of 2^60 files", make=_patched(_zip64)),
        Attack(name="zip: behind a shell script", make=_patched(lambda raw: b"#!/bin/sh\n" + raw)),
        Attack(name="tar", make=with_bytes("data.tar", bytes(10_240))),
        Attack(name="zip: all zeros", make=with_bytes("data.zip", bytes(10_240))),
    ]


NAMES = {
    "../": "../../evil.png",
    "..\\": "..\\..\\evil.png",
    "absolute path": "/etc/evil.png",
    "drive letter": "C:\\evil.png",
    "name of 60,000 characters": "a/" + "x" * 60_000 + ".png",
}


def _image(number: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (number * 9 % 256, 99, 9)).save(file, "PNG")
    return file.getvalue()


def _good(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names or ("a", "b"):
            for number in range(10):
                archive.writestr(f"{name}/{number}.png", _image(number))
    return path


def _classes(*names: str) -> Maker:
    return lambda folder: _good(folder / "data.zip", *names)


def _with(name: str, content: bytes = b"x", *, mode: int = 0, kind: int = zipfile.ZIP_DEFLATED) -> Maker:
    def make(folder: Path) -> Path:
        path = _good(folder / "data.zip", "p", "q")
        info = zipfile.ZipInfo(name)
        info.external_attr, info.compress_type = (mode | 0o644) << 16, kind
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(info, content)
        return path

    return make


def _patched(change: Callable[[bytes], bytes]) -> Maker:
    def make(folder: Path) -> Path:
        path = _good(folder / "data.zip")
        path.write_bytes(change(path.read_bytes()))
        return path

    return make


def _flagged(raw: bytes, flag: int) -> bytes:
    at = raw.find(b"PK\x01\x02") + 8
    return raw[:at] + bytes([raw[at] | flag]) + raw[at + 1 :]


def _damaged(raw: bytes) -> bytes:
    at = raw.find(b"PK\x01\x02")
    return raw[: at + 20] + b"\xff" * 40 + raw[at + 60 :]


def _zip64(raw: bytes) -> bytes:
    end = raw.rfind(b"PK\x05\x06")
    huge = 2**60
    record = struct.pack("<4sQHHLLQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, huge, huge, huge, 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    last = struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return raw[:end] + record + locator + last


def _lying_size(folder: Path) -> Path:
    path = _with("a/0.png", bytes(GIGA))(folder)
    path.write_bytes(path.read_bytes().replace(struct.pack("<L", GIGA), struct.pack("<L", 100)))
    return path


def _overlapping(folder: Path) -> Path:
    path = folder / "data.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/0.png", bytes(10_000_000))
        first = archive.infolist()[0]
        for number in range(1, 50_000):
            again = zipfile.ZipInfo(f"{'ab'[number % 2]}/{number}.png")
            again.header_offset, again.CRC, again.compress_type = first.header_offset, first.CRC, 8
            again.file_size, again.compress_size = first.file_size, first.compress_size
            archive.filelist.append(again)
    return path


def _nested(folder: Path) -> Path:
    content = bytes(10_000_000)
    for depth in range(5):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(16):
                archive.writestr(f"{depth}-{number}.zip" if depth else f"{number}.png", content)
        content = file.getvalue()
    (folder / "data.zip").write_bytes(content)
    return folder / "data.zip"


def _empty_files(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "data.zip", "w") as archive:
        for number in range(1_000_000):
            archive.writestr(zipfile.ZipInfo(f"{'ab'[number % 2]}/{number:07}.png"), b"")
    return folder / "data.zip"


def _twice(folder: Path) -> Path:
    path = _good(folder / "data.zip")
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"a/1.png", b"a/2.png"))
    return path


def _same_look(folder: Path) -> Path:
    return _good(folder / "data.zip", "\u00e9", unicodedata.normalize("NFD", "\u00e9"))


def _deep_names(folder: Path) -> Path:
    path = folder / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(1_000):
            archive.writestr(zipfile.ZipInfo("d/" * 32_000 + f"{number}.png"), b"x")
    return path
