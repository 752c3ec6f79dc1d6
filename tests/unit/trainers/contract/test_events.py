"""Tests of the event file: numbering, partial lines, numbers without a JSON form, and full disks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.contract import events
from trainers.contract.events import EventFile


def note(text: str, time_unix_s: float = 1.0) -> tuple[float, str, dict[str, str]]:
    """Return one small event in the form that writers pass to the file."""
    return time_unix_s, "state", {"state": "running", "reason": text}


def test_fields_come_in_the_order_of_the_contract(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events.jsonl")
    file.append([note("a", 12.345678)])
    file.close()
    line = (tmp_path / "events.jsonl").read_text()
    assert line == '{"seq":0,"time_unix_s":12.3457,"kind":"state","state":"running","reason":"a"}\n'


@pytest.mark.parametrize("rest", [b"{", b'{"seq":2', b"\xff" * 200_000, b'{"a":"' + b"x" * 70_000])
def test_reopening_cuts_a_half_line_off_and_numbers_on(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    file.append([note("a"), note("b")])
    file.close()
    with path.open("ab") as damaged:
        damaged.write(rest)
    file = EventFile(path)
    file.append([note("c")])
    file.close()
    found, _ = events.read(path)
    assert [(event["seq"], event["reason"]) for event in found] == [(0, "a"), (1, "b"), (2, "c")]


def test_file_of_nothing_but_a_half_line_starts_from_zero(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"seq":0,"ti')
    file = EventFile(path)
    file.append([note("a")])
    file.close()
    assert [event["seq"] for event in events.read(path)[0]] == [0]


def test_lone_surrogate_from_a_strange_file_name_does_not_stop_the_writer(tmp_path: Path) -> None:
    text = os.fsdecode(b"/runs/\xff/x")
    file = EventFile(tmp_path / "events.jsonl")
    file.append([note(text)])
    file.close()
    # Other readers reject a lone surrogate, so it is replaced by U+FFFD.
    assert events.read(tmp_path / "events.jsonl")[0][0]["reason"] == "/runs/\ufffd/x"


WRITE_AGAINST_A_LIMIT = """
import resource, sys
from pathlib import Path
from trainers.contract.events import EventFile
path = Path(sys.argv[1])
file = EventFile(path)
def note(text): return (1.0, "state", {"state": "running", "reason": text})
file.append([note("before")])
whole = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 100, resource.RLIM_INFINITY))
try:
    file.append([note("lost " * 10)] * 5)
except OSError:
    assert path.stat().st_size == whole, "a part of the batch is in the file"
else:
    raise SystemExit("the write did not fail")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.append([note("after")])
file.close()
"""


def test_write_that_fails_leaves_all_or_nothing_and_no_gap(tmp_path: Path, repository: Path) -> None:
    """A file size limit truncates the write in the middle of a batch."""
    path = tmp_path / "events.jsonl"
    command = [sys.executable, "-c", WRITE_AGAINST_A_LIMIT, str(path)]
    ended = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert [(event["seq"], event["reason"]) for event in events.read(path)[0]] == [
        (0, "before"),
        (1, "after"),
    ]


def test_full_disk_leaves_whole_lines_that_are_never_taken_back_and_no_gap(small_disk: Path) -> None:
    """Complete lines stay in the file, because a page may have shown them.

    If not even one line fits, the append raises an error.
    """
    file = EventFile(small_disk / "events.jsonl")
    file.append([note("before")])
    ballast = small_disk / "ballast"
    free = os.statvfs(small_disk)
    ballast.write_bytes(b"x" * (free.f_bavail * free.f_frsize))
    long = [note(str(number) * 3000) for number in range(10)]
    kept = file.append(long)
    assert 0 < kept < 10, "what is left of a page of the disk holds one of them"
    shown = (small_disk / "events.jsonl").read_bytes()
    assert shown.endswith(b"\n")
    with pytest.raises(OSError, match="No space left"):
        file.append(long[kept:])
    assert (small_disk / "events.jsonl").read_bytes() == shown
    ballast.unlink()
    assert file.append(long[kept:]) == 10 - kept
    file.close()
    found, _ = events.read(small_disk / "events.jsonl")
    assert [event["seq"] for event in found] == list(range(11))
    assert (small_disk / "events.jsonl").read_bytes().startswith(shown)


def test_only_the_kinds_asked_for_are_read_whatever_words_others_hold(tmp_path: Path) -> None:
    file = events.EventFile(tmp_path / "events.jsonl")
    words = {"message": 'it says "kind":"state" itself', "hint": "", "code": "x", "rank": None}
    state = {"state": "running", "reason": ""}
    file.append([(1.0, "warning", {**words, "traceback": None}), (2.0, "state", state)])
    file.close()
    found, end = events.read(tmp_path / "events.jsonl", 0, ("state", "command"))
    assert [event["kind"] for event in found] == ["state"]
    assert end == (tmp_path / "events.jsonl").stat().st_size
