"""A log above the size limit keeps its end and reports the missing part; its writer is not affected."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainers.engines.local import supervisor
from trainers.engines.local.supervisor import cut_long_logs


def test_log_that_is_too_long_keeps_its_end_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MAX_BYTES", 10_000)
    monkeypatch.setattr(supervisor, "KEPT_BYTES", 1_000)
    long, short = tmp_path / "rank_0.log", tmp_path / "rank_1.log"
    short.write_text("short\n")
    with long.open("a") as writer:
        writer.writelines(f"line {number}\n" for number in range(5_000))
        writer.flush()
        cut_long_logs(tmp_path)
        writer.write("and on\n")
    lines = long.read_text().splitlines()
    assert long.stat().st_size < 1_200
    assert lines[0] == "[0 MB of this log were removed here to save disk space]"
    assert lines[1].startswith("line 4") and lines[-2:] == ["line 4999", "and on"]
    assert short.read_text() == "short\n"


def test_logs_that_cannot_be_looked_at_end_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_long_logs(tmp_path / "nowhere")
    assert "the logs cannot be inspected" in capsys.readouterr().out
