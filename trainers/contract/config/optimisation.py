"""How a run learns: optimizer, learning rate over the run, accumulation, clipping."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How a run learns: optimizer, learning rate over the run, accumulation, clipping."""

    optimizer: str = setting(
        "adamw",
        label="Optimizer",
        term="optimizer",
        help=(
            "The rule that updates the weights. AdamW suits most models; SGD is the classic for image "
            "networks."
        ),
        topic="optimizer",
        choices=("adamw", "adam", "sgd"),
    )
    momentum: float = setting(
        0.9,
        label="Momentum",
        term="momentum",
        help="The share of the last update that is added to the next one.",
        only_with=("optimizer", ("sgd",)),
        topic="optimizer",
        minimum=0,
        maximum=0.9999,
    )
    nesterov: bool = setting(
        False,
        label="Nesterov",
        help="Computes the update one step ahead along the momentum.",
        only_with=("optimizer", ("sgd",)),
        topic="optimizer",
    )
    weight_decay: float = setting(
        0.01,
        label="Weight decay",
        term="weight decay",
        help="Pulls weights towards zero; norms and biases are exempt.",
        topic="optimizer",
        minimum=0,
        maximum=10,
    )
    lr_schedule: str = setting(
        "constant",
        label="Learning rate schedule",
        term="schedule",
        help="How the learning rate changes over the run, after the warm-up.",
        topic="optimizer",
        choices=("constant", "cosine", "linear", "step", "one_cycle"),
    )
    warmup_steps: int = setting(
        0,
        label="Warm-up steps",
        term="warm-up",
        help="The learning rate rises from near zero over this many steps.",
        topic="optimizer",
        minimum=0,
        maximum=10**9,
    )
    warmup_ratio: float = setting(
        0.0,
        label="Warm-up share",
        term="warm-up",
        help="The warm-up as a share of the run (0.05 is 5%); used when warm-up steps is 0.",
        topic="optimizer",
        minimum=0,
        maximum=1,
    )
    lr_step_epochs: int = setting(
        10,
        label="Step every … epochs",
        help="Epochs between two drops of the learning rate.",
        only_with=("lr_schedule", ("step",)),
        topic="optimizer",
        minimum=1,
        maximum=100_000,
    )
    lr_gamma: float = setting(
        0.1,
        label="Step factor",
        help="Each drop multiplies the learning rate by this factor.",
        only_with=("lr_schedule", ("step",)),
        topic="optimizer",
        above=0,
        maximum=1,
    )
    scale_lr: bool = setting(
        False,
        label="Scale the learning rate with the ranks",
        term="linear scaling rule",
        help="Linear scaling rule: rate × replicas × accumulation. Best with a warm-up.",
        topic="optimizer",
    )
    gradient_accumulation_steps: int = setting(
        1,
        label="Accumulate gradients over",
        term="accumulation",
        help="Batches that each rank adds up before one step: a larger global batch in the same memory.",
        topic="optimizer",
        minimum=1,
        maximum=65536,
    )
    max_grad_norm: float | None = setting(
        None,
        label="Clip gradients at norm",
        term="gradient clipping",
        help="Gradients with a larger norm are scaled down to it. Empty: never.",
        topic="optimizer",
        above=0,
        maximum=1e9,
    )
    label_smoothing: float = setting(
        0.0,
        label="Label smoothing",
        help="Trains for less confident predictions: 0.1 is usual; 0 is off.",
        topic="optimizer",
        minimum=0,
        maximum=0.99,
    )
