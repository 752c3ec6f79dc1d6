"""Converts the features and targets of a table into numbers, and writes them to the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainers.data.dataset import TABULAR_REGRESSION
from trainers.data.own.cache import ArrayWriter, MappedArray, require_space, write_arrays
from trainers.data.own.columns import LARGEST_NUMBER
from trainers.data.own.problems import DataError, quoted
from trainers.data.own.processes import ReadProgress
from trainers.data.own.splits import Rows, split_rows
from trainers.data.own.table_file import Table, parts_of
from trainers.data.own.table_plan import Feature, TablePlan

Numbers = npt.NDArray[np.float64]

_ROWS_AT_ONCE = 8192
_CELLS_AT_ONCE = 400_000
CHARACTERS_AT_ONCE = 16 * 2**20
RAW = "raw"


def feature_names(plan: TablePlan) -> list[str]:
    """Return the names of the numbers that encode a row."""
    return [name for feature in plan.features for name in feature.names]


def write_features(table: Table, plan: TablePlan, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the arrays `inputs`, `targets`, `train` and `validation`; return their metadata and the scale.

    The scale is the mean and standard deviation of each feature (0 and 1 for categories) and of the target.

    This needs two passes over the data. The first one writes raw numbers. Only then are all labels known, and
    with them the training rows, from which the scale for the second pass is computed.

    Raises:
        DataError: if a number is so far from the training values that it becomes infinite.
    """
    width = len(feature_names(plan))
    require_space(folder, table.num_rows * (8 * len(plan.features) + 4 * width))
    targets, raw, split_columns = _write_raw(table, plan, folder)
    labels = None if plan.task == TABULAR_REGRESSION else targets
    train, validation = split_by(split_columns, labels, len(targets))
    is_train = np.zeros(len(targets), dtype=bool)
    is_train[train] = True
    mean, std = _scale_of(raw, is_train)
    centre, spread = (0.0, 1.0)
    if labels is None:
        centre, spread = float(targets[train].mean()), float(targets[train].std()) or 1.0
        targets = _as_floats((targets - centre) / spread, plan.label_name, table)
    writer = ArrayWriter(folder, "inputs", "<f4", (width,))
    progress = ReadProgress("rows written", len(raw))
    for start in range(0, len(raw), _ROWS_AT_ONCE):
        chunk = raw.slice(start, start + _ROWS_AT_ONCE)
        writer.append(_expand(chunk, plan.features, mean, std, table))
        progress.add(len(chunk))
    raw.path.unlink()
    arrays = write_arrays(folder, targets=targets, train=train, validation=validation)
    arrays["inputs"] = writer.close()
    means, stds = _by_number(plan.features, mean, 0.0), _by_number(plan.features, std, 1.0)
    return arrays, {"mean": means, "std": stds, "target_mean": centre, "target_std": spread}


def chunks(
    table: Table, plan: TablePlan, cells: Sequence[str]
) -> Iterator[tuple[list[npt.NDArray[Any]], npt.NDArray[Any]]]:
    """Yield pieces of some thousand rows: the values of `cells`, and the targets (class numbers or numbers).

    Rows without a label or side of the split, or with an unreadable cell in a numeric column, are left out.
    """
    is_number = plan.task == TABULAR_REGRESSION
    checked = [each for each in plan.features if each.cell != "NULL"]
    usable = [f"(abs({each.sql}) <= {LARGEST_NUMBER!r} OR {each.cell} IS NULL)" for each in checked]
    if is_number:
        usable.append(f"abs({plan.label_sql}) <= {LARGEST_NUMBER!r}")
    usable += [f"({plan.split}) IS NOT NULL"] * bool(plan.split)
    expressions = [plan.label_sql, *cells, *usable]
    size = max(256, _CELLS_AT_ONCE // (len(cells) + 1))
    if plan.texts:
        usual, longest = table.query(f"SELECT avg(length({cells[0]})), max(length({cells[0]})) FROM rows")[0]
        maximum = min(CHARACTERS_AT_ONCE / max(1, usual), 32 * CHARACTERS_AT_ONCE / max(1, longest))
        size = max(1, min(size, int(maximum)))
    last = table.value("SELECT max(row) FROM rows")
    for start in range(0, last + 1, size):
        labels, *values = _arrays(table, expressions, start, start + size)
        tests = values[len(cells) :]
        if is_number:
            targets = np.ma.filled(labels, np.nan).astype(np.float64)
            is_good = np.ones(len(labels), dtype=bool)
        else:
            targets = np.array(
                [plan.class_of.get(str(label), -1) for label in labels.tolist()], dtype=np.int64
            )
            is_good = targets >= 0
        for test in tests:
            is_good &= np.ma.filled(test, False).astype(bool)
        if is_good.any():
            yield [each[is_good] for each in values[: len(cells)]], targets[is_good]


def _arrays(table: Table, expressions: Sequence[str], start: int, end: int) -> list[npt.NDArray[Any]]:
    """Return the values of SQL expressions for the rows from `start` up to `end`."""
    arrays: list[npt.NDArray[Any]] = []
    for batch in parts_of(expressions):
        cells = ", ".join(f"{sql} AS f{index}" for index, sql in enumerate(batch))
        selected = table.select(
            f"SELECT {cells} FROM rows WHERE row >= {start} AND row < {end} ORDER BY row"
        ).fetchnumpy()
        arrays += [selected[f"f{index}"] for index in range(len(batch))]
    return arrays


def split_by(
    held: list[npt.NDArray[Any]], labels: npt.NDArray[Any] | None, num_rows: int
) -> tuple[Rows, Rows]:
    """Return the rows of training and validation: by a column's pieces `held` if any, else a fifth."""
    if not held:
        return split_rows(labels, num_rows)
    is_held = np.concatenate(held).astype(bool)
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def _write_raw(
    table: Table, plan: TablePlan, folder: Path
) -> tuple[npt.NDArray[Any], MappedArray, list[npt.NDArray[Any]]]:
    """Write raw numbers, category numbers, and NaN for missing cells; return targets, array and split."""
    writer = ArrayWriter(folder, RAW, "<f8", (len(plan.features),))
    all_targets, held = [], []
    progress = ReadProgress("rows read", table.num_rows)
    expressions = [*(feature.sql for feature in plan.features), *[plan.split] * bool(plan.split)]
    for values, targets in chunks(table, plan, expressions):
        held += values[len(plan.features) :]
        columns = [_column(cells, feature) for cells, feature in zip(values, plan.features, strict=False)]
        writer.append(np.stack(columns, axis=1))
        all_targets.append(targets)
        progress.add(len(targets))
    array = MappedArray.of(folder, RAW, {RAW: writer.close()})
    return np.concatenate(all_targets), array, held


def _column(cells: npt.NDArray[Any], feature: Feature) -> Numbers:
    """Return a column as numbers: categories by their number, NaN for a missing cell."""
    if not feature.values:
        return np.ma.filled(cells.astype(np.float64), np.nan)
    place_of = {value: float(index) for index, value in enumerate(feature.values)}
    other_code = float(len(feature.values))
    return np.array(
        [np.nan if cell is None else place_of.get(str(cell), other_code) for cell in cells.tolist()]
    )


def _scale_of(raw: MappedArray, is_train: npt.NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """Return mean and standard deviation of each column over the training rows, ignoring missing values.

    The mean is computed first, so that a large mean does not cancel the digits of the deviation.
    """
    starts = range(0, len(raw), _ROWS_AT_ONCE)
    pieces = [slice(start, start + _ROWS_AT_ONCE) for start in starts]

    def training(chunk: slice) -> Numbers:
        rows: Numbers = raw.slice(chunk.start, chunk.stop)[is_train[chunk]]
        return rows

    count = np.maximum(sum((~np.isnan(training(chunk))).sum(axis=0) for chunk in pieces), 1)
    mean = sum(np.nansum(training(chunk) / count, axis=0) for chunk in pieces)
    std = np.sqrt(sum(np.nansum(np.square(training(chunk) - mean), axis=0) for chunk in pieces) / count)
    return mean, np.where(std > 0, std, 1.0)


def _expand(
    chunk: Numbers, features: Sequence[Feature], mean: Numbers, std: Numbers, table: Table
) -> npt.NDArray[np.float32]:
    """Return (rows, numbers): numeric columns standardised, with missing as the mean; categories one-hot."""
    parts = []
    for index, feature in enumerate(features):
        column = chunk[:, index]
        is_gone = np.isnan(column)
        if feature.values:
            kinds = np.arange(len(feature.values) + feature.has_other)
            parts.append((column[:, None] == kinds).astype(np.float32))
        else:
            scaled = np.where(is_gone, 0.0, (column - mean[index]) / std[index])
            parts.append(_as_floats(scaled, feature.name, table)[:, None])
        if feature.has_missing:
            parts.append(is_gone[:, None].astype(np.float32))
    return np.concatenate(parts, axis=1)


def _as_floats(values: Numbers, name: str, table: Table) -> npt.NDArray[np.float32]:
    """Return standardised numbers as float32."""
    if not (np.abs(values) <= LARGEST_NUMBER).all():
        away = float(np.abs(values).max())
        message = f"a number lies {away:.2g} times the usual deviation off the others: too far."
        raise DataError.of(str(table.path), f"column {quoted(name)}", message, "Mend it, or take it out.")
    return values.astype(np.float32)


def _by_number(features: Sequence[Feature], values: Numbers, of_category: float) -> list[float]:
    """Return one value per number of an encoded row: a numeric column's own value, else `of_category`."""
    groups = []
    for value, feature in zip(values.tolist(), features, strict=True):
        own = [] if feature.values else [value]
        groups += own + [of_category] * (len(feature.names) - len(own))
    return groups
