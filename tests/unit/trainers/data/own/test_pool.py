"""Several processes read many images: the result is the same, and no process or file remains if one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.harness import wait_until
from tests.unit.own_files import make_image, make_images, make_zip, own
from trainers.data.own import image_files, processes

GONE_WITHIN_S = 60.0

# Prints the process ids of its workers, then runs until it is killed.
FOREVER = """
import os, time
from trainers.data.own import processes
processes.PROCESSES_FROM = 1
def work(*_):
    print(os.getpid(), file=open(os.environ["WORKERS"], "a"), flush=True)
    time.sleep(600)
list(processes.in_chunks(work, 8, 1))
"""


@pytest.fixture
def with_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use processes even for little data, as on a machine with two cores."""
    monkeypatch.setattr(processes, "PROCESSES_FROM", 1)
    monkeypatch.setattr(processes, "num_cores", lambda: 2)


@pytest.mark.parametrize("as_zip", [False, True])
def test_what_is_prepared_is_the_same(tmp_path: Path, as_zip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a zip, which all processes read through one open file, and of a broken image."""
    path = make_images(tmp_path / "pets", {"cats": 60, "dogs": 50})
    for number in range(20):
        make_image(path / "dogs" / f"large_{number}.png", (number, 7, 7), size=(300, 200))
    (path / "dogs" / "broken.png").write_bytes((path / "dogs" / "large_0.png").read_bytes()[:200])
    if as_zip:
        path = make_zip(tmp_path / "pets.zip", path)
    found = []
    for few in (1, 10_000):
        monkeypatch.setattr(processes, "PROCESSES_FROM", few)
        monkeypatch.setenv("TRAINERS_CACHE", str(tmp_path / "cache" / str(few)))
        data = own(path, skip_unreadable=True)
        data.spec()
        files = {file.name: file.read_bytes() for file in data.prepared.folder.glob("*.bin")}
        found.append((files, data.prepared.meta["mean"], [note.where for note in data.problems.shown]))
    assert found[0] == found[1]
    assert "images.bin" in found[0][0]
    assert any("broken.png" in name for name in found[0][2])


def test_process_that_crashes_is_told_in_words(
    tmp_path: Path, with_processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_images(tmp_path / "pets", {"cats": 10, "dogs": 10})

    def crash(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    monkeypatch.setattr(image_files, "_fitted", crash)
    there_before = set(psutil.Process().children())
    with pytest.raises(OSError, match="was ended by the system, or crashed"):
        own(path).spec()
    assert set(psutil.Process().children()) <= there_before, "nothing is left of the others"


@pytest.mark.slow
def test_workers_end_with_the_process_they_work_for(tmp_path: Path) -> None:
    """A parent that is killed by SIGKILL cannot notify its workers."""
    listed = tmp_path / "workers"
    parent = subprocess.Popen([sys.executable, "-c", FOREVER], env=os.environ | {"WORKERS": str(listed)})
    try:
        wait_until("the workers", lambda: listed.exists() and listed.read_text().count("\n") > 0, 60)
        workers = [psutil.Process(int(line)) for line in listed.read_text().split()]
    finally:
        parent.kill()
        parent.wait()
    _, left = psutil.wait_procs(workers, timeout=GONE_WITHIN_S)
    assert not left
