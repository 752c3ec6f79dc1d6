"""Tests of tables: detection of column types, exact values, and faults by column and line."""

from __future__ import annotations

import csv
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
import torch

from tests.unit.own_files import fault, faults, notes, own, write, write_xlsx
from trainers.data.dataset import NotInstalledError
from trainers.data.own import table, table_file
from trainers.data.own.splits import MappedRowsSplit
from trainers.data.tables import TableSplit
from trainers.data.text import TextSplit

CPU = torch.device("cpu")


def people(path: Path, change: Callable[[int, list[str]], list[str]] | None = None) -> Path:
    """Write a table of 40 rows that are identified by their height; `change` modifies some of them."""
    rows = []
    for index in range(40):
        row = [
            f"{150.5 + index}",
            ("red", "green", "blue")[index % 3],
            f"{index % 2}",
            "yes" if index > 19 else "no",
        ]
        rows.append(",".join(change(index, row) if change else row))
    return write(path, "height,colour,left,tall", *rows)


def table_of(data, side: int = 0) -> torch.Tensor:  # type: ignore[no-untyped-def]
    split = data.load(CPU)[side]
    return split.batch(torch.arange(len(split)))[0]


def test_rows_become_numbers_and_come_back(tmp_path: Path) -> None:
    data = own(people(tmp_path / "t.csv"))
    spec = data.spec()
    assert spec.task == "tabular_classification" and spec.class_names == ("no", "yes")
    assert spec.feature_names == ("height", "colour = blue", "colour = green", "colour = red", "left")
    assert (spec.num_train, spec.num_validation) == (32, 8)
    train, validation = data.load(CPU)
    assert isinstance(train, TableSplit) and isinstance(validation, TableSplit)
    inputs, labels = train.batch(torch.arange(32))
    assert inputs[:, 0].mean().abs() < 1e-6 and abs(float(inputs[:, 0].std(correction=0)) - 1) < 1e-6
    assert torch.equal(inputs[:, 1:4].sum(1), torch.ones(32)), "one-hot"
    seen = []
    for split in (train, validation):
        values, labels = split.batch(torch.arange(len(split)))
        own_units = values * split.feature_std + split.feature_mean
        for row, label in zip(own_units.tolist(), labels.tolist(), strict=True):
            index = round(row[0] - 150.5)
            assert label == (index > 19) and round(row[4]) == index % 2
            assert row[1:4] == [float(index % 3 == colour) for colour in (2, 1, 0)]
            seen.append(index)
    assert sorted(seen) == list(range(40)), "every row once"
    plain = own(tmp_path / "t.csv", normalise=False)
    assert table_of(plain)[:, 0].max() > 150 and not plain.load(CPU)[0].feature_mean.any()


def test_number_to_predict_is_standardised_and_the_scale_is_told(tmp_path: Path) -> None:
    rows = [f"{index},{1000 + 7.5 * index}" for index in range(0, 200, 2)]
    data = own(write(tmp_path / "t.csv", "x,price", *rows))
    spec = data.spec()
    assert spec.task == "tabular_regression" and spec.num_classes == 1 and spec.class_names == ()
    split = data.load(CPU)[0]
    inputs, targets = split.batch(torch.arange(len(split)))
    assert targets.dtype == torch.float32 and targets.mean().abs() < 1e-5
    assert float(targets.std(correction=0)) == pytest.approx(1, abs=1e-5)
    x = inputs[:, 0] * split.feature_std[0] + split.feature_mean[0]
    assert torch.allclose(targets * spec.target_std + spec.target_mean, 1000 + 7.5 * x, atol=1e-2)


@pytest.mark.parametrize("name", ["people", "texts"])
def test_mapped_split_gives_the_same_as_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = (people if name == "people" else reviews)(tmp_path / "t.csv")
    for normalise in (True, False):
        data = own(path, normalise=normalise)
        whole, _ = data.load(CPU)
        with monkeypatch.context() as patch:
            patch.setattr(table.cache, "SMALL_BYTES", 0)
            mapped, _ = data.load(CPU)
        assert isinstance(mapped, MappedRowsSplit) and len(mapped) == len(whole)
        indices = torch.tensor([3, 0, 3, 20])
        for split in (mapped, pickle.loads(pickle.dumps(mapped))):
            (ours, our_labels), (theirs, their_labels) = split.batch(indices), whole.batch(indices)
            assert ours.dtype == theirs.dtype and our_labels.dtype == their_labels.dtype
            assert torch.allclose(ours, theirs) and torch.equal(our_labels, their_labels)
        if name == "texts":
            assert mapped.texts[3] == whole.texts[3]  # type: ignore[attr-defined]


def reviews(path: Path) -> Path:
    dice = random.Random(0)
    words = ["the", "film", "was", "seen", "twice", "by", "us", "नमस्ते"]
    rows = []
    for index in range(60):
        text = " ".join([*dice.choices(words, k=8), "good," if index % 2 else "bad,", str(index)])
        rows.append(f'"{text}",{"pos" if index % 2 else "neg"}')
    return write(path, "text,mood", *rows)


def test_texts_are_recognised_and_kept(tmp_path: Path) -> None:
    data = own(reviews(tmp_path / "t.csv"))
    spec = data.spec()
    assert spec.task == "text_classification" and spec.class_names == ("neg", "pos")
    assert spec.input_shape == (11,), "ten words and a comma"
    train, validation = data.load(CPU)
    assert isinstance(train, TextSplit)
    tokens, labels = train.batch(torch.arange(len(train)))
    assert spec.decode is not None
    for row, label, text in zip(tokens.tolist(), labels.tolist(), train.texts, strict=True):
        assert spec.decode(row) == text.replace(",", " ,")
        assert ("good" in text) == bool(label)
    unseen = spec.decode(validation.batch(torch.arange(1))[0][0].tolist())
    assert unseen.endswith("\N{REPLACEMENT CHARACTER}"), "its number is in no training text"
    assert own(tmp_path / "t.csv", sequence_length=5).spec().input_shape == (5,)
    as_table = faults(tmp_path / "t.csv", task="tabular_classification")
    assert "no column is left" in as_table[0].message


def test_label_column_is_found_or_asked_for(tmp_path: Path) -> None:
    rows = [f"{'ab'[index % 2]},{index * 7 % 40}.5,{'xyz'[index % 3]}" for index in range(60)]
    path = write(tmp_path / "t.csv", "label,number,end", *rows)
    assert own(path).spec().class_names == ("a", "b")
    assert own(path, label_column="end").spec().class_names == ("x", "y", "z")
    assert own(path, label_column="number").spec().task == "tabular_regression"
    problem = fault(path, label_column="numbr")
    assert "no column 'numbr'" in problem.message and "Did you mean 'number'?" in problem.hint
    assert "'tall'" not in fault(path, label_column="zzz").hint


def test_cells_may_hold_delimiters_quotes_and_line_ends(tmp_path: Path) -> None:
    rows = [f'"said ""{index}"", then\nleft at once, again",{"ab"[index % 2]}' for index in range(30)]
    train, _ = own(write(tmp_path / "t.csv", "text,side", *rows)).load(CPU)
    assert sorted(train.texts)[0] == 'said "0", then\nleft at once, again' or '"' in train.texts[0]
    assert all("then\nleft at once, again" in text for text in train.texts)


def spoilt(lines: dict[int, list[str]]) -> Callable[[int, list[str]], list[str]]:
    """Return a change that replaces the rows at the given lines (the header is line 1)."""
    return lambda index, row: lines.get(index + 2, row)


def test_row_with_a_wrong_number_of_cells_is_named_by_its_line(tmp_path: Path) -> None:
    path = people(tmp_path / "t.csv", change=spoilt({5: ["1", "red", "1"], 9: ["1", "red", "1", "no", "x"]}))
    problem = fault(path)
    assert problem.line == 5 and problem.num_to_leave_out == 2
    assert problem.message == "2 rows have another number of cells than 4: line 5 has 3, line 9 has 5."
    spec = own(path, skip_unreadable=True).spec()
    assert spec.num_train + spec.num_validation == 38


def test_mixed_column_is_named_with_lines(tmp_path: Path) -> None:
    change = spoilt({4: ["tall", "red", "1", "no"], 30: ["12 m", "red", "1", "yes"]})
    path = people(tmp_path / "t.csv", change=change)
    problem = fault(path)
    assert problem.where == "column 'height'" and problem.line == 4
    assert (
        "38 of its values are numbers and 2 are not: 'tall' in line 4, '12 m' in line 30" in problem.message
    )
    data = own(path, skip_unreadable=True)
    assert data.spec().num_train + data.spec().num_validation == 38
    assert float(table_of(data)[:, 0].abs().max()) < 3


def test_missing_values_are_told_and_filled(tmp_path: Path) -> None:
    change = spoilt({3: ["", "red", "1", "no"], 7: ["NA", "", "1", "no"]})
    path = people(tmp_path / "t.csv", change=change)
    found = {note.where: note for note in notes(path)}
    assert "2 of 40 values are missing: lines 3, 7." in found["column 'height'"].message
    assert found["column 'colour'"].line == 7
    data = own(path)
    names = data.spec().feature_names
    assert names[:2] == ("height", "height = missing") and "colour = missing" in names
    rows = torch.cat([table_of(data, 0), table_of(data, 1)])
    is_missing = data.load(CPU)[0].batch(torch.arange(32))[0]
    assert float((rows[:, 1] > 0).sum()) == 2 and is_missing.isfinite().all()
    assert rows[rows[:, 1] > 0][:, 0].abs().max() == 0, "the mean"


def test_missing_labels_are_a_fault(tmp_path: Path) -> None:
    path = people(tmp_path / "t.csv", change=spoilt({6: ["1", "red", "1", ""]}))
    problem = fault(path)
    assert problem.line == 6 and "the label is missing in 1 row of 40: lines 6" in problem.message
    assert own(path, skip_unreadable=True).spec().num_train == 31


def test_forms_of_numbers_and_coordinates_become_features(tmp_path: Path) -> None:
    rows = [
        f'{n * 7 % 37} ± 2,5\'{n % 12}",{n % 8}/8,"{50 + n / 100:.2f}, {n / 50:.2f}",{"ab"[n % 2]}'
        for n in range(40)
    ]
    data = own(write(tmp_path / "t.csv", "mass,size,part,place,side", *rows), normalise=False)
    names = ("mass", "size", "part", "place: first number", "place: second number")
    assert data.spec().feature_names == names
    found = {tuple(round(value, 2) for value in row) for row in table_of(data).tolist()}
    expected = {
        (n * 7 % 37, 60 + n % 12, round(n % 8 / 8, 2), round(50 + n / 100, 2), n / 50) for n in range(40)
    }
    assert len(found) == 32 and found <= expected


def test_rare_categories_share_one_number(tmp_path: Path) -> None:
    rows = [
        f"{'often' if index % 2 else f'c{index % 90}'},{'ab'[index % 2]},{index % 5}" for index in range(400)
    ]
    spec = own(write(tmp_path / "t.csv", "kind,side,label", *rows)).spec()
    kinds = [name for name in spec.feature_names if name.startswith("kind")]
    assert len(kinds) == 32 and kinds[-1] == "kind = other" and "kind = often" in kinds


def test_task_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = people(tmp_path / "t.csv")
    assert (
        "image classification cannot be learned from a table"
        in fault(path, task="image_classification").message
    )
    assert any("are not: 'no'" in one.message for one in faults(path, task="tabular_regression"))


def test_tables_without_duckdb_say_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(table_file.importlib, "import_module", missing)
    with pytest.raises(NotInstalledError, match="Tables need DuckDB"):
        own(people(tmp_path / "t.csv")).spec()


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "json", "xlsx"])
def test_other_formats_give_the_same_as_csv(tmp_path: Path, suffix: str) -> None:
    path = people(tmp_path / "t.csv")
    other = tmp_path / f"t.{suffix}"
    with path.open() as file:
        rows = list(csv.reader(file))
    if suffix == "parquet":
        duckdb.execute(f"COPY (SELECT * FROM read_csv('{path}')) TO '{other}' (FORMAT parquet)")
    elif suffix == "xlsx":
        write_xlsx(other, rows)
    else:
        objects = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
        lines = "\n".join(map(json.dumps, objects))
        other.write_text(lines if suffix == "jsonl" else json.dumps(objects))
    one, another = own(path), own(other)
    assert one.spec().feature_names == another.spec().feature_names
    assert torch.equal(table_of(one), table_of(another))


@pytest.mark.parametrize(("value", "where"), [("-1e308", "x"), ("Infinity", "y")])
def test_a_number_too_large_to_compute_with_is_refused_by_column_and_line(
    tmp_path: Path, value: str, where: str
) -> None:
    cells = [[f"{1.5 * index}", f"{index % 7}.5"] for index in range(40)]
    cells[5][where == "y"] = value
    path = write(tmp_path / "t.csv", "x,y", *map(",".join, cells))
    found = fault(path, task="tabular_regression")
    assert found.where == f"column '{where}'" and found.line == 7
    assert "1 of its numbers are too large to compute with" in found.message and "1e+38" in found.hint
    split = own(path, task="tabular_regression", skip_unreadable=True).load(CPU)[0]
    inputs, targets = split.batch(torch.arange(len(split)))
    assert inputs.isfinite().all() and targets.isfinite().all()


@pytest.mark.parametrize("values", [("1e-310", "2e-310"), ("9007199254740993", "9007199254740992")])
def test_numbers_that_cannot_be_told_apart_are_left_out_or_refused(
    tmp_path: Path, values: tuple[str, str]
) -> None:
    odd = [values[index % 2] for index in range(40)]
    rows = [f"{i * 1.5},{odd[i]},{i % 7}.5" for i in range(40)]
    path = write(tmp_path / "x.csv", "x,odd,y", *rows)
    (note,) = notes(path, task="tabular_regression")
    assert note.where == "column 'odd'" and "told apart in the computations. It is left out" in note.message
    assert own(path, task="tabular_regression").spec().feature_names == ("x",)
    assert "told apart" in fault(path, label_column="odd", task="tabular_regression").message
