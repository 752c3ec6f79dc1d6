"""Small custom data sets for the tests, and the problems reported for them. Fixtures act where imported."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trainers import registry
from trainers.data.dataset import DataOptions
from trainers.data.own.dataset import Own
from trainers.data.own.problems import DataError, DataProblem, Problems
from trainers.plugins import inspect_data


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store prepared data in a temporary folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TRAINERS_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe only the data, because building every model takes seconds."""
    monkeypatch.setattr(registry, "models", dict)


def make_image(
    path: Path, colour: tuple[int, ...] | int = (200, 30, 30), size: tuple[int, int] = (20, 16)
) -> Path:
    """Write an image of one colour; an integer makes it grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)
    return path


def make_images(root: Path, counts: Mapping[str, int]) -> Path:
    """Write a folder of images for each class; image k of class c has red 10 c and green k."""
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for index in range(count):
            make_image(root / name / f"{index:03}.png", (10 * number, index, 99))
    return root


def make_zip(path: Path, root: Path, below: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*")):
            archive.write(file, below + str(file.relative_to(root)))
    return path


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def write_xlsx(
    path: Path,
    rows: Sequence[Sequence[str]],
    sheets: Sequence[str] = ("Sheet1",),
    *,
    merged: Sequence[str] = (),
    empty: Sequence[str] = (),
    has_durations: bool = False,
) -> Path:
    """Write a minimal spreadsheet with the same cells in each sheet.

    Args:
        merged: ranges of merged cells.
        empty: sheets without cells.
        has_durations: True to show numbers with a point as hours, minutes and seconds.
    """
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    main = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    lines, style = [], ' s="1"' if has_durations else ""
    for row in rows:
        cells = [
            f"<c{style if '.' in cell else ''}><v>{cell}</v></c>"
            if cell.replace(".", "").replace("-", "").isdigit()
            else f'<c t="inlineStr"><is><t>{cell}</t></is></c>'
            for cell in row
        ]
        lines.append(f"<row>{''.join(cells)}</row>")
    named = [f'<sheet name="{name}" sheetId="{n}" r:id="rId{n}"/>' for n, name in enumerate(sheets, start=1)]
    related = [f'<Relationship Id="rId0" Type="{relation}/styles" Target="styles.xml"/>']
    related += [
        f'<Relationship Id="rId{n}" Type="{relation}/worksheet" Target="worksheets/sheet{n}.xml"/>'
        for n in range(1, len(sheets) + 1)
    ]
    ranges = "".join(f'<mergeCell ref="{each}"/>' for each in merged)
    below = f"<mergeCells>{ranges}</mergeCells>" if merged else ""
    package = "http://schemas.openxmlformats.org/package/2006"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("[Content_Types].xml", f'<Types xmlns="{package}/content-types"/>')
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1" '
            f'Type="{relation}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        )
        archive.writestr(
            "xl/workbook.xml",
            f'<workbook {main} xmlns:r="{relation}"><sheets>{"".join(named)}</sheets></workbook>',
        )
        archive.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{package}/relationships">{"".join(related)}</Relationships>',
        )
        archive.writestr(
            "xl/styles.xml",
            f'<styleSheet {main}><cellXfs><xf numFmtId="0"/><xf numFmtId="46"/></cellXfs></styleSheet>',
        )
        for n, name in enumerate(sheets, start=1):
            cells = "" if name in empty else "".join(lines)
            archive.writestr(
                f"xl/worksheets/sheet{n}.xml",
                f"<worksheet {main}><sheetData>{cells}</sheetData>{below}</worksheet>",
            )
    return path


def inspected(path: Path, **options: Any) -> dict[str, Any]:
    return inspect_data.inspect(DataOptions(path=str(path), **options), prepare=False)


def own(path: Path, **options: Any) -> Own:
    return Own(DataOptions(path=str(path), **options))


def faults(path: Path, **options: Any) -> tuple[DataProblem, ...]:
    """Return the faults for which data is rejected; fail if it is accepted."""
    with pytest.raises(DataError) as caught:
        own(path, **options).spec()
    assert all(problem.is_fatal for problem in caught.value.problems)
    return caught.value.problems


def fault(path: Path, **options: Any) -> DataProblem:
    """Return the single fault for which data is rejected."""
    found = faults(path, **options)
    assert len(found) == 1, [str(problem) for problem in found]
    assert found[0].hint, "a fault says what to do"
    return found[0]


def notes(path: Path, **options: Any) -> list[DataProblem]:
    """Return the notes on data that is accepted."""
    data = own(path, **options)
    data.spec()
    problems: Problems = data.problems
    assert problems.num_faults == 0
    return problems.shown


def colours(pixels: Any) -> list[tuple[int, ...]]:
    """Return the colour in the middle of each image of (images, channels, height, width)."""
    array = np.asarray(pixels)
    middle = array[:, :, array.shape[2] // 2, array.shape[3] // 2]
    return [tuple(int(value) for value in one) for one in middle]
