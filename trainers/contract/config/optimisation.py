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
        help="How gradients become steps. AdamW suits most; SGD is the classic for image networks.",
        topic="optimizer",
        choices=("adamw", "adam", "sgd"),
    )
    momentum: float = setting(
        0.9,
        label="Momentum",
        term="momentum",
        help="How much of the last step goes on into the next.",
        only_with=("optimizer", ("sgd",)),
        topic="optimizer",
        minimum=0,
        maximum=0.9999,
    )
    nesterov: bool = setting(
        False,
        label="Nesterov",
        help="Looks ahead along the momentum.",
        only_with=("optimizer", ("sgd",)),
        topic="optimizer",
    )
    weight_decay: float = setting(
        0.01,
        label="Weight decay",
        term="weight decay",
        help="Pulls weights towards zero; norms and biases are left alone.",
        topic="optimizer",
        minimum=0,
        maximum=10,
    )
    lr_schedule: str = setting(
        "constant",
        label="Learning rate schedule",
        term="schedule",
        help="How the rate changes over the run, after the warm-up.",
        topic="optimizer",
        choices=("constant", "cosine", "linear", "step", "one_cycle"),
    )
    warmup_steps: int = setting(
        0,
        label="Warm-up steps",
        term="warm-up",
        help="The rate climbs from near zero over this many steps.",
        topic="optimizer",
        minimum=0,
        maximum=10**9,
    )
    warmup_ratio: float = setting(
        0.0,
        label="Warm-up share",
        term="warm-up",
        help="The same as a share of the run (0.05 is 5%); used when warm-up steps is 0.",
        topic="optimizer",
        minimum=0,
        maximum=1,
    )
    lr_step_epochs: int = setting(
        10,
        label="Step every … epochs",
        help="How many epochs between two drops of the rate.",
        only_with=("lr_schedule", ("step",)),
        topic="optimizer",
        minimum=1,
        maximum=100_000,
    )
    lr_gamma: float = setting(
        0.1,
        label="Step factor",
        help="What each drop multiplies the rate by.",
        only_with=("lr_schedule", ("step",)),
        topic="optimizer",
        above=0,
        maximum=1,
    )
    scale_lr: bool = setting(
        False,
        label="Scale the rate with the GPUs",
        term="linear scaling rule",
        help="Linear scaling rule: rate × copies of the model × accumulation. Goes well with a warm-up.",
        topic="optimizer",
    )
    gradient_accumulation_steps: int = setting(
        1,
        label="Accumulate gradients over",
        term="accumulation",
        help="Batches each GPU adds up before one step: a larger global batch in the same memory.",
        topic="optimizer",
        minimum=1,
        maximum=65536,
    )
    max_grad_norm: float | None = setting(
        None,
        label="Clip gradients at norm",
        term="gradient clipping",
        help="Longer gradients are shortened to this; empty: never.",
        topic="optimizer",
        above=0,
        maximum=1e9,
    )
    label_smoothing: float = setting(
        0.0,
        label="Label smoothing",
        help="Trains towards being a little unsure: 0.1 is usual; 0 is off.",
        topic="optimizer",
        minimum=0,
        maximum=0.99,
    )
