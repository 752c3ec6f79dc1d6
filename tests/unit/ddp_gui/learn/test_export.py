"""The runs of an exported lesson: how they may end. Real exports are in `tests/ui/learn`."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.learn import export
from ddp_gui.learn.learn_routes import Library


def recorded(monkeypatch: pytest.MonkeyPatch, states: Mapping[str, str]) -> Any:
    """Record the lesson of rank 0 alone; its runs end in these states instead of being started."""
    runner = SimpleNamespace(run=lambda _about, _endpoint, _lesson, *values: values[-1])
    store = SimpleNamespace(open=lambda run_id: run_id)
    monkeypatch.setattr(export, "about_run", lambda _store, run_id: run_id)
    monkeypatch.setattr(
        export.measured,
        "read",
        lambda run_id: SimpleNamespace(about={"state": states[str(run_id)], "error": "it hangs"}),
    )
    return export.record(7, Library([export.BUILT_IN]).find("rank-0-alone"), runner, store)  # type: ignore[arg-type]


def test_an_attempt_may_fail_because_that_can_be_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(monkeypatch, {"0": "finished", "1": "failed", "only rank 0 saves": "failed"})
    assert found.attempts[0]["only rank 0 saves"].about["state"] == "failed"


@pytest.mark.parametrize("wrong", [{"0": "failed"}, {"1": "finished"}, {"only rank 0 saves": "stopped"}])
def test_a_run_that_ends_otherwise_ends_the_export(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str]
) -> None:
    ends = {"0": "finished", "1": "failed", "only rank 0 saves": "failed"} | wrong
    with pytest.raises(RuntimeError, match=r"rank-0-alone, .*: it hangs"):
        recorded(monkeypatch, ends)
