"""Queries to a process that imports torch, which is slow right after an installation."""

from __future__ import annotations

import pytest

from ddp_gui.background import trainer_process


def test_a_slow_answer_is_announced_and_used(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer_process, "NOTICE_AFTER_S", 0.1)
    assert trainer_process.ask("trainers.plugins.memory")["models"]
    assert "Still waiting for trainers.plugins.memory to import torch" in capfd.readouterr().out


def test_a_process_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_process, "ASK_TIMEOUT_S", 0.3)
    with pytest.raises(trainer_process.AskError, match=r"did not answer within 0\.005 minutes"):
        trainer_process.ask("trainers.plugins.memory")
