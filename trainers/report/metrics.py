"""Metrics that add up: counts and sums on each rank, one all-reduce, then the same as one process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.parallel.process_group import World

TOP = 5


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a whole split says of a model.

    Attributes:
        loss: the mean over the targets.
        metrics: name to value.
        confusion: for few classes, how often each was taken for each: rows are true, columns predicted.
    """

    loss: float
    metrics: dict[str, float]
    confusion: list[list[int]] | None = None


class Meter(ABC):
    """Counts one split; `sums` is all there is to reduce, in float64: exact for counts below 2**53."""

    def __init__(self, num_sums: int, device: torch.device) -> None:
        # Two more than the task's own: the summed loss and the number of targets.
        self._sums = torch.zeros(num_sums + 2, dtype=torch.float64, device=device)

    def add(self, scores: Tensor, targets: Tensor, summed_loss: Tensor) -> None:
        """Count one batch: (…, classes) scores of (…) targets."""
        self._sums[-2] += summed_loss
        self._sums[-1] += targets.numel()
        self._count(scores.flatten(0, -2), targets.flatten(), self._sums[:-2])

    def result(self, world: World) -> Evaluation:
        """Add up over all ranks and say what comes of it; every rank must call it."""
        *sums, total_loss, count = world.sum(self._sums).tolist()
        loss = total_loss / count
        metrics = self._of_loss(loss) | self._metrics(sums, count)
        return Evaluation(loss=loss, metrics=metrics, confusion=self._confusion(sums))

    @abstractmethod
    def _count(self, scores: Tensor, targets: Tensor, sums: Tensor) -> None:
        """Add a batch to the task's own sums: (samples, classes) scores of (samples,) targets."""

    @abstractmethod
    def _metrics(self, sums: list[float], count: float) -> dict[str, float]:
        """Return the metrics of the task's own sums over `count` targets."""

    def _of_loss(self, mean_loss: float) -> dict[str, float]:
        """Return what follows from the mean loss alone."""
        del mean_loss
        return {}

    def _confusion(self, sums: list[float]) -> list[list[int]] | None:
        """Return how often each class was taken for each, where that is counted."""
        del sums
        return None


class ClassificationMeter(Meter):
    """Accuracy, top-5 where there are more classes than that, and macro F1.

    Per class: how often it was right, predicted, and true. F1 of a class is
    2 · right / (predicted + true); macro is the plain mean over the classes that occur.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self._num_classes = num_classes
        super().__init__(self._num_counts(num_classes) + 1, device)

    def _num_counts(self, num_classes: int) -> int:
        return 3 * num_classes

    def _count(self, scores: Tensor, targets: Tensor, sums: Tensor) -> None:
        self._count_classes(scores.argmax(-1), targets, sums[:-1])
        if self._num_classes > TOP:
            sums[-1] += (scores.topk(TOP, dim=-1).indices == targets[:, None]).any(-1).sum()

    def _count_classes(self, predicted: Tensor, targets: Tensor, sums: Tensor) -> None:
        classes = self._num_classes
        right, of_predicted, of_true = sums.view(3, classes)
        right += torch.bincount(targets[predicted == targets], minlength=classes)
        of_predicted += torch.bincount(predicted, minlength=classes)
        of_true += torch.bincount(targets, minlength=classes)

    def _per_class(self, sums: list[float]) -> list[tuple[float, float, float]]:
        """Return how often each class was right, predicted and true."""
        classes = self._num_classes
        return list(zip(sums[:classes], sums[classes : 2 * classes], sums[2 * classes : -1], strict=True))

    def _metrics(self, sums: list[float], count: float) -> dict[str, float]:
        classes = self._per_class(sums)
        scores = [2 * right / (predicted + true) for right, predicted, true in classes if predicted + true]
        num_right = sum(right for right, _, _ in classes)
        metrics = {"accuracy": num_right / count, "macro_f1": sum(scores) / len(scores)}
        return metrics | ({"top5_accuracy": sums[-1] / count} if self._num_classes > TOP else {})


class ConfusionMeter(ClassificationMeter):
    """The same of few classes, of which it also counts how often each was taken for each."""

    def _num_counts(self, num_classes: int) -> int:
        return num_classes**2

    def _count_classes(self, predicted: Tensor, targets: Tensor, sums: Tensor) -> None:
        classes = self._num_classes
        sums += torch.bincount(targets * classes + predicted, minlength=classes**2)

    def _per_class(self, sums: list[float]) -> list[tuple[float, float, float]]:
        rows = self._confusion(sums)
        return [
            (row[number], sum(column), sum(row))
            for number, (row, column) in enumerate(zip(rows, zip(*rows, strict=True), strict=True))
        ]

    def _confusion(self, sums: list[float]) -> list[list[int]]:
        classes = self._num_classes
        return [[int(n) for n in sums[row * classes :][:classes]] for row in range(classes)]
