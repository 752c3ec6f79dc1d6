"""Tests of the end of a watched script."""

from __future__ import annotations

import signal

import pytest

from trainers.watch import session


def test_a_script_s_own_handler_gets_its_signal_after_the_last_records_are_written() -> None:
    written: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: written.append("the script's handler"))
    try:
        with session.defer_signals():
            signal.raise_signal(signal.SIGTERM)
            written.append("the last records")
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert written == ["the last records", "the script's handler", "the script's handler"]


def test_an_interrupt_does_not_keep_the_script_from_its_termination() -> None:
    written: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: written.append("the script's handler"))
    # A program that a shell starts in the background ignores interrupts.
    interrupt_before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def end() -> None:
        with session.defer_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)

    try:
        with pytest.raises(KeyboardInterrupt):
            end()
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt_before)
    assert written == ["the script's handler"]
