"""Plans how a model learns from a table: task, label, classes and features."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainers.data.dataset import (
    TABULAR_CLASSIFICATION,
    TABULAR_REGRESSION,
    TEXT_CLASSIFICATION,
    DataOptions,
    TableColumn,
)
from trainers.data.own import columns as columns_module
from trainers.data.own import images
from trainers.data.own.columns import Column
from trainers.data.own.problems import Problems, listed, quoted
from trainers.data.own.table_file import Table, column, literal

LABEL_NAMES = (
    "label", "labels", "target", "class", "zielvariable", "zielgröße", "étiquette", "etiqueta", "标签",
    "ラベル", "метка", "class_label", "class label", "target_class",
)  # fmt: skip
# Other common label names; if another column is the label, a note suggests them.
OTHER_LABEL_NAMES = (
    "y", "species", "outcome", "diagnosis", "category", "sentiment", "survived", "churn", "stars", "emotion",
    "intent", "klasse", "ziel", "classe", "cible", "clase", "objetivo", "类别", "目标", "分類", "クラス",
)  # fmt: skip
CLASS_NAMES = ("label", "labels", "class", "classe", "clase", "klasse", "category", "species", "类别")
MAX_NAME_WORDS = 7.0  # per cell; a text column with more decides the task
MIN_OF_TABLE = 4  # features beside texts that are names
MAX_NUMBER_CLASSES = 20  # integers with at most this many distinct values are classes
MAX_CLASSES = 1_000
MAX_CLASS_NAME = 200
MAX_NAMES_COMPARED = 1_000
MAX_ONE_HOT = columns_module.MAX_ONE_HOT
MIN_ROWS = 10
MAX_NOTED = 20  # columns; more are reported together
AS_MEAN = "A missing number is read as the mean, with a column that says so."
AS_CATEGORY = "A missing category is read as a category of its own."
MOST_IN_OTHER = 0.5
CLASS_LIKE_MISSING = 0.02  # from this share of rows on, labels spelled like a missing value are a class
TASKS = (TABULAR_CLASSIFICATION, TABULAR_REGRESSION, TEXT_CLASSIFICATION)
TOO_CLOSE = "its numbers differ by less than can be told apart in the computations."
OTHER = "other"
MISSING_NAME = "missing"


@dataclass(frozen=True, kw_only=True)
class Feature(TableColumn):
    """One column, or one part of a date, as model input.

    Attributes:
        sql: SQL of the number, or of the category's text; NULL if missing.
        cell: SQL of the cell of a column in which some cells are not numbers; their rows are unreadable.
    """

    sql: str
    cell: str = "NULL"

    @property
    def names(self) -> list[str]:
        """Return the names of the numbers that encode this column."""
        rest = [OTHER] * self.has_other + [MISSING_NAME] * self.has_missing
        if not self.values:
            return [self.name, *(f"{self.name} = {name}" for name in rest)]
        return [f"{self.name} = {value}" for value in (*self.values, *rest)]


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """How rows are converted into samples.

    Attributes:
        label: index of the label column.
        used: indices of the columns used as features.
        texts: indices of the text columns, for text classification.
        class_of: class number of each label as written; empty for regression.
        class_counts: number of rows per class.
        split: SQL, true for rows of validation, false for training, NULL for others; empty without a split.
        num_split: number of rows of training and validation with a split.
    """

    task: str
    label: int
    label_name: str
    label_sql: str
    features: tuple[Feature, ...] = ()
    used: tuple[int, ...] = ()
    texts: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    class_of: Mapping[str, int]
    class_counts: Mapping[str, int]
    split: str = ""
    num_split: tuple[int, int] = (0, 0)


def patch(**reading: Any) -> dict[str, str]:
    """Return a change of `data_reading` as `suggested` of a `DataProblem`."""
    return {"data_reading": json.dumps(reading, ensure_ascii=False)}


def make_plan(
    table: Table, columns: list[Column], options: DataOptions, reading: Mapping[str, Any], problems: Problems
) -> TablePlan | None:
    """Decide the task, label and features; return None if faults prevent that."""
    if options.task not in ("auto", *TASKS):
        message = f"{options.task.replace('_', ' ')} cannot be learned from a table."
        hint = f"Choose auto, or one of: {', '.join(TASKS)}."
        problems.fault("the task", message, hint, suggested={"data_task": "auto"})
        return None
    index = label_place(columns, options.label_column, problems)
    if index is None:
        return None
    label, labels = _labels(table, columns[index], reading)
    task = _task(columns, label, options.task, problems)
    if task is None:
        return None
    columns[index] = label
    class_of: dict[str, int] = {}
    names: tuple[str, ...] = ()
    counts: dict[str, int] = {}
    if task != TABULAR_REGRESSION:
        names, class_of, counts = _classes(table, label, labels, reading, problems)
    _check_label(table, label, task, skip=options.skip_unreadable, problems=problems)
    texts: tuple[int, ...] = ()
    features: list[Feature] = []
    used: list[int] = []
    if task == TEXT_CLASSIFICATION:
        texts = _text_columns(columns, label.index, reading, problems)
        if not texts:
            problems.fault(
                "the table",
                "no column holds texts.",
                "Choose a task for tables.",
                suggested={"data_task": "auto"},
            )
    else:
        other_columns = [each for each in columns if each.index != label.index]
        categories = [each for each in other_columns if each.kind == columns_module.CATEGORY]
        common = columns_module.frequent_values(table, categories, MAX_ONE_HOT)
        for each in other_columns:
            found = list(
                _features(table, each, common.get(each.index, []), options.skip_unreadable, problems)
            )
            features += found
            used += [each.index] * bool(found)
        _note_missing(table, [columns[index] for index in used], problems)
        if not features and not problems.num_faults:
            hint = "Add columns, choose the label, or override what a column holds."
            problems.fault("the table", "no column is left to learn from.", hint)
    split, num_split = split_of(table, columns, label, task, problems)
    return TablePlan(
        split=split,
        num_split=num_split,
        task=task,
        label=label.index,
        label_name=label.name,
        label_sql=label.number if task == TABULAR_REGRESSION else label.cell,
        features=tuple(features),
        used=tuple(used),
        texts=texts,
        class_names=names,
        class_of=class_of,
        class_counts=counts,
    )


def split_of(
    table: Table, columns: Sequence[Column], label: Column, task: str, problems: Problems
) -> tuple[str, tuple[int, int]]:
    """Return the SQL of the split that a column says, and the number of rows of both sides."""
    split_columns = [
        each for each in columns if each.kind == columns_module.SPLIT and each.index != label.index
    ]
    if not split_columns:
        return "", (0, 0)
    cell, known = split_columns[0].cell, label.number if task == TABULAR_REGRESSION else label.cell
    counts: dict[str, int] = dict(
        table.query(
            f"SELECT {cell} AS side, count(*) AS n FROM rows "
            f"WHERE {cell} IS NOT NULL AND {known} IS NOT NULL GROUP BY side ORDER BY n DESC, side"
        )
    )
    sides = {value: images.side_of(value) for value in counts}
    sides_to_hold_out = (side for side in sides.values() if side != "train")
    held_out_side = min(sides_to_hold_out, key=images.VALIDATION_WORDS.index, default="")
    train, validation = (
        [value for value in counts if sides[value] == side] for side in ("train", held_out_side)
    )
    location = split_columns[0].where
    if not train or not validation:
        problems.fault(
            location,
            f"no label is known in the rows for {'validation' if train else 'training'}.",
            "Ignore this column, and the rows are divided at random.",
            suggested=patch(columns={split_columns[0].name: columns_module.IGNORED}),
            action="Ignore the column",
        )
        return "", (0, 0)
    unused = [value for value in counts if value not in (*train, *validation)]
    message = ", ".join(
        f"{sum(counts[value] for value in values):,} rows ({listed(values)}) {what}"
        for values, what in (
            (train, "are for training"),
            (validation, "for validation"),
            (unused, "are not used"),
        )
        if values
    )
    problems.note(location, f"{message}.")
    is_in = [f"{cell} IN ({', '.join(map(literal, values))})" for values in (train, validation)]
    split = f"CASE WHEN {is_in[0]} THEN false WHEN {is_in[1]} THEN true END"
    if task != TABULAR_REGRESSION:
        lacking = table.query(
            f"SELECT {label.cell} AS l FROM rows WHERE {label.cell} IS NOT NULL GROUP BY l "
            f"HAVING NOT bool_or({is_in[0]}) ORDER BY l"
        )
        if lacking:
            shown = listed([quoted(str(name)) for (name,) in lacking])
            problems.note("the classes", f"these classes are not in the rows for training: {shown}.")
    return split, (sum(counts[value] for value in train), sum(counts[value] for value in validation))


def label_place(columns: Sequence[Column], requested: str, problems: Problems) -> int | None:
    """Return the index of the wanted column, else of the one in `LABEL_NAMES`, else of a likely one.

    Likely are the last numbers or categories with values in more than half of the rows. None if there is no
    wanted column.
    """
    names = [each.name for each in columns]
    if not requested:
        called = [index for index, name in enumerate(names) if name.lower() in LABEL_NAMES]
        if len(called) == 1:
            return called[0]
        kinds = (columns_module.NUMBER, columns_module.MIXED, columns_module.CATEGORY)
        able = [index for index, each in enumerate(columns) if each.kind in kinds]
        full = [index for index in able if 2 * columns[index].num_present > columns[index].num_rows]
        # Beside texts, times and whole numbers that are all different identify a text.
        has_text = any(each.kind == columns_module.TEXT for each in columns)
        likely = [index for index in full if not (has_text and _is_of_text(columns[index]))]
        constant = [index for index, each in enumerate(columns) if each.kind == columns_module.CONSTANT]
        chosen = next((some[-1] for some in (likely, full, able, constant) if some), len(names) - 1)
        if constant and constant[-1] > chosen:
            message = f"all cells of {quoted(names[constant[-1]])} are the same"
            problems.note("the label column", f"{message}: {quoted(names[chosen])} is predicted.")
        is_repeated = columns[-1].kind == columns_module.IDENTIFIER and not columns[-1].all_different
        if is_repeated and chosen != len(names) - 1 and names[chosen].lower() not in OTHER_LABEL_NAMES:
            problems.note(
                "the label column",
                f"{quoted(names[chosen])} is predicted, but the last column is {quoted(names[-1])}.",
                suggested={"label_column": names[-1]},
                action=f"Predict {names[-1][:40]}",
            )
        return chosen
    if requested in names:
        return names.index(requested)
    close = difflib.get_close_matches(requested, names[:MAX_NAMES_COMPARED], n=1, cutoff=0.5)
    hint = f"Did you mean {quoted(close[0])}? " if close else ""
    hint += f"The columns are: {listed([quoted(name) for name in names], 20)}."
    suggested = {"label_column": close[0] if close else ""}
    problems.fault("the label column", f"there is no column {quoted(requested)}.", hint, suggested=suggested)
    return None


def _labels(table: Table, label: Column, reading: Mapping[str, Any]) -> tuple[Column, dict[str, int]]:
    """Return the label column and the counts of its most frequent values.

    Values spelled like a missing value are a class if there are many of them.
    """
    if (
        label.missing
        and label.kind not in (columns_module.NUMBER, columns_module.MIXED)
        and not reading.get("label_missing")
    ):
        spelled = ", ".join(map(literal, label.missing))
        count = table.value(f"SELECT count(*) FROM rows WHERE {column(label.index)} IN ({spelled})")
        if count >= max(2, CLASS_LIKE_MISSING * table.num_rows):
            present = label.num_present + count
            label = replace(
                label, missing=(), num_present=present, num_distinct=label.num_distinct + len(label.missing)
            )
    return label, dict(
        columns_module.frequent_values(table, [label], columns_module.MAX_COUNTED)[label.index]
    )


def _task(columns: Sequence[Column], label: Column, requested: str, problems: Problems) -> str | None:
    location = label.where
    if label.kind == columns_module.EMPTY:
        problems.fault(location, "the label column is empty.", "Choose another label column.")
        return None
    is_name = (
        label.kind == columns_module.IDENTIFIER and label.all_different and requested != TABULAR_REGRESSION
    )
    if label.kind in (columns_module.TEXT, columns_module.FILE_NAME) or is_name:
        message = "nearly all its values are different, so it cannot be the label."
        problems.fault(location, message, "Choose another label column.")
        return None
    if requested != "auto":
        return requested
    texts = _candidates(columns, label.index)
    features = [
        each
        for each in columns
        if each.index != label.index and each.kind not in (*columns_module.LEFT_OUT, columns_module.TEXT)
    ]
    are_read = (
        each.is_chosen or each.ideographs or each.words >= MAX_NAME_WORDS
        for each in map(columns.__getitem__, texts)
    )
    if len(features) >= MIN_OF_TABLE and not any(are_read):
        texts = []  # names of persons or products in a table
    kinds = columns_module
    is_number = label.kind in (kinds.NUMBER, kinds.MIXED, kinds.INDEX, kinds.IDENTIFIER)
    if is_number and not _are_classes(label, bool(texts)):
        if texts and not features:
            message = f"a number ({label.num_distinct:,} different ones) cannot be predicted from texts here."
            hint = "Choose a label with classes, or replace the numbers by a few classes."
            problems.fault(location, message, hint)
            return None
        if texts:
            shown = listed([quoted(columns[index].name) for index in texts])
            message = f"predicting a number from texts is not supported: {shown} is left out."
            problems.note("the table", message)
        return TABULAR_REGRESSION
    return TEXT_CLASSIFICATION if texts else TABULAR_CLASSIFICATION


def _is_of_text(each: Column) -> bool:
    return (each.all_whole and each.all_different) or each.name.lower() in columns_module.ORDERED_NAMES


def _are_classes(label: Column, has_text: bool) -> bool:
    """Return True if the numbers of a label column are class numbers or, with texts, ratings such as 4.5."""
    is_rating = has_text and 5 * label.num_distinct <= label.num_numbers
    if label.is_chosen or not (label.all_whole or is_rating):
        return False
    if label.num_distinct <= MAX_NUMBER_CLASSES:
        return True
    is_repeated = label.num_distinct * 5 <= label.num_numbers and label.num_distinct <= MAX_CLASSES
    spans = label.highest - label.lowest + 1
    is_dense = label.all_whole and label.lowest in (0, 1) and spans <= 1.2 * label.num_distinct
    words = set(re.split(r"[\W\d_]+", label.name.lower()))
    is_named = has_text or not words.isdisjoint(LABEL_NAMES)
    is_class = label.all_whole and not words.isdisjoint(CLASS_NAMES)
    return is_repeated and (is_class or (is_dense and is_named))


def _candidates(columns: Sequence[Column], label: int) -> list[int]:
    """Return the text columns; if there is only one feature, also a column of single words."""
    others = [each for each in columns if each.index != label]
    texts = [each.index for each in others if each.kind == columns_module.TEXT]
    if texts:
        return texts
    kinds = columns_module
    left_out = (kinds.INDEX, kinds.EMPTY, kinds.CONSTANT, kinds.IGNORED, kinds.SPLIT)
    others = [each for each in others if each.kind not in left_out]
    if len(others) != 1 or others[0].num_numbers or others[0].reason == kinds.ADDRESSES:
        return []
    is_word = others[0].kind in (kinds.IDENTIFIER, kinds.CATEGORY) and others[0].num_distinct > MAX_ONE_HOT
    return [others[0].index] if is_word else []


def _text_columns(
    columns: Sequence[Column], label: int, reading: Mapping[str, Any], problems: Problems
) -> tuple[int, ...]:
    names = [each.name for each in columns]
    if requested := [names.index(name) for name in reading.get("text", ()) if name in names]:
        chosen = requested
    else:
        candidates = _candidates(columns, label)
        chosen = sorted(candidates, key=lambda at: columns[at].words * 1000 + columns[at].characters)[-1:]
        if len(candidates) > 1:
            both = [names[index] for index in candidates]
            action = f"Read {', '.join(both[:3])} together"
            message = f"several columns hold texts; {quoted(names[chosen[0]])}, the longest, is read."
            problems.note("the table", message, suggested=patch(text=both), action=action)
    others = [
        quoted(each.name)
        for each in columns
        if each.index not in (label, *chosen) and each.kind not in columns_module.LEFT_OUT
    ]
    if chosen and others:
        problems.note("the table", f"only the texts are read; left out: {listed(others)}.")
    for index in chosen:
        if columns[index].num_missing:
            count = f"{columns[index].num_missing:,} of {columns[index].num_rows:,}"
            hint = "Read as texts of no words."
            problems.note(columns[index].where, f"{count} texts are missing.", hint)
    return tuple(chosen)


# ---- the label


def _classes(
    table: Table, label: Column, labels: Mapping[str, int], reading: Mapping[str, Any], problems: Problems
) -> tuple[tuple[str, ...], dict[str, int], dict[str, int]]:
    """Return the class names, the class number of each label as written, and the rows per class."""
    location = label.where
    nothing: tuple[tuple[str, ...], dict[str, int], dict[str, int]] = ((), {}, {})
    if label.num_distinct > MAX_CLASSES:
        message = f"it has {label.num_distinct:,} different values; {MAX_CLASSES:,} classes are the most."
        suggested = {"data_task": TABULAR_REGRESSION} if label.kind == columns_module.NUMBER else {}
        hint = "Choose another label column, or the task tabular regression for a number."
        problems.fault(location, message, hint, suggested=suggested)
        return nothing
    longest = max(labels, key=len, default="")
    if len(longest) > MAX_CLASS_NAME:
        message = f"a class's name is {len(longest):,} characters long; {MAX_CLASS_NAME} are the most."
        problems.fault(location, message, "Choose another label column, or shorten the names.")
        return nothing
    is_joined = bool(reading.get("join_labels"))
    groups: dict[str, Counter[str]] = {}
    is_number = label.kind == columns_module.NUMBER
    numbers: dict[str, float] = (
        dict(table.query(f"SELECT DISTINCT {label.cell}, {label.number} FROM rows")) if is_number else {}
    )
    for name, count in labels.items():
        key = _number_name(numbers[name]) if is_number else name
        groups.setdefault(images.alike(key) if is_joined else key, Counter())[name] = count
    spelled = {
        key: key if is_number and label.notation.is_plain else group.most_common(1)[0][0]
        for key, group in groups.items()
    }
    _report_alike(
        location, {spelled[key]: group.total() for key, group in groups.items()}, problems, is_label=True
    )
    if not is_number:
        _report_several(location, list(labels), problems)
    _report_like_missing(table, label, labels, location, problems)
    counts = {spelled[key]: group.total() for key, group in groups.items()}
    if reading.get("leave_out_rare"):
        rare = {name: count for name, count in counts.items() if count < images.MIN_PER_CLASS}
        counts = {name: count for name, count in counts.items() if name not in rare}
        if rare:
            message = f"{len(rare):,} classes with one row each are left out: {listed(list(rare))}."
            problems.note(location, message)
    names = images.sort_classes(counts)
    images.check_counts(
        {name: counts[name] for name in names}, "rows", problems, suggested=patch(leave_out_rare=True)
    )
    number = {name: index for index, name in enumerate(names)}
    class_of = {
        name: number[spelled[key]]
        for key, group in groups.items()
        for name in group
        if spelled[key] in number
    }
    return tuple(names), class_of, {name: counts[name] for name in names}


def _number_name(value: float) -> str:
    """Return the canonical spelling of a number: 1 for 1.0 and 01."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _report_several(location: str, labels: Sequence[str], problems: Problems) -> None:
    """Report cells with several labels, such as drama|comedy and ['drama', 'comedy']."""
    are_lists = all(label[:1] == "[" and label[-1:] == "]" for label in labels)
    for mark in "," if are_lists else "|;,/":
        parts = [[part.strip() for part in label.split(mark)] for label in labels if mark in label]
        some = {part for found in parts for part in found}
        is_usual = 2 * len(parts) > len(labels) > 2 and len(some) < len(labels) and all(map(len, some))
        if is_usual or (are_lists and parts):
            example = quoted(mark.join(parts[0]))
            message = f"cells hold several labels, such as {example}: each combination is one."
            hint = "Only one label for each row can be learned: keep the most important one."
            problems.note(location, message, hint)
            return


def _report_alike(
    location: str, counts: Mapping[str, int], problems: Problems, *, is_label: bool = False
) -> None:
    """Report values that differ in case, spaces or invisible characters only."""
    groups: dict[str, list[str]] = {}
    for name in counts:
        groups.setdefault(images.alike(name), []).append(name)
    alike = [sorted(group) for group in groups.values() if len(group) > 1]
    if alike:
        shown = "; ".join(
            ", ".join(f"{quoted(name)} ({counts[name]:,})" for name in group) for group in alike[:5]
        )
        noun, one = ("labels", "class") if is_label else ("values", "category")
        message = f"{noun} differ in case, spaces or invisible characters only: {shown}. Each is "
        message += f"a {one} of its own now."
        action = f"Join them: {len(counts):,} classes become {len(groups):,}" if is_label else ""
        suggested = patch(join_labels=True) if is_label else {}
        problems.note(location, message, suggested=suggested, action=action)


def _report_like_missing(
    table: Table, label: Column, labels: Mapping[str, int], location: str, problems: Problems
) -> None:
    like = {name: count for name, count in labels.items() if name.lower() in columns_module.MISSING}
    if like and label.kind != columns_module.NUMBER:
        num = sum(like.values())
        names = listed([quoted(name) for name in like])
        message = f"{num:,} of {table.num_rows:,} rows have the label {names}. It is read as a class."
        hint = "If it means that the label is not known, leave these rows out."
        action = f"Leave out these {num:,} rows ({num / table.num_rows:.0%})"
        problems.note(location, message, hint, suggested=patch(label_missing=True), action=action)


def _check_label(table: Table, label: Column, task: str, *, skip: bool, problems: Problems) -> None:
    location = label.where
    if label.num_missing:
        lines = table.lines_where(f"{label.cell} IS NULL")
        many = "1 row" if label.num_missing == 1 else f"{label.num_missing:,} rows"
        message = f"the label is missing in {many} of {table.num_rows:,}: lines {listed(lines)}."
        hint = "Fill them in or delete the rows."
        problems.unreadable(location, message, hint, skip=skip, line=lines[0], num_samples=label.num_missing)
    if task == TABULAR_REGRESSION:
        check_numbers(table, label, skip, problems)
        if label.num_numbers < MIN_ROWS:
            message = f"it has {label.num_numbers} numbers; {MIN_ROWS} are the least."
            problems.fault(location, message, "Add rows, or choose another label column.")
        elif label.kind == columns_module.CONSTANT:
            problems.fault(location, "all its numbers are the same.", "Choose another label column.")
        elif label.is_too_close:
            problems.fault(location, TOO_CLOSE, "Subtract what they have in common, or choose another unit.")
    elif label.kind == columns_module.MIXED and label.num_distinct > MAX_NUMBER_CLASSES:
        check_numbers(table, label, skip, problems)


# ---- features


def _features(
    table: Table, each: Column, common: Sequence[tuple[str, int]], skip: bool, problems: Problems
) -> Iterator[Feature]:
    """Yield the features of a column; `common` has the most frequent values and counts of a category."""
    location = each.where
    if each.kind in columns_module.LEFT_OUT:
        return
    if each.kind == columns_module.TEXT:
        message = "it holds texts, and this task reads only numbers and categories. It is left out."
        problems.note(location, message)
        return
    has_missing = each.num_missing > 0
    if each.kind in (columns_module.NUMBER, columns_module.MIXED):
        check_numbers(table, each, skip, problems)
        if each.is_too_close:
            hint = "Subtract what they have in common, to use it."
            problems.note(location, f"{TOO_CLOSE} It is left out.", hint)
            return
        is_clean = each.num_numbers == each.num_present
        yield Feature(
            name=each.name, sql=each.number, cell="NULL" if is_clean else each.cell, has_missing=has_missing
        )
        return
    if each.kind == columns_module.COORDINATES:
        for index, name in ((1, "first number"), (2, "second number")):
            yield Feature(name=f"{each.name}: {name}", sql=each.coordinate(index), has_missing=has_missing)
        return
    if each.kind == columns_module.DATE:
        first = table.value(f"SELECT min({each.date}) FROM rows")
        parts = {"year": "year({})", "month": "month({})", "weekday": "isodow({})"}
        parts["elapsed days"] = f"date_diff('day', DATE '{first}', {{}})"
        expressions = ", ".join(f"count(DISTINCT {sql.format('d')})" for sql in parts.values())
        spread = table.query(f"SELECT {expressions} FROM (SELECT {each.date} AS d FROM rows)")[0]
        found = {name: sql.format(each.date) for name, sql in parts.items()}
        for (name, sql), distinct in zip(found.items(), spread, strict=True):
            if distinct > 1:
                number = f"CAST({sql} AS DOUBLE)"
                yield Feature(name=f"{each.name}: {name}", sql=number, has_missing=has_missing)
        return
    if each.num_distinct > MAX_ONE_HOT:
        common = common[: MAX_ONE_HOT - 1]
    in_other = each.num_present - sum(count for _, count in common)
    if in_other > MOST_IN_OTHER * each.num_present:
        message = f"it has {each.num_distinct:,} categories, most of them rare. It is left out."
        problems.note(location, message, "Group them into fewer, to use them.")
        return
    _report_alike(location, dict(common), problems)
    values = tuple(images.sort_classes(value for value, _ in common))
    yield Feature(
        name=each.name, sql=each.cell, values=values, has_other=in_other > 0, has_missing=has_missing
    )


def check_numbers(table: Table, each: Column, skip: bool, problems: Problems) -> None:
    """Report cells of a numeric column that are not numbers or too large."""
    location = each.where
    rest = each.num_present - each.num_numbers - each.num_too_large
    if problems.is_full and (rest or each.num_too_large):  # count them, but skip the queries for examples
        num = rest + each.num_too_large
        problems.unreadable(
            location, f"{num:,} of its values are no numbers.", "", skip=skip, num_samples=num
        )
        return
    if each.num_too_large:
        shown, line = table.examples(
            column(each.index), f"abs({each.number}) > {columns_module.LARGEST_NUMBER!r}"
        )
        message = f"{each.num_too_large:,} of its numbers are too large to compute with: {shown}."
        maximum = f"{columns_module.LARGEST_NUMBER:g}"
        hint = f"Correct them, or use another unit; numbers up to {maximum} can be used."
        problems.unreadable(location, message, hint, skip=skip, line=line, num_samples=each.num_too_large)
    if rest:
        other = f"{each.cell} IS NOT NULL AND {each.number} IS NULL"
        shown, line = table.examples(column(each.index), other)
        problems.unreadable(
            location,
            f"{each.num_numbers:,} of its values are numbers and {rest:,} are not: {shown}.",
            "Correct them, or read them as missing.",
            skip=skip,
            line=line,
            num_samples=rest,
            **as_missing(table, each, other, rest),
        )


def as_missing(table: Table, each: Column, condition: str, count: int) -> dict[str, Any]:
    """Return `suggested` and `action` that read some cells as missing; empty for many values."""
    spelled = table.query(
        f"SELECT DISTINCT {column(each.index)} AS v FROM rows WHERE {condition} ORDER BY v LIMIT 21"
    )
    if len(spelled) > 20:
        return {}
    change = patch(missing={each.name: [str(value) for (value,) in spelled]})
    subject = "this value" if count == 1 else f"these {count:,} values"
    return {"suggested": change, "action": f"Read {subject} as missing"}


def _note_missing(table: Table, columns: Sequence[Column], problems: Problems) -> None:
    """Report missing values, per column or, for many columns, in one note."""
    some = [each for each in columns if each.num_missing and each.kind != columns_module.DATE]
    if len(some) > MAX_NOTED:
        counts = [each.num_missing for each in some]
        message = f"{len(some):,} columns have missing values, {min(counts):,} to {max(counts):,} of "
        message += f"{table.num_rows:,} each: {listed([quoted(each.name) for each in some])}."
        problems.note("the table", message, f"{AS_MEAN} {AS_CATEGORY}")
        return
    for each in some:
        lines = table.lines_where(f"{each.cell} IS NULL")
        more = "." if each.num_missing <= len(lines) else ", …"
        message = f"{each.num_missing:,} of {each.num_rows:,} values are missing: lines {listed(lines)}{more}"
        how = AS_CATEGORY if each.kind == columns_module.CATEGORY else AS_MEAN
        problems.note(each.where, message, how, line=lines[0])
