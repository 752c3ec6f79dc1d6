"""Finds suspicious content of a table: totals, copies, outliers, sentinels and leaks of the label."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainers.data.dataset import TABULAR_REGRESSION
from trainers.data.own import columns as columns_module
from trainers.data.own.columns import Column, query_cells
from trainers.data.own.problems import Problems, listed, quoted
from trainers.data.own.table_file import IDEOGRAPHIC_SUMS, MAX_FOOTER, SUMS, Table, column, is_total, literal
from trainers.data.own.table_plan import LABEL_NAMES, OTHER_LABEL_NAMES, TablePlan, as_missing, patch

MAX_CHECKED = 200  # columns
MIN_SUMMANDS = 4
FAR = 20.0  # an outlier's distance from the median, in interquartile ranges
SENTINELS = (-1, -9, -99, -99.9, -999, -999.25, -999.9, -9999, 99, 999, 9999, 99999, 999999)
LEAK = 0.999
MIN_ROWS_FOR_LEAKS = 30


def report_findings(
    table: Table, columns: Sequence[Column], plan: TablePlan, reading: Mapping[str, Any], problems: Problems
) -> None:
    """Add a note for each finding; for an unusable table only for a row of totals, which may explain it."""
    others = _totals(table, columns, reading, problems)
    if problems.num_faults:
        return
    _other_label(columns, plan, problems)
    report_one_hot(table, columns, columns[plan.label], plan.class_names, problems)
    _copies(table, columns, plan, problems)
    used = [columns[index] for index in plan.used[:MAX_CHECKED]]
    for each in used:
        if each.kind == columns_module.NUMBER:
            _outliers(table, each, others, problems)
    if table.num_rows >= MIN_ROWS_FOR_LEAKS:
        for each in _leaks(table, used, columns[plan.label], plan):
            _report_leak(table, each, columns[plan.label], plan, problems)
    for each in columns:
        if each.reason.endswith(columns_module.EVERY_THREE) and not each.is_chosen:
            as_decimal = f"{float(each.example[1]) / 1000:.12g}"
            mark = {",": "comma", ".": "point"}[each.notation.thousands]
            message = f"{each.example[0]} is read as {each.example[1]}; it could also be {as_decimal}."
            kind, action = f"number, decimal {mark}", f"Read the {mark} as a decimal mark"
        elif each.reason == columns_module.YEAR_OR_DAY and not each.is_chosen:
            example = quoted(table.value(f"SELECT min({each.cell}) FROM rows"))
            message = f"in {example} {each.reason}; it is read as a year."
            kind, action = columns_module.CATEGORY, "Read it as a category"
        elif each.reason == columns_module.DAY_OR_MONTH:
            first, other = ("month", "day") if each.date_format.startswith("%m") else ("day", "month")
            message = f"{each.reason}; the {first} is read first."
            kind, action = f"date, {other} first", f"Read the {other} first"
        else:
            continue
        change = patch(columns={each.name: kind})
        problems.note(each.where, message, suggested=change, action=action)


def _other_label(columns: Sequence[Column], plan: TablePlan, problems: Problems) -> None:
    called = [
        each.name
        for each in columns
        if each.name.lower() in (*LABEL_NAMES, *OTHER_LABEL_NAMES) and each.index != plan.label
        and each.kind not in (columns_module.EMPTY, columns_module.CONSTANT, columns_module.INDEX)
    ]  # fmt: skip
    first, maximum = columns[0], columns_module.MAX_ONE_HOT
    numbered = columns[:1] if first.all_whole and 1 < first.num_distinct <= maximum else []
    categories = [each.name for each in columns if each.kind == columns_module.CATEGORY or each in numbered]
    if plan.task == TABULAR_REGRESSION and len(categories) == 1 and categories[0].startswith("column "):
        called = categories  # without names, the only column of words or classes may be the label
    if called and plan.label_name.lower() not in (*LABEL_NAMES, *OTHER_LABEL_NAMES):
        message = f"{quoted(plan.label_name)} is predicted, but there is also a column {quoted(called[0])}."
        problems.note(
            "the label column",
            message,
            suggested={"label_column": called[0]},
            action=f"Predict {called[0][:40]}",
        )


def report_one_hot(
    table: Table, columns: Sequence[Column], label: Column, class_names: Iterable[str], problems: Problems
) -> None:
    """Report a label that is one column of a one-hot encoding (one of its columns is 1 in each row)."""
    if {name.lower() for name in class_names} not in ({"0", "1"}, {"false", "true"}):
        return
    some = [label]
    for each in reversed(columns[max(0, label.index - MAX_CHECKED) : label.index]):
        if each.kind != label.kind or each.num_distinct != 2 or each.num_missing:
            break
        some.append(each)
    ones = [f"(lower({each.cell}) IN ('1', 'true'))::INT" for each in some]
    (counts,) = table.query_wide([f"sum({one})" for one in ones], "FROM rows")
    sums = list(itertools.accumulate(counts))
    if table.num_rows not in sums[2:]:
        return
    num = sums.index(table.num_rows) + 1
    if table.value(f"SELECT bool_and({' + '.join(ones[:num])} = 1) FROM rows"):
        others = [each.name for each in some[1:num]]
        shown = listed(list(map(quoted, others[::-1])))
        problems.note(
            label.where,
            f"it and {shown} are one label in several columns: one of them is 1 in each row.",
            "One column with the names of the classes would teach all of them.",
            suggested=patch(columns=dict.fromkeys(others, "ignored")),
            action="Ignore the other columns of the label",
        )


def totals_of_groups(table: Table) -> str:
    """Return SQL that is true for rows of totals within the table; empty if there are none.

    They have such a word in one of the first cells, and all of them lack a cell that the other rows have, or
    add up to the others in at least half of the columns of numbers.
    """
    indices = [column(index) for index in range(min(len(table.names), MAX_CHECKED))]
    word = literal(rf"(?i)(?:^|\PL)(?:{SUMS}|gesamt\w*|ergebnis)(?:$|\PL)|{IDEOGRAPHIC_SUMS}")
    has_word = f"regexp_matches(concat_ws(' ', {', '.join(indices[:3])}), {word})"
    num = table.value(f"SELECT count(*) FROM rows WHERE {has_word}")
    if not 0 < num < 0.5 * table.num_rows:
        return ""
    number = "TRY_CAST(replace({0}, ',', '.') AS DOUBLE)"
    expressions = [f"[count({{0}}), count({number}), sum({number})]".format(index) for index in indices]
    (some,) = table.query_wide(expressions, f"FROM rows WHERE {has_word}")
    (every,) = table.query_wide(expressions, f"FROM rows WHERE NOT {has_word}")
    minimum = 0.95 * (table.num_rows - num)
    pairs = list(zip(some, every, strict=True))
    if any(not here[0] and there[0] >= minimum for here, there in pairs):
        return has_word
    sums = [(here[2], there[2]) for here, there in pairs if here[1] == num and there[1] >= max(minimum, 5)]
    # Subtotals add up to the other rows, and to twice as much with a grand total.
    is_sum = [any(_is_close(total, times * whole) for times in (1, 2)) for total, whole in sums]
    return has_word if 2 * sum(is_sum) >= len(sums) > 0 else ""


def _is_close(first: float, second: float, tolerance: float = 1e-6) -> bool:
    return bool(first and second) and math.isclose(first, second, rel_tol=tolerance)


def _totals(table: Table, columns: Sequence[Column], reading: Mapping[str, Any], problems: Problems) -> str:
    """Report rows of totals between the others, or last rows of totals; return SQL, true for other rows."""
    columns = columns[:MAX_CHECKED]
    last = table.query_wide(
        ["row", *(column(each.index) for each in columns)], f"FROM rows ORDER BY row DESC LIMIT {MAX_FOOTER}"
    )
    is_group = totals_of_groups(table)
    if is_group and (lines := table.lines_where(is_group)) != [last[0][0]]:
        num = table.value(f"SELECT count(*) FROM rows WHERE {is_group}")
        more = ", …" * (num > len(lines))
        subject = "1 row looks like a total" if num == 1 else f"{num:,} rows look like totals"
        message = f"{subject} of the others: lines {listed(lines)}{more}."
        action = f"Leave out the totals ({num:,} {'row' if num == 1 else 'rows'})"
        problems.note("the table", message, suggested=patch(leave_out_totals=True), action=action)
        return f"NOT {is_group}"
    if num := _num_last_totals(table, columns, last):
        row, *cells = last[num - 1]
        shown = quoted(", ".join(str(cell)[:60] for cell in cells if cell is not None)[:60])
        message = f"the last row, {shown}, looks like a total of the others."
        if num > 1:
            message = f"the last {num} rows, from {shown} on, look like totals of the others."
        change = patch(leave_out_last=reading.get("leave_out_last", 0) + num)
        action = "Leave out the last row (1 row)" if num == 1 else f"Leave out the last {num} rows"
        problems.note("the table", message, line=row, suggested=change, action=action)
        return f"row < {row}"
    return "true"


def _num_last_totals(table: Table, columns: Sequence[Column], last: Sequence[Sequence[Any]]) -> int:
    """Return the number of last rows that are totals by a word in them, or by the numbers of the last one.

    Args:
        last: row number and cells of the last rows, the last one first.
    """
    row, *cells = last[0]
    totals = [index for index, cell in enumerate(cells) if is_total(cell)]
    num = 1
    for index in totals[:1]:
        num = [*(is_total(each[index + 1]) for each in last), False].index(False)
        row = last[num - 1][0]
        # A word that occurs elsewhere in its column does not indicate a total.
        is_word = f"{column(columns[index].index)} = {literal(cells[index])}"
        if table.value(f"SELECT count(*) FROM rows WHERE {is_word} AND row < {row}"):
            return 0
    candidates = [
        each.number
        for each in columns
        if each.kind == columns_module.NUMBER and each.num_numbers > MIN_SUMMANDS and each.num_distinct > 1
    ]
    if not candidates:
        return num * bool(totals)
    # DuckDB 1.3 raises an error for the deviation of infinite numbers.
    expressions = (
        "[sum({0}), max({0}), min({0}), avg({0}), stddev({0}) FILTER (abs({0}) < 1e150), count({0}), "
        "count({0}) FILTER ({0} <> 0)]"
    )
    (statistics,) = table.query_wide(
        [expressions.format(number) for number in candidates], f"FROM rows WHERE row < {row}"
    )
    (ends,) = table.query_wide(candidates, f"FROM rows WHERE row = {row}")
    pairs = [pair for pair in zip(ends, statistics, strict=True) if None not in (pair[0], *pair[1])]
    if totals:
        # A row of the others may have such a name: an average child, a filling station of Total.
        is_other = [
            low < end < high and not any(_is_close(end, each, 0.01) for each in (whole, *means))
            for end, (whole, high, low, *means, _) in pairs
        ]
        return 0 if pairs and None not in cells and all(is_other) else num
    sums = [
        _is_close(end, whole) and abs(end) > max(high, -low) and num_summands > MIN_SUMMANDS
        for end, (whole, high, low, *_, num_summands) in pairs
    ]
    # A share or a price has its mean in such a row; most other columns must have their sum.
    means = [_is_close(end, mean, 0.01) for end, (_, _, _, mean, *_) in pairs]
    num_others = sum(not (is_sum or is_mean) for is_sum, is_mean in zip(sums, means, strict=True))
    return int(sum(sums) > num_others)


def _copies(table: Table, columns: Sequence[Column], plan: TablePlan, problems: Problems) -> None:
    """Report duplicate rows: copies of training rows could be in the validation split."""
    indices = [*(plan.texts or plan.used), plan.label]
    compared = [columns[index] for index in indices]
    maximum = max((each.num_distinct for each in compared if each.index != plan.label), default=0)
    if len(indices) > MAX_CHECKED or maximum < 0.3 * table.num_rows:  # few categories are equal by chance
        return
    cells = ", ".join(column(index) for index in indices)
    distinct = table.value(f"SELECT count(*) FROM (SELECT DISTINCT {cells} FROM rows)")
    copies = table.num_rows - distinct
    if copies:
        noun = "texts" if plan.texts else "rows"
        are = "is an exact copy" if copies == 1 else "are exact copies"
        share = f"{copies:,} {'row' if copies == 1 else 'rows'}, {copies / table.num_rows:.0%}"
        message = f"{copies:,} of {table.num_rows:,} {noun} {are} of others"
        message += ": some would be in training and in validation."
        action = f"Leave out the copies ({share})"
        problems.note("the table", message, suggested=patch(leave_out_copies=True), action=action)
    if plan.texts and plan.class_names:
        texts = ", ".join(column(index) for index in plan.texts)
        several = f"GROUP BY {texts} HAVING count(DISTINCT {column(plan.label)}) > 1"
        if num := table.value(f"SELECT count(*) FROM (SELECT 1 FROM rows {several})"):
            message = f"{num:,} texts occur with more than one label."
            problems.note("the table", message, "One of the labels is wrong.")


def leave_out_copies(table: Table, plan: TablePlan, problems: Problems) -> int:
    """Drop duplicate rows; return their number."""
    cells = ", ".join(column(index) for index in (*(plan.texts or plan.used), plan.label))
    num = table.drop(f"row NOT IN (SELECT min(row) FROM rows GROUP BY {cells})")
    if num:
        problems.note("the table", f"{num:,} rows are copies of others and are left out.")
    return num


def _outliers(table: Table, each: Column, others: str, problems: Problems) -> None:
    if _sentinel(table, each, problems):
        return
    low, middle, high = each.quartiles
    spread = high - low
    reach = max(abs(each.highest - middle), abs(each.lowest - middle))
    if spread <= 0 or reach <= FAR * spread or each.num_distinct < 5:
        return
    far = f"abs({each.number} - {middle!r}) > {FAR * spread!r} AND {others}"
    if 0 < (count := table.value(f"SELECT count(*) FROM rows WHERE {far}")) <= 0.05 * table.num_rows:
        half = f"half of them are from {low:.4g} to {high:.4g}"
        message = f"{count:,} of its values lie far from the others ({half})"
        _note_as_missing(table, each, far, count, message, problems)


def _note_as_missing(
    table: Table, each: Column, condition: str, count: int, message: str, problems: Problems, hint: str = ""
) -> None:
    """Report the cells that meet a condition, and offer to read them as missing."""
    shown, line = table.examples(column(each.index), condition)
    offer = as_missing(table, each, condition, count)
    problems.note(each.where, f"{message}: {shown}.", hint, line=line, **offer)


def _sentinel(table: Table, each: Column, problems: Problems) -> bool:
    """Report a number such as -999 that probably means a missing value; return True if there is one."""
    for end, function in ((each.lowest, "min"), (each.highest, "max")):
        if end not in SENTINELS or each.num_distinct < 5:
            continue
        is_end = f"{each.number} = {end!r}"
        count, low, high = table.query(
            f"SELECT count(*) FILTER ({is_end}), min({each.number}) FILTER (NOT {is_end}), "
            f"max({each.number}) FILTER (NOT {is_end}) FROM rows"
        )[0]
        distance = low - end if function == "min" else end - high
        is_only_negative = end <= -9 and low >= 0
        if count < 2 or (distance <= 2 * (high - low) and not is_only_negative):
            continue
        message = f"{count:,} of its values are {end:g}, far from the others ({low:.4g} to {high:.4g})"
        _note_as_missing(table, each, is_end, count, message, problems, "They may stand for missing values.")
        return True
    return False


def _leaks(table: Table, used: Sequence[Column], label: Column, plan: TablePlan) -> list[Column]:
    """Return the features that determine the label on their own."""
    numbers = [each for each in used if each.kind == columns_module.NUMBER]
    if plan.task == TABULAR_REGRESSION:
        if len(plan.used) == 1:
            return []
        together = (
            "SELECT col FROM CELLS WHERE isfinite(v) AND isfinite(l) GROUP BY col "
            f"HAVING abs(corr(v, l)) > {LEAK}"
        )
        rows = list(query_cells(table, numbers, together, label=label.number, as_numbers=True))
        return [each for each in used if (each.index,) in rows]
    num_classes = len(plan.class_names)
    if num_classes < 2:
        return []
    categories = [
        each
        for each in used
        if each.kind == columns_module.CATEGORY and 2 <= each.num_distinct <= 0.5 * each.num_present
    ]
    counts = "SELECT col, v, l, count(*) AS n FROM CELLS WHERE l IS NOT NULL GROUP BY ALL"
    by_value = f"SELECT col, sum(n) AS n, max(n) AS most FROM ({counts}) GROUP BY col, v"
    alone = f"SELECT col FROM ({by_value}) GROUP BY col HAVING sum(n) - sum(most) <= {0.001 * table.num_rows}"
    rows = list(query_cells(table, categories, alone, label=label.cell))
    # In rows sorted by the number, each class is one interval: thresholds separate the classes.
    able = [each for each in numbers if each.num_distinct >= num_classes and not each.num_missing]
    by_value = (
        "SELECT col, v, min(l) AS l, count(DISTINCT l) AS n FROM CELLS "
        "WHERE v IS NOT NULL AND l IS NOT NULL GROUP BY col, v"
    )
    steps = f"SELECT col, l, n, lag(l) OVER (PARTITION BY col ORDER BY v) AS before FROM ({by_value})"
    intervals = (
        f"SELECT col FROM ({steps}) GROUP BY col "
        f"HAVING max(n) = 1 AND count(*) FILTER (l <> before) = {num_classes - 1}"
    )
    rows += query_cells(table, able, intervals, label=label.cell, as_numbers=True)
    return [each for each in used if (each.index,) in rows]


def _report_leak(table: Table, each: Column, label: Column, plan: TablePlan, problems: Problems) -> None:
    how = f"in all {table.num_rows:,} rows"
    if plan.task == TABULAR_REGRESSION:
        numbers = f"FROM rows WHERE isfinite({each.number}) AND isfinite({label.number})"
        how = f"(correlation {table.value(f'SELECT corr({each.number}, {label.number}) {numbers}'):.4f})"
    is_alone = len(plan.used) == 1
    problems.note(
        each.where,
        f"it alone determines {quoted(label.name)} {how}.",
        "Is it known before the label? If not, ignore it.",
        suggested={} if is_alone else patch(columns={each.name: "ignored"}),
        action="" if is_alone else "Ignore this column",
    )
