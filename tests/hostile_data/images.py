"""Images that are larger than they claim, never end or are not images; and unusual valid ones."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tests.hostile_data.attack import Attack, Maker

Content = bytes | Callable[[], bytes]


def attacks() -> list[Attack]:
    """Return the attacks by images, each among valid ones in class folders."""
    return [
        *(Attack(name=f"image: {name}", make=_among(content)) for name, content in REFUSED.items()),
        *(
            Attack(name=f"image: {name}", make=_among(content), is_refused=False)
            for name, content in READ.items()
        ),
        Attack(name="image: 5,000 broken ones", make=_among(os.urandom(300), count=5_000)),
        Attack(name="image: 20 of 79 million pixels", make=_among(_large, count=20), is_refused=False),
    ]


def png(width: int, height: int, *, before: bytes = b"", pixels: bytes = b"") -> bytes:
    """Return a PNG that claims this size; `before` are chunks before its pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = header + before + chunk(b"IDAT", zlib.compress(pixels))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def chunk(kind: bytes, body: bytes) -> bytes:
    """Return one chunk of a PNG."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _saved(mode: str, kind: str, size: tuple[int, int] = (16, 16), **options: object) -> Content:
    def make() -> bytes:
        file = io.BytesIO()
        Image.new(mode, size, 1 if mode in ("1", "L", "P", "I;16") else None).save(file, kind, **options)
        return file.getvalue()

    return make


def _gif(width: int, height: int) -> bytes:
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\x00\x00\x00\xff\xff\xff"
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\x00;"
    return b"GIF89a" + screen + frame


def _bmp(width: int, height: int) -> bytes:
    about = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + about


def _tiff(width: int, height: int, *, next_directory: int = 0) -> bytes:
    tags = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8)]
    tags += [(277, 3, 1), (278, 4, height), (279, 4, 100)]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", next_directory)


def _webp(width: int, height: int) -> bytes:
    frame = b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + bytes(60)
    body = b"WEBPVP8L" + struct.pack("<I", len(frame)) + frame
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _jpeg(width: int, height: int) -> bytes:
    raw = bytearray(_saved("RGB", "JPEG")())  # type: ignore[operator]
    at = raw.find(b"\xff\xc0") + 5
    raw[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(raw)


def _passes() -> bytes:
    raw: bytes = _saved("RGB", "JPEG", (4000, 4000), progressive=True)()  # type: ignore[operator]
    last_scan = raw[raw.rfind(b"\xff\xda") : -2]
    return raw[:-2] + last_scan * 20_000 + raw[-2:]


def _frames() -> bytes:
    file = io.BytesIO()
    frames = [Image.new("L", (2000, 2000), number % 250) for number in range(100)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def _large() -> bytes:
    file = io.BytesIO()
    Image.new("RGBA", (8900, 8870), (9, 99, 9, 99)).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _cut() -> bytes:
    raw: bytes = _saved("RGB", "JPEG", (500, 500))()  # type: ignore[operator]
    return raw[: len(raw) // 2]


REFUSED: dict[str, Content] = {
    "PNG of 100,000 × 100,000": png(100_000, 100_000),
    "GIF of 65,535 × 65,535": _gif(65_535, 65_535),
    "BMP of 100,000 × 100,000": _bmp(100_000, 100_000),
    "TIFF of 100,000 × 100,000": _tiff(100_000, 100_000),
    "WebP of 16,383 × 16,383": _webp(16_383, 16_383),
    "JPEG of 65,500 × 65,500": lambda: _jpeg(65_500, 65_500),
    "PPM of 10^9 × 10^9": b"P6 1000000000 1000000000 255\n",
    "PNG of 0 × 5": png(0, 5),
    "BMP of 0 × 0": _bmp(0, 0),
    "PNG whose text unpacks to 1 GB": lambda: png(
        9, 9, before=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**9)))
    ),
    "JPEG of 20,000 passes": _passes,
    "cut off": _cut,
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    "HTML": b"<html><img src=x onerror=alert(1)></html>",
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%id) (w) file\n",
    "PDF": b"%PDF-1.4\n1 0 obj\n",
    "PSD": b"8BPS\0\1" + bytes(30),
    "ICO": lambda: _of("ICO"),
    "empty": b"",
}
READ: dict[str, Content] = {
    "PNG named .jpg": _saved("RGB", "PNG"),
    "TIFF whose list leads back to itself": _tiff(10, 10, next_directory=8) + bytes(100),
    "100 frames of 2,000 × 2,000": _frames,
    "1 × 1": _saved("RGB", "PNG", (1, 1)),
    "1 × 60,000": _saved("RGB", "PNG", (1, 60_000)),
    "CMYK": _saved("CMYK", "JPEG"),
    "16 bit": _saved("I;16", "PNG"),
    "palette": _saved("P", "GIF"),
    "see-through": _saved("RGBA", "PNG"),
    "lying on its side (EXIF)": lambda: _turned(),
}


def _of(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, kind)
    return file.getvalue()


def _turned() -> bytes:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (16, 12)).save(file, "JPEG", exif=exif)
    return file.getvalue()


def _among(content: Content, count: int = 1) -> Maker:
    def make(folder: Path) -> Path:
        raw = content if isinstance(content, bytes) else content()
        for name in ("a", "b"):
            (folder / name).mkdir()
            for number in range(10):
                Image.new("RGB", (16, 16), (9 * number, 9, 9)).save(folder / name / f"{number}.png")
        for number in range(count):
            (folder / "a" / f"odd-{number}.jpg").write_bytes(raw)
        return folder

    return make
