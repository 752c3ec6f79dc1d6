"""Untrusted files and paths are rejected with a clear message, without blocking or exhausting memory."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.own_files import (
    fault,
    faults,
    make_images,
    notes,
    own,
    own_cache,  # noqa: F401 - a fixture
    write,
)
from trainers.data.dataset import DataOptions
from trainers.data.own import cache, features, processes, table_file, table_plan
from trainers.data.own.cache import META
from trainers.data.own.dataset import Own
from trainers.data.own.problems import DataError
from trainers.data.own.table import TableData


def test_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    assert "neither a file nor a folder" in fault(tmp_path / "pipe.csv").message


def test_socket_and_devices_are_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        assert "neither a file nor a folder" in fault(tmp_path / "s").message
    for device in ("/dev/zero", "/dev/random"):
        assert "neither a file nor a folder" in fault(Path(device)).message


def test_a_mistyped_path_is_answered_with_what_has_nearly_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "Work").mkdir()
    meant = write(tmp_path / "Work" / "my_petals.csv", "a,b", "1,2")
    for wrong in ("Work/my-petals.csv", "Work/MY_PETALS.CSV", "work/my_petals.csv", "Wrk/my_petals.csv"):
        found = fault(tmp_path / wrong)
        assert "nothing at this path" in found.message and "Did you mean" in found.hint
        assert found.suggested == {"data_path": str(meant)}
    unlike = fault(tmp_path / "Work" / "holiday.zip")
    assert unlike.suggested == {} and f"What is there: {tmp_path / 'Work'}." in unlike.hint


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/self/maps", "/proc/kmsg"])
def test_what_the_system_makes_up_is_refused(path: str) -> None:
    # Without read permission the message says so; in both cases no content is shown.
    message = fault(Path(path), task="language_modelling").message
    assert "is empty" in message or "cannot be read" in message


def test_links_in_circles_and_long_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "cannot be read" in fault(tmp_path / "a").message
    assert "cannot be read" in fault(tmp_path / ("x" * 300)).message
    with pytest.raises(DataError, match="nothing at this path"):
        Own(DataOptions(path="~no-such-user/data.csv")).spec()


def test_deep_folders_are_refused(tmp_path: Path) -> None:
    root = make_images(tmp_path / "pets", {"a": 5, "b": 5})
    (root / "/".join(["d"] * (processes.MAX_DEPTH + 2))).mkdir(parents=True)
    found = faults(root)
    assert any("cannot be opened" in problem.message for problem in found)


def test_folder_may_be_deeper_than_python_can_recurse(tmp_path: Path) -> None:
    root = make_images(tmp_path / "pets", {"a": 5, "b": 5})
    place = os.open(root, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=place)
        place, before = os.open("d", os.O_RDONLY, dir_fd=place), place
        os.close(before)
    os.close(place)
    try:
        assert own(root).fingerprint
        assert any("cannot be opened" in problem.message for problem in faults(root))
    finally:
        subprocess.run(["rm", "-rf", root], check=True)  # pytest's recursive cleanup would fail here


def test_pipe_among_images_is_not_waited_for(tmp_path: Path) -> None:
    root = make_images(tmp_path / "pets", {"a": 5, "b": 5})
    os.mkfifo(root / "a" / "pipe.png")
    (root / "b" / "made-up.png").symlink_to("/proc/self/environ")
    said = {problem.where: problem.message for problem in faults(root)}
    assert "not a plain file" in said["a/pipe.png"] and "it is empty" in said["b/made-up.png"]


def test_many_columns_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "wide.csv", ",".join(f"c{n}" for n in range(table_file.MAX_COLUMNS + 1)), "1")
    assert f"{table_file.MAX_COLUMNS + 1:,} columns" in fault(path).message


def test_long_column_name_is_shortened(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", f"a,{'b' * 500_000},label", *["1,2,x", "2,3,y"] * 9)
    assert [len(name) for name in own(path).spec().feature_names] == [1, 200]


def test_long_class_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,label", *[f"{n / 7},{'xy'[n % 2] * 1000}" for n in range(20)])
    assert f"{table_plan.MAX_CLASS_NAME} are the most" in fault(path).message


def test_line_ends_of_an_old_mac_are_line_ends(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,label\r" + b"1.5,x\r2.5,y\r" * 9)
    assert own(tmp_path / "t.csv").spec().num_train == 14


def test_open_quote_is_named_with_the_lines_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "MAX_ROW_BYTES", 5_000)
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 2000 + '1,"' + "x\n" * 20_000)
    problem = fault(path)
    assert problem.line == 2002 and problem.num_to_leave_out == 20_000
    assert (
        problem.message == "a quote that opens here is never closed: 20,000 lines from here on are one cell."
    )


@pytest.mark.parametrize("kind", ["never closed", "held together"])
def test_open_quote_is_found_before_duckdb_reads_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # DuckDB takes minutes for 200 MB of such rows.
    monkeypatch.setattr(table_file, "MAX_ROW_LINES", 1_000)
    path = tmp_path / "t.csv"
    rest = '1,"x\n' + "y\n" * 20_000 if kind == "never closed" else '"x\n",' * 20_000
    path.write_text("a,b\n" + "1.5,x\n2.5,y\n" * 50 + rest)
    loaded: list[int] = []
    load = table_file.Table._load

    def spied(table: table_file.Table, *arguments: Any) -> None:
        loaded.append((table._place / table_file.ROWS).stat().st_size)
        load(table, *arguments)

    monkeypatch.setattr(table_file.Table, "_load", spied)
    problem = fault(path)
    assert problem.line == 102 and "a quote that opens here is never closed: 20,00" in problem.message
    assert problem.num_to_leave_out in (20_000, 20_001) and max(loaded) < 1_500
    assert own(path, skip_unreadable=True).spec().num_train == 80, "the rows above can be used"


def test_long_cells_are_taken_in_few_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "CHARACTERS_AT_ONCE", 10_000)
    path = write(tmp_path / "t.csv", "text,label", *[f"{'word ' * 200}{n},{'xy'[n % 2]}" for n in range(100)])
    data = own(path)
    assert isinstance(data.kind, TableData)
    look = data.kind.inspect(data.problems)
    assert look.plan is not None
    pieces = list(features.chunks(look.table, look.plan, ["c0"]))
    assert (
        max(len(targets) for _, targets in pieces) < 15 and sum(len(targets) for _, targets in pieces) == 100
    )


def test_numbers_nobody_means_are_no_numbers(tmp_path: Path) -> None:
    odd = ["1e999", "-inf", "0x10", "１２３", "1_000", "nan(1)"]
    path = write(
        tmp_path / "t.csv", "a,label", *[f"{n}.5,{n / 7}" for n in range(60)], *[f"{x},1" for x in odd]
    )
    too_large, others = faults(path)
    assert "2 of its numbers are too large" in too_large.message
    assert f"{len(odd) - 3} are not" in others.message, "full-width digits are digits"


def test_names_cannot_move_what_is_beside_them(tmp_path: Path) -> None:
    root = make_images(tmp_path / "pets", {"a": 5, "b\x1b[31m\u202e": 1})
    for problem in faults(root):
        assert str(problem).isprintable(), problem


def test_look_of_too_much_memory_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match="more than 0 GB of memory"),
        processes.bounded("data.csv", seconds=60, memory_bytes=100 * 2**20),
    ):
        bytearray(2**30)
    assert len(bytearray(2**30)) == 2**30, "only within"


def test_look_that_takes_too_long_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,label", *["1.5,x", "2.5,y"] * 50)
    with pytest.raises(DataError, match="took more than"), processes.bounded(str(path), seconds=-1):
        own(path).spec()
    assert own(path).spec().num_train == 80


def test_data_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,label", *["1.5,x", "2.5,y"] * 50)
    data = own(path)
    look = data.kind.inspect(data.problems)
    assert data.fingerprint
    write(path, "a,label", "1,x")
    with pytest.raises(DataError, match="changed while it was read"):
        data.prepare_from(look)


def test_table_in_which_a_zip_lies_is_a_table(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,label", *["1.5,x", "2.5,y"] * 50)
    path.write_bytes(path.read_bytes() + b"PK\x05\x06" + bytes(18))
    assert "zero bytes" in fault(path).message


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(("width", "height"), [(0, 5), (5, 0), (100_000, 100_000), (2**31 - 1, 1)])
def test_images_of_no_size_or_far_too_large_are_refused(tmp_path: Path, width: int, height: int) -> None:
    root = make_images(tmp_path / "pets", {"a": 5, "b": 5})
    (root / "a" / "odd.png").write_bytes(_png(width, height))
    assert fault(root).where == "a/odd.png"
    assert "a/odd.png" in [note.where for note in notes(root, skip_unreadable=True)]


def test_image_of_endless_passes_is_refused(tmp_path: Path) -> None:
    from PIL import Image

    root = make_images(tmp_path / "pets", {"a": 5, "b": 5})
    path = root / "a" / "passes.jpg"
    Image.new("RGB", (32, 32), (9, 99, 9)).save(path, progressive=True)
    raw = path.read_bytes()
    last_scan = raw[raw.rfind(b"\xff\xda") : -2]
    path.write_bytes(raw[:-2] + last_scan * 600 + raw[-2:])
    assert "passes; 500 are the most" in fault(root).message


@pytest.mark.parametrize(
    "content", [b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe EPSF", b"%PDF-1.4"]
)
def test_other_kinds_in_disguise_are_no_images(tmp_path: Path, content: bytes) -> None:
    root = make_images(tmp_path / "pets", {"a": 5, "b": 5})
    (root / "a" / "odd.png").write_bytes(content)
    assert "not an image, or of a kind that is not read" in fault(root).message


@pytest.mark.parametrize("change", ["pixels", "meta", "times", "kind of meta"])
def test_prepared_data_that_somebody_changed_is_made_anew(
    tmp_path: Path,
    own_cache: Path,  # noqa: F811
    change: str,
) -> None:
    data = own(make_images(tmp_path / "pets", {"a": 5, "b": 5}))
    spec = data.spec()
    folder = own_cache / data.fingerprint
    if change == "pixels":
        raw = bytearray((folder / "images.bin").read_bytes())
        raw[0] ^= 1
        (folder / "images.bin").write_bytes(raw)
    elif change == "meta":
        (folder / META).write_text((folder / META).read_text().replace('"a"', '"z"'))
    elif change == "times":
        os.utime(folder / "labels.bin", ns=(1, 1))
    else:
        (folder / META).write_text("[" * 100_000)
    assert cache.find(data.fingerprint) is None
    assert own(tmp_path / "pets").spec() == spec


def test_what_killed_processes_had_half_made_is_taken_away(tmp_path: Path, own_cache: Path) -> None:  # noqa: F811
    (own_cache / "0123.making-x").mkdir()
    (own_cache / "0123.making-x" / "used").touch()
    (own_cache / "0123.making-x" / "images.bin").write_bytes(b"half")
    own(make_images(tmp_path / "pets", {"a": 5, "b": 5})).spec()
    assert not list(own_cache.glob("*.making-*"))


def test_cache_gives_up_what_was_unused_longest_when_it_is_too_large(
    tmp_path: Path,
    own_cache: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "MAX_BYTES", 10)
    first = own(make_images(tmp_path / "one", {"a": 5, "b": 5}))
    first.spec()
    second = own(make_images(tmp_path / "two", {"a": 5, "b": 5}))
    second.spec()
    assert cache.find(first.fingerprint) is not None, "used today"
    two_days_ago = cache.time.time() - 2 * 86_400
    os.utime(own_cache / first.fingerprint / "used", (two_days_ago, two_days_ago))
    own(make_images(tmp_path / "three", {"a": 5, "b": 5})).spec()
    assert cache.find(first.fingerprint) is None and cache.find(second.fingerprint) is not None
