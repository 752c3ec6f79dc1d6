"""Losses of steps, metrics of evaluations, and trivial predictors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.data.dataset import DataSpec, Split
from trainers.parallel.process_group import World


class HostLosses:
    """Losses of steps as Python floats, for the CPU, where reading a value does not wait."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def add(self, loss: Tensor) -> None:
        """Add a step's loss."""
        self._values.append(loss.item())

    def pop_message(self, extras: Sequence[float]) -> Tensor:
        """Return the losses and the extras in one float64 tensor, and clear the losses."""
        losses, self._values = self._values, []
        return torch.tensor([*losses, *extras], dtype=torch.float64)

    def begin_copy_to_host(self, message: Tensor, norm: Tensor | None) -> Callable[[], list[float]]:
        """Return a function that returns the numbers of a message, then the norm or 0."""
        return lambda: [*message.tolist(), 0.0 if norm is None else float(norm)]


class DeviceLosses:
    """Losses of steps on their device: reading a number would make the host wait for the GPU.

    Only one report is pending at a time, so its numbers have a fixed buffer in host memory. For a GPU it is
    pinned, because only copies from and to pinned memory are asynchronous.

    Args:
        num_slots: maximum number of values in a message: losses and extras.
    """

    def __init__(self, device: torch.device, num_slots: int) -> None:
        is_gpu = device.type == "cuda"
        self._buffer = torch.zeros(num_slots, dtype=torch.float64, device=device)
        self._extras = torch.zeros(num_slots, dtype=torch.float64, pin_memory=is_gpu)
        self._host_buffer = torch.zeros(num_slots + 1, dtype=torch.float64, pin_memory=is_gpu)
        # A blocking event lets the host thread sleep while it waits; the data loaders need the core.
        self._copy_done = torch.cuda.Event(blocking=True) if is_gpu else None
        self._losses: list[Tensor] = []

    def add(self, loss: Tensor) -> None:
        """Add a step's loss. It must not be modified later: a copy would cost a kernel per step."""
        self._losses.append(loss)

    def pop_message(self, extras: Sequence[float]) -> Tensor:
        """Return the losses and the extras in one float64 tensor, and clear the losses."""
        num_losses = len(self._losses)
        message = self._buffer[: num_losses + len(extras)]
        if self._losses:
            message[:num_losses].copy_(torch.stack(self._losses))
        pinned = self._extras[: len(extras)].copy_(torch.tensor(extras, dtype=torch.float64))
        message[num_losses:].copy_(pinned, non_blocking=True)
        self._losses = []
        return message

    def begin_copy_to_host(self, message: Tensor, norm: Tensor | None) -> Callable[[], list[float]]:
        """Copy a message and the norm (or 0) to the host; return a function that waits for the numbers."""
        host_values = self._host_buffer[: len(message) + 1]
        host_values[-1] = 0.0
        host_values[:-1].copy_(message, non_blocking=True)
        if norm is not None:
            host_values[-1].copy_(norm, non_blocking=True)
        if self._copy_done is not None:
            self._copy_done.record()
        return lambda: self._wait_for(host_values)

    def _wait_for(self, host_values: Tensor) -> list[float]:
        if self._copy_done is not None:
            self._copy_done.synchronize()
        numbers: list[float] = host_values.tolist()
        return numbers


# Maximum number of samples to count, which takes about 50 ms; larger splits are sampled evenly.
MAX_TARGETS = 2**18
INPUTS_PER_CHUNK = 256
MAX_INPUTS = 2**16
MAX_ANSWER_LENGTH = 40


@dataclass(frozen=True, kw_only=True)
class Trivial:
    """A predictor without inputs, on the validation split; the field `trivial` of the `plan` event.

    Attributes:
        predictor: "most_frequent_class", "mean" or "unigram".
        answer: the class or the number that it always predicts; None for a unigram.
        metric: the task's main metric.
        value: the metric's value, with its `standard_error`.
        loss: the loss of predicting the frequencies of the classes or tokens, or the mean.
        train_loss: the same on the training split, which may have another distribution of targets.
        inputs_differ: False if all training inputs are the same.
    """

    predictor: str
    answer: str | float | None
    metric: str
    value: float
    standard_error: float
    loss: float
    train_loss: float
    inputs_differ: bool


def most_frequent_class(spec: DataSpec, train: Split, validation: Split) -> Trivial:
    """Return the result of always predicting the most frequent class of the validation split.

    Raises:
        ValueError: if no target of a split is a class.
    """
    counts = _class_counts(validation, spec.num_classes)
    train_counts = _class_counts(train, spec.num_classes)
    shares = counts / counts.sum()
    answer = int(shares.argmax())
    share = float(shares[answer])
    names = spec.class_names
    return Trivial(
        predictor="most_frequent_class",
        answer=(names[answer] if answer < len(names) else str(answer))[:MAX_ANSWER_LENGTH],
        metric="accuracy",
        value=share,
        standard_error=math.sqrt(share * (1 - share) / float(counts.sum())),
        loss=float(torch.special.entr(shares).sum()),
        train_loss=float(torch.special.entr(train_counts / train_counts.sum()).sum()),
        inputs_differ=inputs_differ(train),
    )


def unigram(spec: DataSpec, train: Split, validation: Split) -> Trivial:
    """Return the result of predicting each token by its frequency in the training split."""
    train_targets = _targets(train)
    counts = torch.bincount(train_targets, minlength=spec.num_classes)
    # Add-one smoothing: no token has probability 0.
    shares = (counts + 1).double() / (counts.sum() + len(counts))
    surprise = -shares.log()[_targets(validation)]
    loss = float(surprise.mean())
    perplexity = math.exp(min(loss, 700.0))
    return Trivial(
        predictor="unigram",
        answer=None,
        metric="perplexity",
        value=perplexity,
        standard_error=perplexity * _standard_error(surprise),
        loss=loss,
        train_loss=float(-shares.log()[train_targets].mean()),
        inputs_differ=inputs_differ(train),
    )


def mean(spec: DataSpec, train: Split, validation: Split) -> Trivial:
    """Return the result of always predicting the mean of the validation split's targets: an R² of 0."""
    targets = _targets(validation).double()
    average = targets.mean()
    errors = (targets - average).square()
    loss = float(errors.mean())
    rmse = math.sqrt(loss)
    return Trivial(
        predictor="mean",
        answer=float(average) * spec.target_std + spec.target_mean,
        metric="rmse",
        value=rmse * spec.target_std,
        # Delta method: the standard error of the mean squared error, divided by twice its root.
        standard_error=_standard_error(errors) / (2 * rmse) * spec.target_std if rmse > 0 else 0.0,
        loss=loss,
        train_loss=float(_targets(train).double().var(correction=0)),
        inputs_differ=inputs_differ(train),
    )


def inputs_differ(split: Split) -> bool:
    """Return True if two inputs of a split differ; compares at most 65,536 of them with the first."""
    first: Tensor | None = None
    num_compared = min(MAX_INPUTS, len(split))
    for indices in _spread(split, num_compared).split(INPUTS_PER_CHUNK):
        inputs = split.batch(indices)[0]
        first = inputs[:1] if first is None else first
        if bool((inputs != first).any()):
            return True
    return False


def _class_counts(split: Split, num_classes: int) -> Tensor:
    """Return the number of targets of each class in a split, (classes,) in double precision.

    Raises:
        ValueError: if no target is a class.
    """
    # On the CPU: a GPU would compile a kernel for `entr` (NVRTC), and each number read from it would block.
    counts = torch.histc(_targets(split).cpu().double(), num_classes, -0.5, num_classes - 0.5)
    if not counts.any():
        raise ValueError(f"no target is a class, a whole number from 0 to {num_classes - 1}")
    return counts


def _targets(split: Split) -> Tensor:
    """Return the targets of a split, (targets,); for a large split, those of evenly spaced samples."""
    per_sample = split.targets_of(_spread(split, 1)).numel()
    return split.targets_of(_spread(split, max(1, MAX_TARGETS // per_sample))).flatten()


def _spread(split: Split, max_samples: int) -> Tensor:
    """Return the indices of at most `max_samples` evenly spaced samples of a split."""
    num_samples = min(max_samples, len(split))
    if num_samples == len(split):
        return torch.arange(num_samples, device=split.device)
    return torch.linspace(0, len(split) - 1, num_samples, dtype=torch.float64).long().to(split.device)


def _standard_error(values: Tensor) -> float:
    """Return the standard error of the mean; 0 for a single value."""
    return float(values.std(correction=0)) / math.sqrt(len(values))


TOP = 5


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of evaluating a model on an entire split.

    Attributes:
        loss: the mean over the targets.
        metrics: name to value.
        confusion: for few classes, the confusion matrix: rows are true classes, columns predicted ones.
    """

    loss: float
    metrics: dict[str, float]
    confusion: list[list[int]] | None = None


class Meter(ABC):
    """Counts one split. Only the sums are reduced; float64 is exact for counts below 2**53."""

    def __init__(self, num_sums: int, device: torch.device) -> None:
        # Two more than the task's own sums: the summed loss and the number of targets.
        self._sums = torch.zeros(num_sums + 2, dtype=torch.float64, device=device)

    def add(self, scores: Tensor, targets: Tensor, summed_loss: Tensor) -> None:
        """Count one batch: (…, classes) scores of (…) targets."""
        self._sums[-2] += summed_loss
        self._sums[-1] += targets.numel()
        self._count(scores.flatten(0, -2), targets.flatten(), self._sums[:-2])

    def result(self, world: World) -> Evaluation:
        """Reduce over all ranks and return the evaluation; every rank must call it."""
        *sums, total_loss, count = world.sum(self._sums).tolist()
        loss = total_loss / count
        metrics = self._metrics_from_loss(loss) | self._metrics(sums, count)
        return Evaluation(loss=loss, metrics=metrics, confusion=self._confusion(sums))

    @abstractmethod
    def _count(self, scores: Tensor, targets: Tensor, sums: Tensor) -> None:
        """Add a batch to the task's own sums: (samples, classes) scores of (samples,) targets."""

    @abstractmethod
    def _metrics(self, sums: list[float], count: float) -> dict[str, float]:
        """Return the metrics of the task's own sums over `count` targets."""

    def _metrics_from_loss(self, mean_loss: float) -> dict[str, float]:
        """Return the metrics that follow from the mean loss alone."""
        del mean_loss
        return {}

    def _confusion(self, sums: list[float]) -> list[list[int]] | None:
        """Return the confusion matrix, or None if the meter does not count it."""
        del sums
        return None


class ClassificationMeter(Meter):
    """Accuracy, top-5 accuracy for more than 5 classes, and macro F1.

    The sums are, per class, how often a prediction was right, how often the class was predicted, and how
    often it was true. F1 of a class is 2 · right / (predicted + true); macro F1 is the unweighted mean over
    the classes that occur.
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
        num_right, num_predicted, num_true = sums.view(3, classes)
        num_right += torch.bincount(targets[predicted == targets], minlength=classes)
        num_predicted += torch.bincount(predicted, minlength=classes)
        num_true += torch.bincount(targets, minlength=classes)

    def _per_class(self, sums: list[float]) -> list[tuple[float, float, float]]:
        """Return (right, predicted, true) counts of each class."""
        classes = self._num_classes
        return list(zip(sums[:classes], sums[classes : 2 * classes], sums[2 * classes : -1], strict=True))

    def _metrics(self, sums: list[float], count: float) -> dict[str, float]:
        classes = self._per_class(sums)
        scores = [2 * right / (predicted + true) for right, predicted, true in classes if predicted + true]
        num_right = sum(right for right, _, _ in classes)
        metrics = {"accuracy": num_right / count, "macro_f1": sum(scores) / len(scores)}
        return metrics | ({"top5_accuracy": sums[-1] / count} if self._num_classes > TOP else {})


class ConfusionMeter(ClassificationMeter):
    """Metrics for few classes, with a confusion matrix."""

    def _num_counts(self, num_classes: int) -> int:
        return num_classes**2

    def _count_classes(self, predicted: Tensor, targets: Tensor, sums: Tensor) -> None:
        classes = self._num_classes
        sums += torch.bincount(targets * classes + predicted, minlength=classes**2)

    def _per_class(self, sums: list[float]) -> list[tuple[float, float, float]]:
        rows = self._confusion(sums)
        return [
            (row[index], sum(column), sum(row))
            for index, (row, column) in enumerate(zip(rows, zip(*rows, strict=True), strict=True))
        ]

    def _confusion(self, sums: list[float]) -> list[list[int]]:
        classes = self._num_classes
        return [[int(n) for n in sums[row * classes :][:classes]] for row in range(classes)]
