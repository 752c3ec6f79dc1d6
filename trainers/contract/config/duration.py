"""How long a run trains, how often it evaluates and saves, and when it counts as hanging."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long a run trains, how often it evaluates and saves, and when it counts as hanging."""

    max_steps: int | None = setting(
        None,
        label="Stop after steps",
        help="The run ends at this step. Empty: no limit.",
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
        label="Early stopping patience",
        help="Ends the run after this many evaluations whose main metric is no better than the best before: "
        "accuracy for classes, RMSE for numbers, perplexity for language models. Empty: never.",
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
        help="Older periodic checkpoints are deleted. Empty: keep all.",
        topic="schedule",
        minimum=1,
        maximum=100_000,
    )
    keep_best_checkpoint: bool = setting(
        True,
        label="Keep the best checkpoint",
        help="Saves when an evaluation is the best so far, and keeps that checkpoint.",
        topic="schedule",
    )
    hang_timeout_s: float = setting(
        20.0,
        label="Hang timeout, s",
        term="hang",
        help="The run counts as hanging when a rank has been silent and idle for this long.",
        topic="schedule",
        minimum=2,
        maximum=86_400,
    )
    on_hang: str = setting(
        "end",
        label="On a hang",
        help=(
            "end: the run fails and reports where each rank stood; wait: it reports and waits for you to "
            "stop it."
        ),
        topic="schedule",
        choices=("end", "wait"),
    )
