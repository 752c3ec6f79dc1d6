"""JSON files: reading is limited in size and time, writing is atomic."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from trainers.files.plain_files import descriptor_of_plain, open_plain
from trainers.files.private_files import open_own
from trainers.machine import os_errors

# Limits for a file or line that another user may have written, so that parsing, which holds the GIL, takes
# about 30 ms: bytes, lists and objects, and values (counted by commas).
MAX_JSON_BYTES = 4 * 2**20
MAX_JSON_LISTS = 20_000
MAX_JSON_VALUES = 100_000
# Maximum depth, because encoders refuse deeper values (orjson from 254 levels on).
MAX_JSON_DEPTH = 64
# Limit for a file that only this user or root can have written.
MAX_OWN_JSON_BYTES = 64 * 2**20
MAX_WHOLE_NUMBER = 2**63
# Matches candidates for half a surrogate pair, or an integer of more than 64 bits.
_ODD = re.compile(r"\\u[dD][89a-fA-F]|\d{19}")
_HALF = re.compile("[\ud800-\udfff]")


def read_json(path: Path, *, must_be_ours: bool = False, times: int = 1) -> Any:
    """Return the value of a JSON file.

    Args:
        must_be_ours: True if the content is trusted, not only displayed.
        times: factor for the limits.
    Raises:
        OSError: if it cannot be read.
        ForeignFileError: if `must_be_ours`, and another user owns it.
        ValueError: if it is not JSON, not a regular file, or above one of the limits (with `must_be_ours`,
            only bytes and depth are limited).
    """
    with open_own(path) if must_be_ours else open_plain(path) as file:
        most_bytes = MAX_OWN_JSON_BYTES if must_be_ours else times * MAX_JSON_BYTES
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"{path.name} is larger than {most_bytes // 2**20} MB")
    return _parsed(content) if must_be_ours else parse_json(content, times)


def parse_json(content: bytes | str, times: int = 1) -> Any:
    """Parse JSON into a value that every encoder accepts.

    Half a surrogate pair becomes U+FFFD, and an integer of more than 64 bits becomes a float.

    Raises:
        ValueError: if it is not JSON, or above one of the limits.
    """
    if is_too_large(content, times):
        raise ValueError(
            f"it is longer than {times * MAX_JSON_BYTES // 2**20} MB, or contains more than "
            f"{times * MAX_JSON_LISTS:,} lists and objects, or {times * MAX_JSON_VALUES:,} values"
        )
    return _parsed(content)


def is_too_large(content: bytes | str, times: int = 1) -> bool:
    """True if JSON text exceeds the limits, each multiplied by `times`; does not parse it."""
    if len(content) > times * MAX_JSON_BYTES:
        return True
    raw = content.encode("utf-8", errors="surrogatepass") if isinstance(content, str) else content
    if len(raw) <= MAX_JSON_LISTS:
        return False
    num_lists = raw.count(b"[") + raw.count(b"{")
    return num_lists > times * MAX_JSON_LISTS or raw.count(b",") > times * MAX_JSON_VALUES


def is_shallow(value: Any) -> bool:
    """True if lists and objects are nested at most `MAX_JSON_DEPTH` levels deep."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            item
            for each in level
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return True
    return False


def _parsed(content: bytes | str) -> Any:
    text = content if isinstance(content, str) else content.decode("utf-8")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("values are nested too deep") from error
    if not is_shallow(value):
        raise ValueError("values are nested too deep")
    return _passed_on(value) if _ODD.search(text) else value


def read_lines(file: BinaryIO, offset: int, most_bytes: int = MAX_JSON_BYTES) -> tuple[bytes, int]:
    """Return the complete lines of a file from byte `offset` on, and the offset for the next call.

    Reads at most `most_bytes`, or `MAX_JSON_BYTES` if a line is longer than that. An even longer line is
    skipped, so the offset may increase although no lines are returned.
    """
    file.seek(offset)
    chunk = file.read(most_bytes)
    end = chunk.rfind(b"\n") + 1
    if end == 0 and len(chunk) == most_bytes < MAX_JSON_BYTES:
        chunk += file.read(MAX_JSON_BYTES - most_bytes)
        end = chunk.find(b"\n") + 1
    if end == 0 and len(chunk) >= MAX_JSON_BYTES:
        return b"", offset + len(chunk)
    return chunk[:end], offset + end


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete JSON objects of a file, one per line; other lines are ignored.

    Raises:
        OSError: if it cannot be read.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    values = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            values.append(value)
    return values


def write_json_atomically(
    path: Path, value: Mapping[str, Any], *, mode: int = 0o666, indent: int | None = 2
) -> None:
    """Replace a JSON file atomically: a reader gets either the old or the new content.

    Raises:
        OSError: if it cannot be written; the old file then remains.
        TypeError: if the value cannot be written as JSON.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    # Create the file with its final mode, so that other users can never read private content.
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os_errors.about(aside), os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=indent)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    sync_directory(path.parent)


def overwrite_json(path: Path, value: Mapping[str, Any]) -> None:
    """Overwrite a JSON file in place. This works on a full disk, but a reader may get incomplete content. If
    the writer is killed, the file may be invalid.

    Raises:
        OSError: if it does not exist, or the disk has no space for longer content.
        TypeError: if the value cannot be written as JSON.
    """
    # Write no escapes, because a longer text does not fit on a full disk.
    text = json.dumps(value, indent=2, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
    with os.fdopen(descriptor_of_plain(path, os.O_RDWR), "r+b", buffering=0) as file:
        file.write(text.ljust(os.fstat(file.fileno()).st_size))
        file.truncate(len(text))


def remove_half_written(path: Path) -> None:
    """Remove temporary files of killed writers next to a file. No writer may be active."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make a rename in this directory durable, if the file system supports it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def _passed_on(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, int) and not -MAX_WHOLE_NUMBER <= value < MAX_WHOLE_NUMBER:
        return float(str(value))
    if isinstance(value, list):
        return [_passed_on(item) for item in value]
    if isinstance(value, dict):
        return {_passed_on(name): _passed_on(item) for name, item in value.items()}
    return value
