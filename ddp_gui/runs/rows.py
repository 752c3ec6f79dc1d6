"""The row of a run in the list."""

from __future__ import annotations

from typing import Any

from ddp_gui.auth import owners
from ddp_gui.events.digest import Digest
from ddp_gui.http.visible import visible
from ddp_gui.runs import notes
from ddp_gui.runs.facts import Facts
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

Row = dict[str, Any]


def row_of(run: RunDirectory, facts: Facts, digest: Digest, created_unix_s: float) -> Row:
    """Return the row of a run, with its current state."""
    status, said = liveness.read_status(run), dict(facts)
    expected_steps, config_name = said.pop("expected_steps"), said.pop("config_name")
    return {
        "run_id": run.run_id,
        **notes.named(run, config_name),
        "owner": owners.owner_of(run),
        # In the events: a copied run keeps its age.
        "created_unix_s": digest.began_unix_s or created_unix_s,
        "took_s": digest.took_s,
        "state": status.state,
        "error": status.error,
        "detail": liveness.detail(status),
        **said,
        "device": digest.device_kind,
        "step": digest.step,
        "num_steps": digest.num_steps or expected_steps,
        "loss": digest.loss,
        "best_metric": digest.best,
        "curve": digest.curve.drawn(),
    }


def unreadable_row(run: RunDirectory, created_unix_s: float, error: Exception) -> Row:
    """Return the row of a run with unreadable files; it says why."""
    unknown = (
        "took_s", "model", "model_label", "dataset", "dataset_label", "strategy", "strategy_label",
        "nproc_per_node", "mistake", "device", "num_steps", "loss", "best_metric", "curve",
    )  # fmt: skip
    return {
        "run_id": visible(run.run_id),
        **notes.named(run, visible(run.run_id)),
        "owner": owners.owner_of(run),
        "created_unix_s": created_unix_s,
        "step": 0,
        **dict.fromkeys(unknown),
        "state": "lost",
        "detail": None,
        "error": f"This run cannot be read. {_sentence(error)}",
    }


def _sentence(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if text.endswith(".") else f"{text}."
