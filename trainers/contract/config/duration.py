"""How long a run goes on, how often it evaluates and saves, and when it counts as hanging."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long a run goes on, how often it evaluates and saves, and when it counts as hanging."""

    max_steps: int | None = setting(
        None,
        label="Stop after steps",
        help="The run ends at this step; empty: no limit.",
        topic="schedule",
        minimum=1,
        maximum=10**9,
    )
    eval_every_steps: int | None = setting(
        None,
        label="Evaluate every … steps",
        term="evaluation",
        help="Empty: at the end of every epoch.",
        topic="schedule",
        minimum=1,
        maximum=10**9,
    )
    early_stopping_patience: int | None = setting(
        None,
        label="Stop early after",
        help="Evaluations without a better result before the run ends by itself; empty: never.",
        topic="schedule",
        minimum=1,
        maximum=100_000,
    )
    checkpoint_every_steps: int | None = setting(
        None,
        label="Checkpoint every … steps",
        term="checkpoint",
        help="Empty: at the end of every epoch.",
        topic="schedule",
        minimum=1,
        maximum=10**9,
    )
    keep_last_checkpoints: int | None = setting(
        3,
        label="Keep the newest … checkpoints",
        help="Older ones made by the schedule are deleted; empty: keep all.",
        topic="schedule",
        minimum=1,
        maximum=100_000,
    )
    keep_best_checkpoint: bool = setting(
        True,
        label="Keep the best checkpoint",
        help="Saves whenever an evaluation is the best so far, and keeps the best one.",
        topic="schedule",
    )
    hang_timeout_s: float = setting(
        20.0,
        label="A hang after, s",
        term="hang",
        help="When nothing has come from a rank for so long and it does not work either, the run hangs.",
        topic="schedule",
        minimum=2,
        maximum=86_400,
    )
    on_hang: str = setting(
        "end",
        label="When it hangs",
        help="end: the run fails and says where it stood; wait: it says so and waits until you stop it.",
        topic="schedule",
        choices=("end", "wait"),
    )
