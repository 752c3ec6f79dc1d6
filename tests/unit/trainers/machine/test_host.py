"""Tests of the machine's cores and memory."""

from __future__ import annotations

import psutil

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
