"""Metrics that add up: counts and sums on each rank, one all-reduce, then the same as one process."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainers.data import LANGUAGE_MODELLING, TABULAR_REGRESSION, DataSpec
from trainers.distributed import World

TOP = 5


class Meter:
    """Counts one split; `sums` is all there is to reduce, in float64: exact for counts below 2**53."""

    def __init__(self, num_sums: int, device: torch.device) -> None:
        # Two more than the task's own: the summed loss and the number of targets.
        self._sums = torch.zeros(num_sums + 2, dtype=torch.float64, device=device)

    def add(self, scores: Tensor, targets: Tensor, summed_loss: Tensor) -> None:
        """Count one batch: (…, classes) scores of (…) targets."""
        self._sums[-2] += summed_loss
        self._sums[-1] += targets.numel()
        self._count(scores.flatten(0, -2), targets.flatten(), self._sums[:-2])

    def result(self, world: World) -> tuple[float, dict[str, float]]:
        """Add up over all ranks and return the mean loss and the metrics; every rank must call it."""
        *sums, total_loss, count = world.sum(self._sums).tolist()
        mean_loss = total_loss / count
        return mean_loss, self._of_loss(mean_loss) | self._metrics(sums, count)

    def _count(self, scores: Tensor, targets: Tensor, sums: Tensor) -> None:
        raise NotImplementedError

    def _metrics(self, sums: list[float], count: float) -> dict[str, float]:
        raise NotImplementedError

    def _of_loss(self, mean_loss: float) -> dict[str, float]:
        """Return what follows from the mean loss alone."""
        del mean_loss
        return {}


class ClassificationMeter(Meter):
    """Accuracy, top-5 where there are more classes than that, and macro F1.

    Per class: how often it was right, predicted, and true. F1 of a class is
    2 · right / (predicted + true); macro is the plain mean over the classes that occur.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self._num_classes = num_classes
        super().__init__(3 * num_classes + 1, device)

    def _count(self, scores: Tensor, targets: Tensor, sums: Tensor) -> None:
        classes = self._num_classes
        predicted = scores.argmax(-1)
        right, of_predicted, of_true = sums[:-1].view(3, classes)
        right += torch.bincount(targets[predicted == targets], minlength=classes)
        of_predicted += torch.bincount(predicted, minlength=classes)
        of_true += torch.bincount(targets, minlength=classes)
        if classes > TOP:
            sums[-1] += (scores.topk(TOP, dim=-1).indices == targets[:, None]).any(-1).sum()

    def _metrics(self, sums: list[float], count: float) -> dict[str, float]:
        classes = self._num_classes
        right, predicted, true = sums[:classes], sums[classes : 2 * classes], sums[2 * classes : -1]
        scores = [2 * r / (p + t) for r, p, t in zip(right, predicted, true, strict=True) if p + t]
        metrics = {"accuracy": sum(right) / count, "macro_f1": sum(scores) / len(scores)}
        return metrics | ({"top5_accuracy": sums[-1] / count} if classes > TOP else {})


class LanguageMeter(Meter):
    """Perplexity and accuracy of the next token; bits per character where a token is one."""

    def __init__(self, device: torch.device, *, tokens_are_characters: bool) -> None:
        self._tokens_are_characters = tokens_are_characters
        super().__init__(1, device)

    def _count(self, scores: Tensor, targets: Tensor, sums: Tensor) -> None:
        sums[0] += (scores.argmax(-1) == targets).sum()

    def _metrics(self, sums: list[float], count: float) -> dict[str, float]:
        return {"accuracy": sums[0] / count}

    def _of_loss(self, mean_loss: float) -> dict[str, float]:
        name = "bits_per_character" if self._tokens_are_characters else "bits_per_token"
        return {"perplexity": math.exp(min(mean_loss, 700.0)), name: mean_loss / math.log(2)}


class RegressionMeter(Meter):
    """RMSE and MAE on the target's own scale, and R² (1 is perfect, 0 is always saying the mean)."""

    def __init__(self, target_std: float, device: torch.device) -> None:
        self._std = target_std
        super().__init__(4, device)

    def _count(self, scores: Tensor, targets: Tensor, sums: Tensor) -> None:
        targets = targets.double()
        errors = scores.flatten().double() - targets
        sums += torch.stack(
            [errors.square().sum(), errors.abs().sum(), targets.sum(), targets.square().sum()]
        )

    def _metrics(self, sums: list[float], count: float) -> dict[str, float]:
        squared, absolute, total, total_squared = sums
        spread = total_squared - total * total / count
        return {
            "rmse": self._std * math.sqrt(squared / count),
            "mae": self._std * absolute / count,
            "r2": 1 - squared / spread if spread > 0 else math.nan,
        }


def create(spec: DataSpec, device: torch.device) -> Meter:
    """Return the empty meter of a task."""
    if spec.task == LANGUAGE_MODELLING:
        return LanguageMeter(device, tokens_are_characters=bool(spec.class_names))
    if spec.task == TABULAR_REGRESSION:
        return RegressionMeter(spec.target_std, device)
    return ClassificationMeter(spec.num_classes, device)
