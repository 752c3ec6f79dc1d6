"""Untrusted files and paths are rejected with a clear message, without blocking or exhausting memory."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.own_files import fault, faults, make_images, own, write
from trainers.data.dataset import DataOptions
from trainers.data.own import cache, processes, table_file, table_plan
from trainers.data.own.dataset import Own
from trainers.data.own.problems import DataError


def test_pipe_socket_and_devices_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    assert "neither a file nor a folder" in fault(tmp_path / "pipe.csv").message
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        assert "neither a file nor a folder" in fault(tmp_path / "s").message
    for device in ("/dev/zero", "/dev/random"):
        assert "neither a file nor a folder" in fault(Path(device)).message


def test_a_mistyped_path_is_answered_with_what_has_nearly_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "Work").mkdir()
    meant = write(tmp_path / "Work" / "my petals.csv", "a,b", "1,2")
    misspelt = ("Work/my-petals.csv", "Work/MY PETALS.CSV", "work/my petals.csv", "Wrk/my petals.csv")
    for wrong in (*misspelt, "Work/my%20petals.csv", "Work/my\\ petals.csv"):
        found = fault(tmp_path / wrong)
        assert "nothing at this path" in found.message and "Did you mean" in found.hint
        assert found.suggested == {"data_path": str(meant)}
    unlike = fault(tmp_path / "Work" / "holiday.zip")
    assert unlike.suggested == {} and f"What is there: {tmp_path / 'Work'}." in unlike.hint


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/kmsg"])
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


def test_many_columns_and_long_class_names_are_refused_and_long_column_names_are_shortened(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "wide.csv", ",".join(f"c{n}" for n in range(table_file.MAX_COLUMNS + 1)), "1")
    assert f"{table_file.MAX_COLUMNS + 1:,} columns" in fault(path).message
    path = write(tmp_path / "class.csv", "a,label", *[f"{n / 7},{'xy'[n % 2] * 1000}" for n in range(20)])
    assert f"{table_plan.MAX_CLASS_NAME} are the most" in fault(path).message
    path = write(tmp_path / "name.csv", f"a,{'b' * 500_000},label", *["1,2,x", "2,3,y"] * 9)
    assert [len(name) for name in own(path).spec().feature_names] == [1, 200]


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


def test_look_that_takes_too_much_memory_or_too_long_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match="more than 0 GB of memory"),
        processes.bounded("data.csv", seconds=60, memory_bytes=100 * 2**20),
    ):
        bytearray(2**30)
    assert len(bytearray(2**30)) == 2**30, "only within"
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


def test_image_of_endless_passes_is_refused(tmp_path: Path) -> None:
    from PIL import Image

    root = make_images(tmp_path / "pets", {"a": 5, "b": 5})
    path = root / "a" / "passes.jpg"
    Image.new("RGB", (32, 32), (9, 99, 9)).save(path, progressive=True)
    raw = path.read_bytes()
    last_scan = raw[raw.rfind(b"\xff\xda") : -2]
    path.write_bytes(raw[:-2] + last_scan * 600 + raw[-2:])
    assert "passes; 500 are the most" in fault(root).message


def test_cache_gives_up_what_was_unused_longest_when_it_is_too_large(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
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
