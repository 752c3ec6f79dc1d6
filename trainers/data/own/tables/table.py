"""A table as CSV, TSV or Parquet: rows to classify, numbers to predict, or texts with a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainers.data.dataset import (
    TABULAR_REGRESSION,
    TEXT_CLASSIFICATION,
    DataOptions,
    DataSpec,
    Split,
    TableColumn,
)
from trainers.data.own.common.cache import tokenizer_fingerprint
from trainers.data.own.common.kind import SMALL_BYTES
from trainers.data.own.common.problems import DataError, Problems
from trainers.data.own.common.progress import Progress
from trainers.data.own.common.splits import MappedRowsSplit, whole
from trainers.data.own.common.store import MappedArray, Prepared
from trainers.data.own.images.classes import FEW_PER_CLASS, MIN_PER_CLASS, check_counts
from trainers.data.own.tables.columns import Column
from trainers.data.own.tables.features import (
    TooFarError,
    columns_of,
    feature_names,
    rows_of,
    write_features,
)
from trainers.data.own.tables.table_plan import Plan, make_plan
from trainers.data.own.tables.table_rows import Table, open_table
from trainers.data.own.tables.text_table import MappedTexts, Reader, write_texts
from trainers.data.tables import TableSplit, num_validation
from trainers.data.text import TextSplit

NUM_PREVIEW_ROWS = 8
MAX_PREVIEW_CELL = 200
NUM_BINS = 20
SINGLE_WORDS = 2.0  # texts of fewer words on average are read by their characters


@dataclass(frozen=True, kw_only=True)
class TableInspection:
    """What one pass over the table saw."""

    table: Table
    columns: Sequence[Column]
    plan: Plan | None
    num_rows: int
    first_rows: list[list[str]]


class TableData:
    """A table at a path."""

    name = "table"

    def __init__(self, path: Path, options: DataOptions) -> None:
        self._path = path
        self._options = options

    def options(self) -> dict[str, object]:
        """Return what, beside the file, decides what is prepared."""
        options = self._options
        return {
            "kind": self.name,
            "label_column": options.label_column,
            "task": options.task,
            "skip_unreadable": options.skip_unreadable,
            "sequence_length": options.sequence_length,
            "tokenizer": tokenizer_fingerprint(options.tokenizer),
        }

    def inspect(self, problems: Problems) -> TableInspection:
        """Go through the whole table once, and decide what is to be learnt from it."""
        table = open_table(self._path, skip_unreadable=self._options.skip_unreadable, problems=problems)
        if problems.num_faults:
            return TableInspection(table=table, columns=[], plan=None, num_rows=0, first_rows=[])
        width = len(table.header)
        columns = [Column(name, width, decimal_comma=table.decimal_comma) for name in table.header]
        first_rows: list[list[str]] = []
        num_rows = 0
        progress = Progress("rows looked at", 0)
        for lines, rows in table.chunks(problems):
            first_rows += rows[: NUM_PREVIEW_ROWS - len(first_rows)]
            num_rows += len(rows)
            for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
                column.add(lines, cells)
            progress.add(len(rows))
        progress.finish()
        plan = None
        if num_rows:
            plan = make_plan(columns, self._options, problems)
        elif not problems.num_faults:
            hint = "Give a table with rows below the column names."
            problems.fault(self._path.name, "there are no rows.", hint)
        return TableInspection(
            table=table, columns=columns, plan=plan, num_rows=num_rows, first_rows=first_rows
        )

    def about(self, inspection: TableInspection) -> dict[str, Any]:
        """Return the columns, the first rows, and how the label is spread."""
        preview: dict[str, Any] = {
            "header": list(inspection.table.header),
            "rows": [[cell[:MAX_PREVIEW_CELL] for cell in row] for row in inspection.first_rows],
            "num_rows": inspection.num_rows,
        }
        plan = inspection.plan
        if plan is not None:
            label = inspection.columns[plan.label]
            if plan.task == TABULAR_REGRESSION:
                preview["target"] = _histogram(label)
            else:
                preview["class_counts"] = {name: label.counts[name] for name in plan.class_names}
            if plan.text is not None and (words := inspection.columns[plan.text].words):
                lengths = {"shortest": words.lowest, "median": words.quantile(0.5), "longest": words.highest}
                preview["num_words"] = {name: int(value) for name, value in lengths.items()}
        return {
            "task": None if plan is None else plan.task,
            "columns": [column.about() for column in inspection.columns],
            "label_column": None if plan is None else plan.label_name,
            "preview": preview,
        }

    def estimate(self, inspection: TableInspection) -> DataSpec | None:
        """Describe the table; for texts only preparing can tell their vocabulary."""
        plan = inspection.plan
        if plan is None or plan.task == TEXT_CLASSIFICATION:
            return None
        if plan.task == TABULAR_REGRESSION:
            num_rows = inspection.columns[plan.label].num_numbers
            held = num_validation(num_rows)
        else:
            counts = [inspection.columns[plan.label].counts[name] for name in plan.class_names]
            num_rows, held = sum(counts), sum(num_validation(count) for count in counts)
        return self._table_spec(plan.task, plan.class_names, feature_names(plan), num_rows - held, held)

    def prepare(self, inspection: TableInspection, folder: Path, problems: Problems) -> dict[str, Any]:
        """Write the rows as numbers."""
        plan = inspection.plan
        assert plan is not None, "a look without a plan has faults"
        about = {"task": plan.task, "class_names": list(plan.class_names)}
        if plan.task != TEXT_CLASSIFICATION:
            try:
                arrays, scale = write_features(inspection.table, plan, folder, inspection.num_rows)
            except TooFarError as error:
                where, message = error.args
                problems.fault(where, message, "Mend it, or take it out.")
                raise DataError(str(self._path), problems.shown, problems.num_faults) from error
            self._check_classes(folder, arrays, plan, problems)
            names, columns = feature_names(plan), [asdict(column) for column in columns_of(plan)]
            return {
                "arrays": arrays,
                "feature_names": names,
                "columns": columns,
                "scale": vars(scale),
                **about,
            }
        assert plan.text is not None
        arrays, reader = write_texts(
            inspection.table,
            plan,
            folder,
            num_rows=inspection.num_rows,
            file_bytes=self._path.stat().st_size,
            single_words=inspection.columns[plan.text].words.mean < SINGLE_WORDS,
            length=self._options.sequence_length,
            own=self._options.tokenizer,
        )
        self._check_classes(folder, arrays, plan, problems)
        return {"arrays": arrays, "reader": vars(reader), **about}

    def _check_classes(self, folder: Path, arrays: dict[str, Any], plan: Plan, problems: Problems) -> None:
        """Refuse classes of which too few rows are left when unreadable ones are left out."""
        if plan.task != TABULAR_REGRESSION:
            about = arrays["targets"]
            targets = MappedArray(folder / "targets.bin", about["dtype"], tuple(about["shape"]))
            counts = np.bincount(targets.slice(0, len(targets)), minlength=len(plan.class_names)).tolist()
            few = {name: n for name, n in zip(plan.class_names, counts, strict=True) if n < MIN_PER_CLASS}
            if few:
                # With another name, so that one class alone is not taken for all there are.
                check_counts(few | {"the others": FEW_PER_CLASS}, "usable rows", problems)
        problems.check(str(self._path))

    def spec(self, prepared: Prepared) -> DataSpec:
        """Describe the prepared table."""
        meta = prepared.meta
        num_train, num_held = len(prepared.array("train")), len(prepared.array("validation"))
        names = tuple(meta["class_names"])
        if meta["task"] == TEXT_CLASSIFICATION:
            return self._text_spec(prepared, names, num_train, num_held)
        spec = self._table_spec(meta["task"], names, meta["feature_names"], num_train, num_held)
        scale = meta["scale"]
        # What an earlier version has prepared does not name the columns.
        columns = tuple(
            TableColumn(**{**column, "values": tuple(column["values"])}) for column in meta.get("columns", [])
        )
        return replace(
            spec, columns=columns, target_mean=scale["target_mean"], target_std=scale["target_std"]
        )

    def splits(self, prepared: Prepared, device: torch.device) -> tuple[Split, Split]:
        """Return training and validation rows."""
        make = self._text_split if prepared.meta["task"] == TEXT_CLASSIFICATION else self._table_split
        train, validation = (make(prepared, side, device) for side in ("train", "validation"))
        return train, validation

    def _table_split(self, prepared: Prepared, side: str, device: torch.device) -> Split:
        inputs, targets = prepared.array("inputs"), prepared.array("targets")
        rows, targets_here = rows_of(prepared.array(side)), targets.slice(0, len(targets))
        scale = prepared.meta["scale"]
        mean, std = (np.array(scale[name], dtype=np.float64) for name in ("mean", "std"))
        if inputs.num_bytes > SMALL_BYTES and device.type == "cpu":
            own_units = None if self._options.normalise else (mean, std)
            return MappedRowsSplit(inputs, targets_here, rows, scale=own_units)
        values = whole(inputs, rows, device)
        no_mean, no_std = torch.zeros(len(mean)), torch.ones(len(std))
        if not self._options.normalise:
            by, to = torch.from_numpy(std).to(device), torch.from_numpy(mean).to(device)
            values = (values.double() * by + to).float()
        split = TableSplit(
            values,
            torch.from_numpy(targets_here[rows]),
            feature_mean=no_mean.to(device),
            feature_std=no_std.to(device),
            device=device,
        )
        split.feature_mean, split.feature_std = no_mean, no_std
        if self._options.normalise:
            # The rows on the disk are standardised; the split is told how to write them in their own units.
            split.feature_mean, split.feature_std = (torch.tensor(x).float() for x in (mean, std))
        return split

    def _text_split(self, prepared: Prepared, side: str, device: torch.device) -> Split:
        inputs, targets = prepared.array("inputs"), prepared.array("targets")
        rows, targets_here = rows_of(prepared.array(side)), targets.slice(0, len(targets))
        texts = MappedTexts(prepared.array("texts"), prepared.array("ends"), rows)
        if inputs.num_bytes > SMALL_BYTES and device.type == "cpu":
            return MappedRowsSplit(inputs, targets_here, rows, texts=texts)
        tokens = whole(inputs, rows, device)
        return TextSplit(tokens, torch.from_numpy(targets_here[rows]), texts, device=device)

    def _table_spec(
        self, task: str, names: tuple[str, ...], features: Sequence[str], num_train: int, num_held: int
    ) -> DataSpec:
        what = "with a number to predict" if task == TABULAR_REGRESSION else f"of {len(names)} classes"
        return DataSpec(
            task=task,
            input_shape=(len(features),),
            num_classes=len(names) or 1,
            class_names=names,
            num_train=num_train,
            num_validation=num_held,
            sample_unit="rows",
            description=f"Your own table: rows {what}, {len(features)} numbers each; {num_train:,} to train, "
            f"{num_held:,} to validate.",
            source=f"your own data, {self._path}",
            watched_paths=(self._path,),
            feature_names=tuple(features),
            num_bytes=num_train * len(features) * 4,
        )

    def _text_spec(
        self, prepared: Prepared, names: tuple[str, ...], num_train: int, num_held: int
    ) -> DataSpec:
        reader = Reader(**prepared.meta["reader"])
        tokenizer = reader.tokenizer(self._options.tokenizer)
        inputs = prepared.array("inputs")
        units = reader.of or "tokens"
        return DataSpec(
            task=TEXT_CLASSIFICATION,
            input_shape=inputs.shape[1:],
            num_classes=len(names),
            class_names=names,
            num_train=num_train,
            num_validation=num_held,
            sample_unit="texts",
            description=f"Your own texts of {len(names)} classes, up to {inputs.shape[1]} {units} of each; "
            f"{num_train:,} to train, {num_held:,} to validate.",
            source=f"your own data, {self._path}",
            watched_paths=(self._path,),
            vocabulary_size=tokenizer.vocabulary_size,
            padding=tokenizer.padding,
            decode=tokenizer.decode,
            num_bytes=num_train * inputs.shape[1] * inputs.dtype.itemsize,
        )


def _histogram(label: Column) -> dict[str, Any]:
    numbers = label.numbers
    if not label.num_numbers:
        return {}
    return {
        "min": numbers.lowest,
        "median": numbers.quantile(0.5),
        "max": numbers.highest,
        "histogram": numbers.histogram(NUM_BINS),
    }
