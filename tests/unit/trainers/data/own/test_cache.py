"""Tests of the cache of prepared data: reuse, invalidation, and one preparation for concurrent users."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.own_files import make_images, own, write
from trainers.data.own import cache
from trainers.data.own.cache import META
from trainers.data.own.images import Images
from trainers.data.own.problems import DataError

PREPARE = """
import sys
from trainers.data.dataset import DataOptions
from trainers.data.own.dataset import Own
from trainers.data.own.images import Images

plain = Images.prepare
def counted(self, *arguments):
    print("PREPARES", flush=True)
    return plain(self, *arguments)
Images.prepare = counted
print("ROWS", Own(DataOptions(path=sys.argv[1])).spec().num_train)
"""


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return make_images(tmp_path / "pets", {"cats": 12, "dogs": 12})


def test_second_time_no_work_is_done(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = own(pets).spec()

    def never(*arguments: object) -> None:
        raise AssertionError("it was prepared already")

    monkeypatch.setattr(Images, "inspect", never)
    monkeypatch.setattr(Images, "prepare", never)
    assert own(pets).spec() == first


@pytest.mark.parametrize("change", ["grows", "is touched", "is added", "is removed", "is renamed"])
def test_any_change_of_a_file_is_seen(pets: Path, change: str) -> None:
    before = own(pets).fingerprint
    path = pets / "cats" / "003.png"
    if change == "grows":
        about = path.stat()
        path.write_bytes(path.read_bytes() + b"x")
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    elif change == "is touched":
        os.utime(path, ns=(1, 1))
    elif change == "is added":
        (pets / "cats" / "more.png").write_bytes(b"")
    elif change == "is removed":
        path.unlink()
    else:
        path.rename(path.with_name("zzz.png"))
    assert own(pets).fingerprint != before


def test_options_that_matter_make_another_fingerprint(tmp_path: Path, pets: Path) -> None:
    assert own(pets).fingerprint != own(pets, skip_unreadable=True).fingerprint
    assert own(pets).fingerprint == own(pets, normalise=False).fingerprint, "applied when a batch is taken"
    table = write(tmp_path / "t.csv", "a,b", "1,x", "2,y")
    marks = {
        own(table, **options).fingerprint
        for options in ({}, {"label_column": "a"}, {"task": "tabular_regression"}, {"sequence_length": 9})
    }
    assert len(marks) == 4


def alter(path: Path, old: bytes, new: bytes) -> None:
    raw = path.read_bytes()
    assert old in raw
    path.write_bytes(raw.replace(old, new, 1))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no meta": lambda folder: (folder / META).unlink(),
    "half meta": lambda folder: (folder / META).write_text('{"arrays"'),
    "other meta": lambda folder: alter(folder / META, b"cats", b"rats"),
    "deep meta": lambda folder: (folder / META).write_text("[" * 100_000),
    "short array": lambda folder: os.truncate(folder / "images.bin", 100),
    "array gone": lambda folder: (folder / "labels.bin").unlink(),
    "other pixels": lambda folder: alter(folder / "images.bin", bytes([99]), bytes([98])),
    "other time": lambda folder: os.utime(folder / "labels.bin", ns=(1, 1)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_or_altered_data_is_made_anew(pets: Path, own_cache: Path, damage: str) -> None:
    data = own(pets)
    spec = data.spec()
    DAMAGE[damage](own_cache / data.fingerprint)
    assert cache.find(data.fingerprint) is None
    assert own(pets).spec() == spec and cache.find(data.fingerprint) is not None


def test_failure_leaves_nothing_behind(pets: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = own_cache / f"{own(pets).fingerprint}.making-killed"  # left by a killed process
    killed.mkdir()
    (killed / "used").touch()

    def full(self: object, look: object, folder: Path, problems: object) -> None:
        (folder / "images.bin").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Images, "prepare", full)
        with pytest.raises(DataError, match="the disk is full"):
            own(pets).spec()
    assert [path.name for path in own_cache.iterdir() if path.is_dir()] == []
    assert own(pets).spec().num_train == 20


KILLED = """
import sys, time
from trainers.data.dataset import DataOptions
from trainers.data.own.dataset import Own

data = Own(DataOptions(path=sys.argv[1]))
prepare = type(data.kind).prepare
def slowly(*arguments):
    prepare(*arguments)
    print("PREPARING", flush=True)
    time.sleep(600)
type(data.kind).prepare = slowly
data.spec()
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_table", [False, True])
def test_what_a_killed_rank_leaves_is_removed_by_the_next_preparation(
    pets: Path, tmp_path: Path, own_cache: Path, repository: Path, is_table: bool
) -> None:
    table = write(tmp_path / "t.csv", "a,label", *["1.5,x", "2.5,y"] * 50)
    command = [sys.executable, "-c", KILLED, str(table if is_table else pets)]
    with subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "PREPARING\n"
        own(make_images(tmp_path / "other", {"a": 3, "b": 3})).spec()
        assert len(list(own_cache.glob("*.making-*"))) == 1 + is_table, "a live one is left alone"
        process.kill()
    own(make_images(tmp_path / "third", {"a": 3, "b": 3})).spec()
    assert list(own_cache.glob("*.making-*")) == []


def test_too_little_space_is_said_before_anything_is_written(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 5})())
    with pytest.raises(DataError, match=r"0\.0 GB are free"):
        own(pets).spec()


@pytest.mark.slow
def test_two_processes_at_once_prepare_once(pets: Path, repository: Path) -> None:
    command = [sys.executable, "-c", PREPARE, str(pets)]
    both = [
        subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    words = "".join(output for output, _ in outputs)
    assert words.count("ROWS 20") == 2 and words.count("PREPARES") == 1, outputs


def test_what_nobody_used_for_long_is_removed(pets: Path, tmp_path: Path, own_cache: Path) -> None:
    old = own(pets)
    old.spec()
    month_ago = time.time() - (cache.UNUSED_DAYS + 1) * 86_400
    os.utime(own_cache / old.fingerprint / "used", (month_ago, month_ago))
    own(make_images(tmp_path / "other", {"a": 3, "b": 3})).spec()
    assert cache.find(old.fingerprint) is None
    again = own(pets)
    again.spec()
    os.utime(own_cache / again.fingerprint / "used", (month_ago, month_ago))
    own(pets).spec()  # updates the time of last use
    own(make_images(tmp_path / "third", {"a": 3, "b": 3})).spec()
    assert cache.find(again.fingerprint) is not None
