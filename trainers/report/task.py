"""What a run asks of a task: how an answer is judged, in numbers and in a picture, and words for the page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from trainers.data.dataset import MOST_CONFUSED, DataSpec, Split
from trainers.report.metrics import ClassificationMeter, ConfusionMeter, Meter
from trainers.report.samples import Scores
from trainers.report.trivial import Trivial, most_frequent_class


class Task(ABC):
    """What is learnt; it has no state.

    Class attributes:
        is_cut_from_one_text: there are as many samples as the sequence length leaves.
        loss_words: what the loss is, beside the axis of its chart.
        first_metric: what the chart of the evaluations is called before the first one.
    """

    is_cut_from_one_text: ClassVar[bool] = False
    loss_words: ClassVar[str]
    first_metric: ClassVar[str]

    @abstractmethod
    def loss(self, scores: Tensor, targets: Tensor, *, reduction: str, label_smoothing: float) -> Tensor:
        """Return the loss of the model's scores, by `reduction`: their `mean`, or one a target (`none`)."""

    @abstractmethod
    def meter(self, spec: DataSpec, device: torch.device) -> Meter:
        """Return what counts an evaluation, empty; one of its metrics is in `events.PRIMARY_METRICS`."""

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
        """Return the type and the content of a `sample` event: what the model says now, for the page.

        Nothing may depend on the rank or draw from training's generators: all ranks of a sharded model take
        a sample together.

        Args:
            scores: maps prepared inputs on `device` to the model's output, without training it.
            seed: of what is drawn.
            time_limit_s: cut off what is not made by then; None where ranks must all do the same.
        """
        del scores, spec, validation, device, seed, time_limit_s
        return None

    def trivial(self, spec: DataSpec, train: Split, validation: Split) -> Trivial | None:
        """Return what a predictor without inputs reaches, in the main metric; None: there is none."""
        del spec, train, validation
        return None

    def class_names(self, spec: DataSpec) -> tuple[str, ...] | None:
        """Return the names that belong to a confusion matrix, where there is one."""
        del spec
        return None

    def num_scores(self, spec: DataSpec) -> int:
        """Return how many numbers the model gives for a sample."""
        return spec.num_classes

    def empty_targets(self, spec: DataSpec, batch_size: int, device: torch.device) -> Tensor:
        """Return what the targets of a batch look like, without their values: class numbers."""
        del spec
        return torch.empty(batch_size, dtype=torch.int64, device=device)


class Classification(Task):
    """Classes to tell apart, by cross-entropy (label smoothing: Szegedy et al. 2015, section 7)."""

    loss_words: ClassVar[str] = "cross-entropy"
    first_metric: ClassVar[str] = "accuracy"

    def loss(self, scores: Tensor, targets: Tensor, *, reduction: str, label_smoothing: float) -> Tensor:
        return functional.cross_entropy(
            scores.flatten(0, -2), targets.flatten(), reduction=reduction, label_smoothing=label_smoothing
        )

    def meter(self, spec: DataSpec, device: torch.device) -> Meter:
        kind = ConfusionMeter if spec.num_classes <= MOST_CONFUSED else ClassificationMeter
        return kind(spec.num_classes, device)

    def trivial(self, spec: DataSpec, train: Split, validation: Split) -> Trivial:
        return most_frequent_class(spec, train, validation)

    def class_names(self, spec: DataSpec) -> tuple[str, ...] | None:
        return spec.class_names if 0 < len(spec.class_names) <= MOST_CONFUSED else None
