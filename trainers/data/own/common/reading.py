"""Reads text files as UTF-8 in pieces, and says where and what it seems to be where it is not."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 4 * 2**20
MAX_LINE_BYTES = 16 * 2**20
MARKS = {  # byte order marks; the longer ones first
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class ReadingError(ValueError):
    """A text file cannot be read on; says at which line, why, and what to do."""

    def __init__(self, message: str, hint: str, line: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.line = line


def text_chunks(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[str]:
    """Yield a text in pieces of about `chunk_bytes`; a byte order mark at its start is left out.

    Raises:
        ReadingError: where it is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = num_lines = 0
    with _open(path) as file:
        while True:
            piece = file.read(chunk_bytes)
            waiting, _ = decoder.getstate()
            try:
                text = decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                whole = waiting + piece
                line = 1 + num_lines + whole.count(b"\n", 0, error.start)
                position = done - len(waiting) + error.start
                raise not_utf8(whole, error.start, position, line, is_end=not piece) from error
            done += len(piece)
            num_lines += piece.count(b"\n")
            if "\0" in text:
                raise ReadingError(
                    "there are zero bytes in it.", "It is no text file, or not UTF-8: save it as UTF-8.", None
                )
            if text:
                yield text
            if not piece:
                return


def text_lines(path: Path) -> Iterator[str]:
    """Yield a text line by line, line ends included.

    Raises:
        ReadingError: where it is not UTF-8, or a line has no end.
    """
    position = 0
    with _open(path) as file:
        for line in range(1, 2**63):
            raw = file.readline(MAX_LINE_BYTES)
            if not raw:
                return
            if len(raw) == MAX_LINE_BYTES:
                message = f"the line is longer than {MAX_LINE_BYTES // 2**20} MB."
                hint = "Lines must end in a line feed (LF or CR LF)."
                raise ReadingError(message, hint, line)
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(raw, error.start, position + error.start, line, is_end=False) from error
            if "\0" in text:
                raise ReadingError(
                    "there are zero bytes in the line.", "Save the file anew as UTF-8 text.", line
                )
            position += len(raw)
            yield text


def not_utf8(raw: bytes, at: int, position: int, line: int, *, is_end: bool) -> ReadingError:
    """Return the error for a byte that cannot be in UTF-8, with a guess at what the text is instead."""
    if is_end:
        message = f"the file ends in the middle of a character, at byte {position:,}."
        return ReadingError(message, "It seems to be cut off: copy it again.", line)
    message = f"it is not UTF-8: byte 0x{raw[at]:02X} at position {position:,} starts no character."
    if any(0x80 <= byte < 0xA0 for byte in raw):
        return ReadingError(message, _convert("Windows-1252", "cp1252"), line)
    return ReadingError(message, _convert("Latin-1", "latin1"), line)


def why_not_text(start: bytes) -> tuple[str, str] | None:
    """Return what is wrong with a file that starts so and what to do, or None where it may be UTF-8 text."""
    for mark, name in MARKS.items():
        if start.startswith(mark):
            return f"it is {name}, not UTF-8.", _convert(name, name)
    zeros = start.count(0)
    if zeros > 0.2 * len(start):
        even = start[::2].count(0)
        order = "UTF-16BE" if even > zeros - even else "UTF-16LE"
        return "it is not UTF-8: every second byte is zero.", _convert("UTF-16", order)
    if zeros:
        return "it is not a text file: there are zero bytes in it.", "Give a text in UTF-8."
    return None


def _convert(name: str, code: str) -> str:
    return f"It seems to be {name}: save it as UTF-8, or convert it with: iconv -f {code} -t utf-8 OLD > NEW."


def _open(path: Path) -> BinaryIO:
    """Open a file behind its byte order mark.

    Raises:
        ReadingError: when its start says that it is not UTF-8.
    """
    file = path.open("rb")
    start = file.read(4096)
    if (why := why_not_text(start)) is not None:
        file.close()
        raise ReadingError(why[0], why[1], 1)
    file.seek(len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0)
    return file
