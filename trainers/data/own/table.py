"""Own tables and texts in tables: inspection, preparation and splits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from trainers.contract.config.sections import parse_reading
from trainers.data import dataset
from trainers.data import text as text_module
from trainers.data.own import cache
from trainers.data.own import columns as columns_module
from trainers.data.own.columns import Column, read_columns
from trainers.data.own.features import chunks, feature_names, split_by, write_features
from trainers.data.own.findings import leave_out_copies, report_findings, report_one_hot, totals_of_groups
from trainers.data.own.images import FEW_PER_CLASS, IMAGE_SUFFIXES, MIN_PER_CLASS, Listed, check_counts
from trainers.data.own.problems import DataError, Problems
from trainers.data.own.processes import ReadProgress
from trainers.data.own.sources import DataFile
from trainers.data.own.splits import MappedRowsSplit, Rows, whole
from trainers.data.own.table_file import Table, column
from trainers.data.own.table_plan import TablePlan, label_place, make_plan, split_of
from trainers.data.tables import TableSplit, num_validation

WORDS = "words"
CHARACTERS = "characters"
MAX_WORDS = 20_000
MAX_CHARACTERS = 20_000
MOST_COUNTED = 1_000_000  # distinct words in memory; beyond that the rarest are dropped
MIN_LENGTH, MAX_LENGTH = 4, 256
LONG_SHARE = 0.95  # this share of the training texts is not truncated
NO_LIMIT = 10**6
_TEXTS_AT_ONCE = 4096
_TEXTS_MEASURED = 20_000


def tokenizer_of(reader: Mapping[str, Any], stored: dataset.Tokenizer | None) -> dataset.Tokenizer:
    """Return the tokenizer of prepared texts.

    Args:
        reader: its description: `of` is WORDS, CHARACTERS, or "" for `stored`; and its `vocabulary`.
        stored: the tokenizer of a pretrained model, if any.
    """
    if stored is not None:
        return stored
    kind = text_module.CharacterTokenizer if reader["of"] == CHARACTERS else text_module.WordTokenizer
    return kind(reader["vocabulary"])


class MappedTexts(Sequence[str]):
    """Some of the texts on disk, read on access.

    Args:
        texts: (bytes,) all texts in UTF-8, concatenated.
        ends: (texts,) end position of each text in bytes.
        rows: row numbers of the texts in this sequence.
    """

    def __init__(self, texts: cache.MappedArray, ends: cache.MappedArray, rows: Rows) -> None:
        self._texts = texts
        self._ends = ends
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Return one text, or several."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        row = int(self._rows[index])
        start = int(self._ends.slice(row - 1, row)[0]) if row else 0
        end = int(self._ends.slice(row, row + 1)[0])
        return self._texts.slice(start, end).tobytes().decode("utf-8", errors="surrogatepass")


def write_texts(
    table: Table,
    plan: TablePlan,
    folder: Path,
    *,
    file_bytes: int,
    single_words: bool,
    length: int | None,
    own: dataset.Tokenizer | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the arrays `texts`, `ends`, `inputs`, `targets`, `train` and `validation`.

    Args:
        single_words: True if texts are mostly single words, which are tokenized by character.
        length: tokens per text; None: 95% of the training texts are not truncated.
        own: the tokenizer of a pretrained model.

    Returns:
        The arrays' metadata, and the description of the tokenizer.
    """
    cache.require_space(folder, file_bytes)
    arrays, targets, texts, held = _write_whole(table, plan, folder)
    train, validation = split_by(held, targets, len(targets))
    ends = cache.MappedArray.of(folder, "ends", arrays)
    # Sorted, so that the disk is read sequentially.
    training = MappedTexts(texts, ends, np.sort(train))
    reader: dict[str, Any] = {"of": "", "vocabulary": []}
    if own is None:
        reader = _make_reader(training, single_words=single_words)
    tokenizer = tokenizer_of(reader, own)
    length = length or _usual_length(tokenizer, training)
    dtype = np.dtype(str(text_module.token_dtype(tokenizer.vocabulary_size)).removeprefix("torch."))
    cache.require_space(folder, len(targets) * length * dtype.itemsize)
    writer = cache.ArrayWriter(folder, "inputs", dtype.str, (length,))
    progress = ReadProgress("texts written as tokens", len(targets))
    everything = MappedTexts(texts, ends, np.arange(len(targets)))
    for start in range(0, len(everything), _TEXTS_AT_ONCE):
        chunk = everything[start : start + _TEXTS_AT_ONCE]
        writer.append(text_module.tokens_tensor(tokenizer, chunk, length).numpy())
        progress.add(len(chunk))
    arrays |= cache.write_arrays(folder, targets=targets, train=train, validation=validation)
    arrays["inputs"] = writer.close()
    return arrays, reader


def frequent_words(texts: Iterator[str], maximum: int) -> list[str]:
    """Return the most frequent words; approximate if there are more than `MOST_COUNTED`."""
    counts: Counter[str] = Counter()
    minimum = 1
    for text in texts:
        counts.update(text_module.split_words(text))
        if len(counts) > MOST_COUNTED:
            while len(counts) > MOST_COUNTED // 2:
                counts = Counter({word: count for word, count in counts.items() if count > minimum})
                minimum += 1
    return [word for word, _ in counts.most_common(maximum)]


def _write_whole(
    table: Table, plan: TablePlan, folder: Path
) -> tuple[dict[str, Any], Rows, cache.MappedArray, list[Rows]]:
    writer = cache.ArrayWriter(folder, "texts", "|u1", ())
    ends_writer = cache.ArrayWriter(folder, "ends", "<i8", ())
    all_targets, all_held = [], []
    end = 0
    progress = ReadProgress("texts read", table.num_rows)
    text = f"concat_ws(chr(10), {', '.join(map(column, plan.texts))})"
    for (texts, *held), targets in chunks(table, plan, [text, *[plan.split] * bool(plan.split)]):
        all_held += held
        raw = [str(each).encode("utf-8", errors="surrogatepass") for each in texts.tolist()]
        ends = end + np.cumsum([len(each) for each in raw])
        end = int(ends[-1])
        if joined := b"".join(raw):
            writer.append(np.frombuffer(joined, dtype=np.uint8))
        ends_writer.append(ends)
        all_targets.append(targets)
        progress.add(len(raw))
    arrays = {"texts": writer.close(), "ends": ends_writer.close()}
    return arrays, np.concatenate(all_targets), cache.MappedArray.of(folder, "texts", arrays), all_held


def _make_reader(training: Sequence[str], *, single_words: bool) -> dict[str, Any]:
    if not single_words:
        counted = _counted(training, "texts' words counted")
        words = frequent_words(counted, MAX_WORDS - text_module.NUM_SPECIAL)
        return {"of": WORDS, "vocabulary": words}
    counts: Counter[str] = Counter()
    for text in _counted(training, "texts' characters counted"):
        counts.update(text)
    return {"of": CHARACTERS, "vocabulary": sorted(each for each, _ in counts.most_common(MAX_CHARACTERS))}


def _counted(texts: Sequence[str], doing: str) -> Iterator[str]:
    progress = ReadProgress(doing, len(texts))
    for text in texts:
        yield text
        progress.add(1)


def _usual_length(tokenizer: dataset.Tokenizer, training: Sequence[str]) -> int:
    step = max(1, len(training) // _TEXTS_MEASURED)
    lengths = [len(tokenizer.encode([text], NO_LIMIT)[0]) for text in training[::step]]
    return int(min(MAX_LENGTH, max(MIN_LENGTH, np.quantile(lengths, LONG_SHARE))))


NUM_PREVIEW_ROWS = 8
MAX_PREVIEW_CELL = 200
SINGLE_WORDS = 2.0  # texts with fewer words on average are tokenized by character


@dataclass(frozen=True, kw_only=True)
class TableInspection:
    """The result of inspecting a table: its columns, and the plan, or None if it cannot be used."""

    table: Table
    columns: Sequence[Column]
    plan: TablePlan | None


class TableData:
    """A table at a path."""

    name = "table"

    def __init__(self, file: DataFile, options: dataset.DataOptions) -> None:
        self._file = file
        self._path = file.path
        self._options = options

    def num_bytes(self) -> int:
        """Return the size of the file, after unpacking."""
        return self._file.local(Problems()).stat().st_size

    def options(self) -> dict[str, object]:
        """Return the options that determine the prepared data."""
        options = self._options
        return {
            "kind": self.name,
            "label_column": options.label_column,
            "task": options.task,
            "skip_unreadable": options.skip_unreadable,
            "reading": options.reading,
            "sequence_length": options.sequence_length,
            "tokenizer": cache.tokenizer_fingerprint(options.tokenizer),
        }

    def inspect(self, problems: Problems) -> TableInspection:
        """Read the table, classify its columns and plan the learning task."""
        try:
            reading = parse_reading(self._options.reading)
        except ValueError as error:
            location, change = "how the table is read", {"data_reading": ""}
            problems.fault(location, f"allowed: {error}.", "Clear it.", suggested=change)
            reading = {}
        skip = self._options.skip_unreadable
        path = self._file.local(problems)
        reading |= self._file.reading
        table = Table(path, reading, skip_unreadable=skip, problems=problems)
        columns: list[Column] = []
        plan = None
        if table.names and not table.num_rows and not problems.num_faults:
            hint = "Give a table with rows below the column names."
            problems.fault(self._path.name, "there are no rows.", hint)
        if table.num_rows:
            if last := reading.get("leave_out_last", 0):
                num = table.drop(f"row IN (SELECT row FROM rows ORDER BY row DESC LIMIT {last})")
                problems.note(
                    "the table",
                    f"the last {num} rows are left out." if num > 1 else "the last row is left out.",
                )
            if reading.get("leave_out_totals") and (totals := totals_of_groups(table)):
                problems.note("the table", f"{table.drop(totals):,} rows of totals are left out.")
            columns = read_columns(table, reading)
            if reading.get("leave_out_copies"):
                first = make_plan(table, list(columns), self._options, reading, Problems())
                if first is not None and leave_out_copies(table, first, problems):
                    columns = read_columns(table, reading)
            if not self._needs_images_path(table, columns, problems):
                plan = make_plan(table, columns, self._options, reading, problems)
            if plan is not None:
                report_findings(table, columns, plan, reading, problems)
        return TableInspection(table=table, columns=columns, plan=plan)

    def _needs_images_path(self, table: Table, columns: Sequence[Column], problems: Problems) -> bool:
        """Ask for the image folder in a fault, if a column of image names is the only feature; True if so."""
        if self._options.task not in ("auto", dataset.IMAGE_CLASSIFICATION):
            return False
        own_folder = self._path.parent
        folders = [own_folder, *sorted(each for each in own_folder.iterdir() if each.is_dir())[:100]]
        learned = [each for each in columns if each.kind in columns_module.LEARNED]
        file_names = [each for each in columns if each.kind == columns_module.FILE_NAME]
        if file_names and _has_boxes(columns, problems):
            return True
        for each in file_names or [each for each in columns if each.all_different]:
            remaining = [other for other in learned if other.index != each.index]
            if len(remaining) > 1:
                continue
            matches = [folder for folder in folders if _num_images(table, each, _files_in(folder))]
            if not (file_names or matches):
                continue
            problems.fault(
                each.where,
                "the cells are names of image files.",
                "Give the folder that contains the images, and the images are learned from.",
                suggested={"images_path": str(matches[0])} if matches else {},
                action="Learn from the images" if matches else "",
            )
            return True
        return False

    def about(self, inspection: TableInspection) -> dict[str, Any]:
        """Return the decisions about the columns, the first rows as written and as read, and the label."""
        table, columns, plan = inspection.table, inspection.columns, inspection.plan
        cells = [column(index) for index in range(len(table.names))] if table.num_rows else []
        order = f"FROM rows ORDER BY row LIMIT {NUM_PREVIEW_ROWS}"
        rows = table.query_wide(cells, order)
        read = table.query_wide(list(map(_as_read, columns)), order)
        preview: dict[str, Any] = {
            "header": list(table.names),
            "rows": [["" if cell is None else str(cell)[:MAX_PREVIEW_CELL] for cell in row] for row in rows],
            "read_rows": [["" if cell is None else _short(cell) for cell in row] for row in read],
            "num_rows": table.num_rows,
        }
        used: set[int] = set()
        if plan is not None:
            used = {*plan.used, *plan.texts, plan.label}
            if plan.task == dataset.TABULAR_REGRESSION:
                label = columns[plan.label]
                target = {"min": label.lowest, "median": label.quartiles[1], "max": label.highest}
                preview["target"] = target if label.num_numbers else {}
            else:
                preview["class_counts"] = dict(plan.class_counts)
            if plan.texts:
                words = _num_words(plan)
                shortest, median, longest = table.query(
                    f"SELECT min({words}), median({words}), max({words}) FROM rows"
                )[0]
                preview["num_words"] = {
                    "shortest": int(shortest),
                    "median": int(median),
                    "longest": int(longest),
                }
        return {
            "task": None if plan is None else plan.task,
            "columns": [_about(each, plan, used) for each in columns],
            "label_column": None if plan is None else plan.label_name,
            "preview": preview,
        }

    def estimate(self, inspection: TableInspection) -> dataset.DataSpec | None:
        """Describe the table before it is prepared; None for texts, whose vocabulary is not known yet."""
        plan = inspection.plan
        if plan is None or plan.task == dataset.TEXT_CLASSIFICATION:
            return None
        if plan.task == dataset.TABULAR_REGRESSION:
            num_rows = inspection.columns[plan.label].num_numbers
            held = num_validation(num_rows)
        else:
            counts = plan.class_counts.values()
            num_rows, held = sum(counts), sum(num_validation(count) for count in counts)
        if plan.split:
            held = plan.num_split[1]
            num_rows = sum(plan.num_split)
        return self._table_spec(plan.task, plan.class_names, feature_names(plan), num_rows - held, held)

    def prepare(self, inspection: TableInspection, folder: Path, problems: Problems) -> dict[str, Any]:
        """Write the rows as numbers or tokens; return the metadata."""
        plan = inspection.plan
        assert plan is not None, "a look without a plan has faults"
        meta: dict[str, Any] = {"task": plan.task, "class_names": list(plan.class_names)}
        if plan.task != dataset.TEXT_CLASSIFICATION:
            try:
                arrays, scale = write_features(inspection.table, plan, folder)
            except DataError as error:  # it names the file that was read, which can be an unpacked one
                for each in error.problems:
                    problems.fault(each.where, each.message, each.hint)
                raise DataError(str(self._path), problems.shown, problems.num_faults) from error
            self._check_classes(folder, arrays, plan, problems)
            written = [field.name for field in fields(dataset.TableColumn)]
            columns = [{name: getattr(each, name) for name in written} for each in plan.features]
            meta |= {"feature_names": feature_names(plan), "columns": columns, "scale": scale}
            return {"arrays": arrays, **meta}
        (average,) = inspection.table.query(f"SELECT avg({_num_words(plan)}) FROM rows")[0]
        arrays, reader = write_texts(
            inspection.table,
            plan,
            folder,
            file_bytes=self.num_bytes(),
            single_words=average < SINGLE_WORDS
            or any(inspection.columns[index].ideographs for index in plan.texts),
            length=self._options.sequence_length,
            own=self._options.tokenizer,
        )
        self._check_classes(folder, arrays, plan, problems)
        return {"arrays": arrays, "reader": reader, **meta}

    def _check_classes(
        self, folder: Path, arrays: dict[str, Any], plan: TablePlan, problems: Problems
    ) -> None:
        """Record a fault for classes with too few rows after unreadable ones have been left out."""
        if plan.task != dataset.TABULAR_REGRESSION:
            targets = cache.MappedArray.of(folder, "targets", arrays).all()
            counts = np.bincount(targets, minlength=len(plan.class_names)).tolist()
            few = {name: n for name, n in zip(plan.class_names, counts, strict=True) if n < MIN_PER_CLASS}
            if few:
                # Add a second name, so that a single small class is not reported as the only class.
                check_counts(few | {"the others": FEW_PER_CLASS}, "usable rows", problems)
        if not arrays["validation"]["shape"][0]:
            hint = "Correct them, or ignore the column of the split."
            problems.fault("the table", "no row for validation can be read.", hint)
        problems.check(str(self._path))

    def spec(self, prepared: cache.PreparedData) -> dataset.DataSpec:
        """Describe the prepared table."""
        meta = prepared.meta
        num_train, num_held = len(prepared.array("train")), len(prepared.array("validation"))
        names = tuple(meta["class_names"])
        if meta["task"] == dataset.TEXT_CLASSIFICATION:
            return self._text_spec(prepared, names, num_train, num_held)
        spec = self._table_spec(meta["task"], names, meta["feature_names"], num_train, num_held)
        scale = meta["scale"]
        columns = tuple(
            dataset.TableColumn(**{**column, "values": tuple(column["values"])}) for column in meta["columns"]
        )
        return replace(
            spec, columns=columns, target_mean=scale["target_mean"], target_std=scale["target_std"]
        )

    def splits(
        self, prepared: cache.PreparedData, device: torch.device
    ) -> tuple[dataset.Split, dataset.Split]:
        """Return training and validation rows."""
        make = self._text_split if prepared.meta["task"] == dataset.TEXT_CLASSIFICATION else self._table_split
        train, validation = (make(prepared, side, device) for side in ("train", "validation"))
        return train, validation

    def _table_split(self, prepared: cache.PreparedData, side: str, device: torch.device) -> dataset.Split:
        inputs, targets = prepared.array("inputs"), prepared.array("targets").all()
        rows = prepared.array(side).all()
        scale = prepared.meta["scale"]
        # The rows on disk are standardised; the split keeps the scale to convert them back.
        stored = {"mean": scale["mean"], "std": scale["std"]}
        width = len(scale["mean"])
        plain = {"mean": [0.0] * width, "std": [1.0] * width}
        kept = stored if self._options.normalise else plain
        if inputs.num_bytes > cache.SMALL_BYTES and device.type == "cpu":
            return MappedRowsSplit(inputs, targets, rows, stored=stored, preparation=kept)
        values = whole(inputs, rows, device)
        if not self._options.normalise:
            mean, std = (torch.tensor(each, dtype=torch.float64, device=device) for each in stored.values())
            values = (values.double() * std + mean).float()
        zero, one = (torch.tensor(each, device=device) for each in plain.values())
        split = TableSplit(
            values, torch.from_numpy(targets[rows]), feature_mean=zero, feature_std=one, device=device
        )
        split.feature_mean, split.feature_std = (torch.tensor(each) for each in kept.values())
        return split

    def _text_split(self, prepared: cache.PreparedData, side: str, device: torch.device) -> dataset.Split:
        inputs, targets = prepared.array("inputs"), prepared.array("targets").all()
        rows = prepared.array(side).all()
        texts = MappedTexts(prepared.array("texts"), prepared.array("ends"), rows)
        tokenizer = tokenizer_of(prepared.meta["reader"], self._options.tokenizer)
        if inputs.num_bytes > cache.SMALL_BYTES and device.type == "cpu":
            return MappedRowsSplit(inputs, targets, rows, texts=texts, tokenizer=tokenizer)
        tokens, labels = whole(inputs, rows, device), torch.from_numpy(targets[rows])
        return text_module.TextSplit(tokens, labels, texts, device=device, tokenizer=tokenizer)

    def _table_spec(
        self, task: str, names: tuple[str, ...], features: Sequence[str], num_train: int, num_held: int
    ) -> dataset.DataSpec:
        what = f"of {len(names)} classes" if names else "with a number to predict"
        return dataset.DataSpec(
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
        self, prepared: cache.PreparedData, names: tuple[str, ...], num_train: int, num_held: int
    ) -> dataset.DataSpec:
        reader = prepared.meta["reader"]
        tokenizer = tokenizer_of(reader, self._options.tokenizer)
        inputs = prepared.array("inputs")
        units = reader["of"] or "tokens"
        return dataset.DataSpec(
            task=dataset.TEXT_CLASSIFICATION,
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


def _num_images(table: Table, each: Column, is_there: Callable[[str], bool]) -> int:
    """Return how many of the first 20 cells are names of images that are there, with or without a suffix."""
    names = table.query(f"SELECT {each.cell} FROM rows WHERE {each.cell} IS NOT NULL ORDER BY row LIMIT 20")
    suffixes = ("",) if each.kind == columns_module.FILE_NAME else IMAGE_SUFFIXES
    return sum(
        any(is_there(f"{name}{suffix}") for suffix in suffixes) for (name,) in names if len(name) < 250
    )


def _files_in(folder: Path) -> Callable[[str], bool]:
    def is_file(name: str) -> bool:
        try:
            return (folder / name).is_file()
        except (OSError, ValueError):  # a name that is too long or has a zero byte
            return False

    return is_file


def listed_images(
    file: DataFile, images: Path | Sequence[str], options: dataset.DataOptions, problems: Problems
) -> Listed | None:
    """Return label and side of each image named in a table; if there are none, add a fault and return None.

    Args:
        images: the folder of the images, or their names.
    """
    reading = parse_reading(options.reading)
    path = file.local(problems)
    table = Table(path, reading, skip_unreadable=options.skip_unreadable, problems=problems)
    columns = [] if problems.num_faults else read_columns(table, reading)
    if not columns or _has_boxes(columns, problems):
        return None
    is_there = _files_in(images) if isinstance(images, Path) else set(images).__contains__
    able = [each for each in columns if each.kind == columns_module.FILE_NAME] or [
        each for each in columns if each.all_different and _num_images(table, each, is_there)
    ]
    names = next(iter(able), None)
    labels_and_rest = [each for each in columns if names is None or each.index != names.index]
    index = label_place(labels_and_rest, options.label_column, problems) if labels_and_rest else None
    if names is None or index is None:
        problems.fault(
            path.name,
            "no column holds the names of image files.",
            "Clear the folder of the images.",
            suggested={"images_path": ""},
        )
        return None
    label = labels_and_rest[index]
    split, _ = split_of(table, labels_and_rest, label, dataset.IMAGE_CLASSIFICATION, problems)
    rows = table.query(
        f"SELECT {names.cell}, {label.cell}, {split or 'NULL'} FROM rows WHERE {names.cell} IS NOT NULL AND "
        f"{label.cell} IS NOT NULL AND {f'({split}) IS NOT NULL' if split else 'true'}"
    )
    report_one_hot(table, columns, label, {str(value) for _, value, _ in rows}, problems)
    listed = {str(name).replace("\\", "/"): (str(value), is_held) for name, value, is_held in rows}
    if num_repeated := len({(name, value) for name, value, _ in rows}) - len(listed):
        problems.note(
            names.where, f"{num_repeated:,} rows name an image again, with another label: the last counts."
        )
    return listed


def _has_boxes(columns: Sequence[Column], problems: Problems) -> bool:
    """Report a list of boxes in images; return True for one."""
    box_columns = [
        each for each in columns if re.fullmatch(r"bbox([ _-]?x)?|x[ _-]?min|xtl", each.name, re.I)
    ]
    if box_columns:
        message = "it is a list of boxes, as for object detection: only classes of whole images are learned."
        problems.fault(box_columns[0].where, message, "Give a table with one label for each image.")
    return bool(box_columns)


def _num_words(plan: TablePlan) -> str:
    text = f"concat_ws(' ', {', '.join(map(column, plan.texts))})"
    return f"(length({text}) - length(replace({text}, ' ', '')) + 1)"


def _as_read(each: Column) -> str:
    """Return SQL of a cell as it is read, before standardisation."""
    if each.kind in columns_module.LEFT_OUT and each.kind != columns_module.SPLIT:
        return "NULL"
    if each.kind in (columns_module.NUMBER, columns_module.MIXED):
        return each.number
    return each.date if each.kind == columns_module.DATE else each.cell


def _short(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)[:MAX_PREVIEW_CELL]


def _about(each: Column, plan: TablePlan | None, used: set[int]) -> dict[str, Any]:
    is_label = plan is not None and each.index == plan.label
    return {
        "name": each.name,
        "type": each.kind,
        "num_missing": each.num_missing,
        "decision": each.line(is_label=is_label),
        "confidence": each.confidence,
        "is_used": each.index in used,
        "is_chosen": each.is_chosen,
    }
