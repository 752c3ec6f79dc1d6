"""The interface of a learning task: loss, metrics, samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from trainers.data.dataset import MOST_CONFUSED, DataSpec, Split
from trainers.report.metrics import (
    ClassificationMeter,
    ConfusionMeter,
    Meter,
    Trivial,
    most_frequent_class,
)
from trainers.report.samples import Scores


class Task(ABC):
    """A learning task; stateless.

    Class attributes:
        is_cut_from_one_text: the number of samples follows from the sequence length.
        loss_words: the loss's name for the axis of its chart.
        first_metric: the title of the evaluation chart before the first evaluation.
    """

    is_cut_from_one_text: ClassVar[bool] = False
    loss_words: ClassVar[str]
    first_metric: ClassVar[str]

    @abstractmethod
    def loss(self, scores: Tensor, targets: Tensor, *, reduction: str, label_smoothing: float) -> Tensor:
        """Return the loss of the scores: one value per target (`reduction="none"`) or their `mean`."""

    @abstractmethod
    def meter(self, spec: DataSpec, device: torch.device) -> Meter:
        """Return a new meter for an evaluation; one of its metrics is in `events.PRIMARY_METRICS`."""

    def sample(
        self,
        scores: Scores,
        spec: DataSpec,
        validation: Split,
        *,
        device: torch.device,
        seed: int,
        time_limit_s: float | None,
    ) -> tuple[str, Any] | None:
        """Return the type and the content of a `sample` event: the model's current output, for the page.

        Must not depend on the rank or draw from training's generators: all ranks of a sharded model take a
        sample together.

        Args:
            scores: maps prepared inputs on `device` to the model's output, without training the model.
            seed: seed for all random numbers.
            time_limit_s: stop after this time with what is done; None if all ranks must do the same work.
        """
        del scores, spec, validation, device, seed, time_limit_s
        return None

    def trivial(self, spec: DataSpec, train: Split, validation: Split) -> Trivial | None:
        """Return the main metric of a predictor without inputs, or None if the task has none."""
        del spec, train, validation
        return None

    def class_names(self, spec: DataSpec) -> tuple[str, ...] | None:
        """Return the class names for the confusion matrix, or None."""
        del spec
        return None

    def num_scores(self, spec: DataSpec) -> int:
        """Return the number of model outputs per sample."""
        return spec.num_classes

    def empty_targets(self, spec: DataSpec, batch_size: int, device: torch.device) -> Tensor:
        """Return a tensor with the shape and dtype of a batch's targets: class indices."""
        del spec
        return torch.empty(batch_size, dtype=torch.int64, device=device)


class Classification(Task):
    """Classification by cross-entropy (label smoothing: Szegedy et al. 2015, section 7)."""

    loss_words: ClassVar[str] = "cross-entropy"
    first_metric: ClassVar[str] = "accuracy"

    def loss(self, scores: Tensor, targets: Tensor, *, reduction: str, label_smoothing: float) -> Tensor:
        return functional.cross_entropy(
            scores.flatten(0, -2), targets.flatten(), reduction=reduction, label_smoothing=label_smoothing
        )

    def meter(self, spec: DataSpec, device: torch.device) -> Meter:
        meter_class = ConfusionMeter if spec.num_classes <= MOST_CONFUSED else ClassificationMeter
        return meter_class(spec.num_classes, device)

    def trivial(self, spec: DataSpec, train: Split, validation: Split) -> Trivial:
        return most_frequent_class(spec, train, validation)

    def class_names(self, spec: DataSpec) -> tuple[str, ...] | None:
        return spec.class_names if 0 < len(spec.class_names) <= MOST_CONFUSED else None
