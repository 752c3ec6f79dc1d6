"""What is to be learnt from a table: which column is the label, which are features, and of what kind."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trainers.data.dataset import TABULAR_CLASSIFICATION, TABULAR_REGRESSION, TEXT_CLASSIFICATION, DataOptions
from trainers.data.own.common.problems import Problems, listed, quoted
from trainers.data.own.images import classes
from trainers.data.own.tables.columns import (
    CATEGORY,
    CONSTANT,
    EMPTY,
    IDENTIFIER,
    LARGEST_NUMBER,
    MIXED,
    NUMBER,
    TEXT,
    Column,
)

LABEL_NAMES = ("label", "labels", "target", "class")
MAX_NUMBER_CLASSES = 20  # whole numbers of up to so many different values are classes
MAX_CLASSES = 1_000
MAX_CLASS_NAME = 200
MAX_NAMES_COMPARED = 1_000
MAX_ONE_HOT = 32
MIN_ROWS = 10
MOST_IN_OTHER = 0.5
TASKS = (TABULAR_CLASSIFICATION, TABULAR_REGRESSION, TEXT_CLASSIFICATION)
TOO_CLOSE = "its numbers differ by less than can be told apart in the computations."
OTHER = "other"
MISSING_NAME = "missing"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One column a model sees.

    Attributes:
        index: of the column in the table.
        values: the categories that get a number of their own; none for a column of numbers.
        has_other: the rest of the categories share one more.
        has_missing: whether a cell is there is a feature, too.
    """

    index: int
    name: str
    values: tuple[str, ...] = ()
    has_other: bool = False
    has_missing: bool = False

    @property
    def names(self) -> list[str]:
        """Return the names of the numbers this column becomes."""
        rest = [OTHER] * self.has_other + [MISSING_NAME] * self.has_missing
        if not self.values:
            return [self.name, *(f"{self.name} = {name}" for name in rest)]
        return [f"{self.name} = {value}" for value in (*self.values, *rest)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How rows become samples.

    Attributes:
        text: index of the column of texts, where they are what is read; else None.
        class_names: none for a number to predict.
    """

    task: str
    label: int
    label_name: str
    features: tuple[Feature, ...]
    text: int | None
    class_names: tuple[str, ...]


def make_plan(columns: Sequence[Column], options: DataOptions, problems: Problems) -> Plan | None:
    """Decide what is learnt from what; return None where faults leave nothing to decide."""
    if options.task not in ("auto", *TASKS):
        message = f"{options.task.replace('_', ' ')} cannot be learnt from a table."
        hint = f"Choose auto, or one of: {', '.join(TASKS)}."
        problems.fault("the task", message, hint, suggested={"data_task": "auto"})
        return None
    label = _label_column(columns, options.label_column, problems)
    if label is None:
        return None
    task = _task(columns, label, options.task, problems)
    if task is None:
        return None
    names = () if task == TABULAR_REGRESSION else _class_names(columns[label], problems)
    _check_label(columns[label], task, skip=options.skip_unreadable, problems=problems)
    text = _text_column(columns, label) if task == TEXT_CLASSIFICATION else None
    features: tuple[Feature, ...] = ()
    if task == TEXT_CLASSIFICATION:
        if text is None:
            problems.fault("the table", "no column holds texts.", "Choose a task for tables.")
        else:
            others = [quoted(c.name) for i, c in enumerate(columns) if i not in (label, text)]
            if others:
                problems.note("the table", f"only the texts are read; left out: {listed(others)}.")
            _note_missing(columns[text], "Read as texts of no words.", problems)
    else:
        found = [
            _feature(index, column, options.skip_unreadable, problems)
            for index, column in enumerate(columns)
            if index != label
        ]
        features = tuple(feature for feature in found if feature is not None)
        if not features:
            problems.fault(
                "the table", "no column is left to learn from.", "Add columns, or choose the label."
            )
    return Plan(
        task=task,
        label=label,
        label_name=columns[label].name,
        features=features,
        text=text,
        class_names=names,
    )


def _label_column(columns: Sequence[Column], wanted: str, problems: Problems) -> int | None:
    """Return the column asked for; else the one called label, target or class; else the last one."""
    names = [column.name for column in columns]
    if not wanted:
        called = [index for index, name in enumerate(names) if name.lower() in LABEL_NAMES]
        return called[0] if len(called) == 1 else len(names) - 1
    if wanted in names:
        return names.index(wanted)
    close = difflib.get_close_matches(wanted, names[:MAX_NAMES_COMPARED], n=1, cutoff=0.5)
    hint = f"Did you mean {quoted(close[0])}? " if close else ""
    hint += f"The columns are: {listed([quoted(name) for name in names], 20)}."
    suggested = {"label_column": close[0] if close else ""}
    problems.fault("the label column", f"there is no column {quoted(wanted)}.", hint, suggested=suggested)
    return None


def _task(columns: Sequence[Column], label: int, wanted: str, problems: Problems) -> str | None:
    column = columns[label]
    where = f"column {quoted(column.name)}"
    if column.kind == EMPTY:
        problems.fault(where, "the label column is empty.", "Choose another label column.")
        return None
    if column.kind == TEXT or (column.kind == IDENTIFIER and wanted != TABULAR_REGRESSION):
        message = "nearly all its values are different, so it cannot be the label."
        problems.fault(where, message, "Choose another label column.")
        return None
    if wanted != "auto":
        return wanted
    has_few = not column.has_more_values and column.num_distinct <= MAX_NUMBER_CLASSES
    is_number = column.kind in (NUMBER, MIXED) or (column.kind == CONSTANT and column.num_numbers > 0)
    if is_number and not (column.all_whole and has_few):
        return TABULAR_REGRESSION
    return TABULAR_CLASSIFICATION if _text_column(columns, label) is None else TEXT_CLASSIFICATION


def _text_column(columns: Sequence[Column], label: int) -> int | None:
    """Return the column of the longest texts; of a table of two columns also one of single words."""
    others = [index for index in range(len(columns)) if index != label]
    texts = [index for index in others if columns[index].kind == TEXT]
    if texts:
        return max(texts, key=lambda index: columns[index].words.mean)
    words = [index for index in others if columns[index].kind in (IDENTIFIER, CATEGORY)]
    words = [index for index in words if columns[index].num_numbers == 0]
    many = [index for index in words if columns[index].num_distinct > MAX_ONE_HOT]
    return many[0] if len(others) == 1 and many else None


def _class_names(label: Column, problems: Problems) -> tuple[str, ...]:
    where = f"column {quoted(label.name)}"
    if label.has_more_values or label.num_distinct > MAX_CLASSES:
        message = (
            f"it has {label.num_distinct:,} or more different values; {MAX_CLASSES:,} classes are the most."
        )
        hint = "Choose another label column, or the task tabular regression for a number."
        suggested = {"data_task": TABULAR_REGRESSION} if label.kind == NUMBER else {}
        problems.fault(where, message, hint, suggested=suggested)
        return ()
    longest = max(label.counts, key=len)
    if len(longest) > MAX_CLASS_NAME:
        message = f"a class's name is {len(longest):,} characters long; {MAX_CLASS_NAME} are the most."
        problems.fault(where, message, "Choose another label column, or shorten the names.")
        return ()
    names = classes.sort_classes(label.counts)
    if label.name in label.counts:
        message = (
            f"its name, {quoted(label.name)}, is also one of its values: the header seems to be missing."
        )
        problems.fault(where, message, "Put a line with a name for each column first.", line=1)
    classes.check_counts({name: label.counts[name] for name in names}, "rows", problems)
    return tuple(names)


def _check_label(label: Column, task: str, *, skip: bool, problems: Problems) -> None:
    where = f"column {quoted(label.name)}"
    if label.num_missing:
        message = f"the label is missing in {label.num_missing:,} rows: lines {listed(label.missing_lines)}."
        line = label.missing_lines[0]
        problems.unreadable(
            where,
            message,
            "Fill them in or delete the rows.",
            skip=skip,
            line=line,
            num_samples=label.num_missing,
        )
    if task == TABULAR_REGRESSION:
        _check_numbers(label, skip, problems)
        if label.num_numbers < MIN_ROWS:
            message = f"it has {label.num_numbers} numbers; {MIN_ROWS} are the least."
            problems.fault(where, message, "Add rows, or choose another label column.")
        elif label.num_distinct == 1:
            problems.fault(where, "all its numbers are the same.", "Choose another label column.")
        elif label.is_too_close:
            problems.fault(where, TOO_CLOSE, "Subtract what they have in common, or choose another unit.")
    elif label.kind == MIXED and label.num_distinct > MAX_NUMBER_CLASSES:
        _check_numbers(label, skip, problems)


def _feature(index: int, column: Column, skip: bool, problems: Problems) -> Feature | None:
    where = f"column {quoted(column.name)}"
    kind = column.kind
    if kind in (EMPTY, CONSTANT, IDENTIFIER, TEXT):
        why = {
            EMPTY: "it is empty.",
            CONSTANT: "all its values are the same.",
            IDENTIFIER: "all its values are different, like names of rows.",
            TEXT: "it holds texts, and this task reads only numbers and categories.",
        }[kind]
        problems.note(where, f"{why} It is left out.")
        return None
    if kind in (NUMBER, MIXED):
        _check_numbers(column, skip, problems)
        if column.is_too_close:
            problems.note(
                where, f"{TOO_CLOSE} It is left out.", "Subtract what they have in common, to use it."
            )
            return None
    has_missing = column.num_missing > 0
    if kind in (NUMBER, MIXED):
        _note_missing(column, "Taken as the mean, with a column that says so.", problems)
        return Feature(index=index, name=column.name, has_missing=has_missing)
    common = _most_common(column.counts)
    in_other = column.num_present - sum(column.counts[value] for value in common)
    if column.has_more_values or in_other > MOST_IN_OTHER * column.num_present:
        message = f"it has {column.num_distinct:,} or more categories, most of them rare. It is left out."
        problems.note(where, message, "Group them into fewer, to use them.")
        return None
    _note_missing(column, "Taken as a category of its own.", problems)
    return Feature(
        index=index, name=column.name, values=common, has_other=in_other > 0, has_missing=has_missing
    )


def _most_common(counts: Counter[str]) -> tuple[str, ...]:
    if len(counts) <= MAX_ONE_HOT:
        return tuple(classes.sort_classes(counts))
    by_count = sorted(counts, key=lambda value: (-counts[value], value))
    return tuple(classes.sort_classes(by_count[: MAX_ONE_HOT - 1]))


def _check_numbers(column: Column, skip: bool, problems: Problems) -> None:
    """Tell of the values of a column of numbers that are none, or too large ones."""
    if column.num_too_large:
        examples = ", ".join(f"{quoted(value)} in line {line:,}" for line, value in column.too_large)
        message = f"{column.num_too_large:,} of its numbers are too large to compute with: {examples}."
        hint = f"Mend them, or take another unit; numbers up to {LARGEST_NUMBER:g} can be used."
        where, line = f"column {quoted(column.name)}", column.too_large[0][0]
        num = column.num_too_large
        problems.unreadable(where, message, hint, skip=skip, line=line, num_samples=num)
    if column.not_numbers:
        _fault_not_numbers(column, skip, problems)


def _fault_not_numbers(column: Column, skip: bool, problems: Problems) -> None:
    rest = column.num_present - column.num_numbers - column.num_too_large
    examples = ", ".join(f"{quoted(value)} in line {line:,}" for line, value in column.not_numbers[:5])
    message = f"{column.num_numbers:,} of its values are numbers and {rest:,} are not: {examples}."
    line = column.not_numbers[0][0]
    hint = "Mend them; a number is written like 1234.5, without units or thousands marks."
    problems.unreadable(
        f"column {quoted(column.name)}", message, hint, skip=skip, line=line, num_samples=rest
    )


def _note_missing(column: Column, how: str, problems: Problems) -> None:
    if column.num_missing:
        total = column.num_missing + column.num_present
        lines = listed(column.missing_lines)
        more = "" if column.num_missing <= len(column.missing_lines) else " …"
        message = f"{column.num_missing:,} of {total:,} values are missing: lines {lines}{more}."
        line = column.missing_lines[0]
        problems.note(f"column {quoted(column.name)}", message, how, line=line)
