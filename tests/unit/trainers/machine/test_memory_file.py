"""Tests of memory files that the processes of a job share, and of samples stored in them."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from trainers.engines.local.torchrun import RendezvousFiles
from trainers.files.plain_files import map_file
from trainers.machine import facilities, host
from trainers.machine.host import MemoryFile
from trainers.report.telemetry import SLOT_BYTES, SharedSamples
from trainers.watch.settings import STORE

only_in_memory = pytest.mark.skipif(not facilities.has_memory_files(), reason="no memory files here")


@only_in_memory
def test_where_torchrun_and_its_ranks_meet_is_on_no_disk() -> None:
    first, second = RendezvousFiles(), RendezvousFiles()
    addresses = [*first.environment.values(), *second.environment.values()]
    assert set(first.environment) == {"PET_RDZV_ENDPOINT", STORE}
    inodes = {(about.st_dev, about.st_ino) for about in map(os.stat, addresses)}
    assert len(inodes) == 4, "new ones for each start"
    assert all(str(Path(address).readlink()).startswith("/memfd:") for address in addresses)
    first.close()
    assert [Path(address).exists() for address in addresses] == [False, False, True, True]
    second.close()


def test_where_a_system_has_none_it_is_a_file_of_its_owner_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(facilities.WITHOUT, "1")
    monkeypatch.setenv(host.RUN_FOLDER, str(tmp_path))
    one, two = MemoryFile("store", 8), MemoryFile("store", 8)
    assert one.address != two.address
    assert stat.S_IMODE(Path(one.address).stat().st_mode) == 0o600
    map_file(one.address)[:2] = b"ab"
    assert one.map()[:2] == b"ab"
    one.close()
    two.close()
    assert list(tmp_path.iterdir()) == []


def test_a_sample_is_never_seen_torn_and_one_that_does_not_fit_is_refused() -> None:
    file = MemoryFile("samples", 1 * SLOT_BYTES)
    board = SharedSamples(file.map())
    with pytest.raises(ValueError, match="does not fit"):
        board.write(0, "x" * SLOT_BYTES)
    reader, is_over = SharedSamples(map_file(file.address)), threading.Event()

    def write() -> None:
        for step in range(20_000):
            board.write(0, {"step": step, "again": [step] * (step % 200)})
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    steps = []
    while not is_over.is_set():
        for sample in reader.read():
            assert set(sample["again"]) <= {sample["step"]}
            steps.append(sample["step"])
    writer.join()
    assert reader.read()[0]["step"] == 19_999
    assert steps == sorted(steps)
    file.close()
