"""Tables as tensors: standardised columns, and a fixed split into training and validation rows."""

from __future__ import annotations

import csv
import functools
import gzip
import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from trainers.data.dataset import (
    TABULAR_CLASSIFICATION,
    TABULAR_REGRESSION,
    DataOptions,
    DataSpec,
    TensorSplit,
)

VALIDATION_SHARE = 0.2


class TableSplit(TensorSplit):
    """Rows of numbers in standardised columns; keeps the scale of each column for converting back.

    Args:
        inputs: (rows, columns) in the columns' original units.
        targets: (rows,) class numbers, or standardised numbers.
        feature_mean, feature_std: (columns,); the constructor standardises the columns with them.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        feature_mean: Tensor,
        feature_std: Tensor,
        device: torch.device,
    ) -> None:
        super().__init__((inputs - feature_mean) / feature_std, targets, device=device)
        self.feature_mean = feature_mean
        self.feature_std = feature_std

    def preparation(self) -> dict[str, list[float]]:
        """Return mean and deviation of each column."""
        return {"mean": self.feature_mean.tolist(), "std": self.feature_std.tolist()}

    def use_scale(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Standardise the columns by this mean and deviation from now on."""
        before = self.feature_mean.to(self.device), self.feature_std.to(self.device)
        now = torch.tensor(mean, device=self.device), torch.tensor(std, device=self.device)
        self.inputs = (self.inputs * before[1] + before[0] - now[0]) / now[1]
        self.feature_mean, self.feature_std = (each.to(self.feature_mean.device) for each in now)


def table_splits(
    train: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor], *, normalise: bool, device: torch.device
) -> tuple[TableSplit, TableSplit]:
    """Return splits of (inputs, targets); columns are standardised with the training part's statistics."""
    mean, std = column_scale(train[0]) if normalise else (torch.tensor(0.0), torch.tensor(1.0))
    mean, std = mean.expand(train[0].shape[1]), std.expand(train[0].shape[1])
    return (
        TableSplit(*train, feature_mean=mean, feature_std=std, device=device),
        TableSplit(*validation, feature_mean=mean, feature_std=std, device=device),
    )


def column_scale(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return each column's mean and standard deviation; the deviation of a constant column is 1."""
    std = inputs.std(dim=0, correction=0)
    return inputs.mean(dim=0), torch.where(std > 0, std, torch.ones_like(std))


def target_scale(targets: Tensor) -> tuple[float, float]:
    """Return the mean and standard deviation of the training targets (1 for constant targets)."""
    std = float(targets.std(correction=0))
    return float(targets.mean()), std if std > 0 else 1.0


def split_rows(labels: Tensor | None, num_rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the row numbers of training (80%) and validation (20%), shuffled with a fixed seed.

    With labels the split is stratified: each class of two or more rows has at least one validation row.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(num_rows, generator=generator)
    groups = [order] if labels is None else [order[labels[order] == label] for label in labels.unique()]
    counts = [num_validation(len(group)) for group in groups]
    validation = torch.cat([group[:count] for group, count in zip(groups, counts, strict=True)])
    train = torch.cat([group[count:] for group, count in zip(groups, counts, strict=True)])
    return (
        train[torch.randperm(len(train), generator=generator)],
        validation[torch.randperm(len(validation), generator=generator)],
    )


def num_validation(num_rows: int) -> int:
    """Return the number of validation rows of a class with `num_rows` rows."""
    return min(max(1, math.floor(num_rows * VALIDATION_SHARE + 0.5)), num_rows - 1)


class BundledTable:
    """Base class of data sets that are a small table in `assets/data`.

    Class attributes:
        file: gzipped CSV with a header; the last column is the target, classes by name.
        task: TABULAR_CLASSIFICATION or TABULAR_REGRESSION.
        sample_unit, description, source: see `DataSpec`.
    """

    file: ClassVar[Path]
    task: ClassVar[str]
    sample_unit: ClassVar[str]
    description: ClassVar[str]
    source: ClassVar[str]

    def __init__(self, options: DataOptions) -> None:
        self._normalise = options.normalise

    def spec(self) -> DataSpec:
        """Describe the table. Reads it completely, because it is small."""
        names, _, targets, classes = read_table(self.file, self.task)
        train, validation = self._rows()
        mean, std = target_scale(targets[train]) if self.task == TABULAR_REGRESSION else (0.0, 1.0)
        return DataSpec(
            task=self.task,
            input_shape=(len(names),),
            num_classes=len(classes) or 1,
            class_names=classes,
            num_train=len(train),
            num_validation=len(validation),
            sample_unit=self.sample_unit,
            description=f"{self.description} {len(names)} columns; {len(train)} to train, {len(validation)} "
            "to validate.",
            source=self.source,
            feature_names=names,
            target_mean=mean,
            target_std=std,
        )

    def load(self, device: torch.device) -> tuple[TableSplit, TableSplit]:
        """Read the table; numeric targets are standardised too."""
        _, inputs, targets, _ = read_table(self.file, self.task)
        train, validation = self._rows()
        if self.task == TABULAR_REGRESSION:
            mean, std = target_scale(targets[train])
            targets = (targets - mean) / std
        return table_splits(
            (inputs[train], targets[train]),
            (inputs[validation], targets[validation]),
            normalise=self._normalise,
            device=device,
        )

    def _rows(self) -> tuple[Tensor, Tensor]:
        _, inputs, targets, _ = read_table(self.file, self.task)
        return split_rows(targets if self.task == TABULAR_CLASSIFICATION else None, len(inputs))


@functools.cache
def read_table(path: Path, task: str) -> tuple[tuple[str, ...], Tensor, Tensor, tuple[str, ...]]:
    """Return column names, (rows, columns) floats, (rows,) targets and the classes in order of appearance."""
    header, *rows = csv.reader(gzip.decompress(path.read_bytes()).decode("ascii").splitlines())
    inputs = torch.tensor([[float(cell) for cell in row[:-1]] for row in rows])
    last = [row[-1] for row in rows]
    if task == TABULAR_REGRESSION:
        return tuple(header[:-1]), inputs, torch.tensor([float(cell) for cell in last]), ()
    classes = tuple(dict.fromkeys(last))
    number_of = {name: number for number, name in enumerate(classes)}
    return tuple(header[:-1]), inputs, torch.tensor([number_of[cell] for cell in last]), classes
