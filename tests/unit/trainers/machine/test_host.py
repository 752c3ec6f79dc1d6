"""Tests of the machine's cores and memory."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import psutil

from trainers.machine import host
from trainers.machine.host import CoreReader


def core(user: float, idle: float, iowait: float = 0.0, guest: float = 0.0) -> tuple[float, ...]:
    """Return the times of one core as psutil's named tuple."""
    return type(psutil.cpu_times())(
        user=user, nice=0.0, system=0.0, idle=idle, iowait=iowait, irq=0.0, softirq=0.0, steal=0.0,
        guest=guest, guest_nice=0.0,
    )  # fmt: skip


def test_use_is_what_was_busy_of_the_time_since_the_last_look() -> None:
    looks = iter(
        [[core(10, 90), core(5, 5)], [core(11, 92), core(5, 7)], [core(11, 92, iowait=4), core(6, 7)]]
    )
    reader = CoreReader(lambda: next(looks))
    assert reader.read() == [33.3, 0.0], "the first read looks twice"
    assert reader.read() == [0.0, 100.0], "waiting for a disk is not busy"


def test_a_guests_time_counts_once() -> None:
    looks = iter([[core(10, 90, guest=10)], [core(12, 92, guest=12)]])
    assert CoreReader(lambda: next(looks)).read() == [50.0]


def test_every_thread_sees_the_same_clock() -> None:
    """psutil's cpu_percent returns 0 for the first call in each thread."""
    reader = CoreReader()
    reader.read()
    found: list[float] = []

    def work_and_read() -> None:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        found.extend(reader.read())

    thread = threading.Thread(target=work_and_read)
    thread.start()
    thread.join()
    assert len(found) == psutil.cpu_count()
    assert max(found) > 10


def test_memory_in_use_is_what_cannot_be_given_back(monkeypatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=100, available=70))
    assert host.memory_bytes() == (30, 100)
