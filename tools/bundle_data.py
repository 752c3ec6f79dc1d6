"""Create `assets/data/` from the packages that contain the data.

Needs the unpacked Debian packages `dataset-fashion-mnist` and `r-cran-janeaustenr`
(`apt-get download …; dpkg -x …`) and an installed or unpacked scikit-learn:

    python tools/bundle_data.py --debian-root UNPACKED --sklearn-data .../sklearn/datasets/data
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import lzma
import re
import shutil
import struct
import zlib
from pathlib import Path

ASSETS_DATA = Path(__file__).resolve().parent.parent / "assets" / "data"

R_PAIR_OF_INTEGERS = struct.pack(">ii", 13, 2)
R_STRING_VECTOR = 16
R_STRING = 9

IRIS_COLUMNS = ["sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)"]
WINE_COLUMNS = [
    "alcohol", "malic acid", "ash", "alcalinity of ash", "magnesium", "total phenols", "flavanoids",
    "nonflavanoid phenols", "proanthocyanins", "colour intensity", "hue", "OD280/OD315", "proline",
]  # fmt: skip
BREAST_CANCER_COLUMNS = [
    f"{statistic} {quantity}"
    for statistic in ("mean", "error of", "worst")
    for quantity in (
        "radius", "texture", "perimeter", "area", "smoothness",
        "compactness", "concavity", "concave points", "symmetry", "fractal dimension",
    )
]  # fmt: skip
DIABETES_COLUMNS = [
    "age", "sex", "body mass index", "blood pressure", "total cholesterol",
    "LDL", "HDL", "cholesterol / HDL", "log triglycerides", "blood sugar",
]  # fmt: skip


def read_index(path: Path) -> list[tuple[str, int, int]]:
    """Return (name, offset, length) of each object in an R lazy-load index."""
    raw = gzip.decompress(path.read_bytes())
    spans = [
        struct.unpack(">ii", raw[match.end() : match.end() + 8])
        for match in re.finditer(re.escape(R_PAIR_OF_INTEGERS), raw)
    ]
    names: list[str] = []
    position = raw.index(b"names") + len(b"names") + 8
    while len(names) < len(spans):
        (length,) = struct.unpack(">i", raw[position + 4 : position + 8])
        names.append(raw[position + 8 : position + 8 + length].decode())
        position += 8 + length
    return [(name, *span) for name, span in zip(names, spans, strict=True)]


def read_lines(raw: bytes) -> list[str]:
    """Return the elements of one serialised R character vector (XDR, uncompressed)."""
    position = raw.index(struct.pack(">i", R_STRING_VECTOR), 14)
    (count,) = struct.unpack(">i", raw[position + 4 : position + 8])
    position += 8
    lines = []
    for _ in range(count):
        flags, length = struct.unpack(">ii", raw[position : position + 8])
        assert flags & 0xFF == R_STRING, f"not a string at byte {position}: {flags:#x}"
        lines.append(raw[position + 8 : position + 8 + length].decode("utf-8"))
        position += 8 + length
    return lines


def bundle_austen(debian_root: Path) -> None:
    """Join the six novels and compress them."""
    data = debian_root / "usr/lib/R/site-library/janeaustenr/data"
    blob = (data / "Rdata.rdb").read_bytes()
    novels = []
    for name, offset, length in read_index(data / "Rdata.rdx"):
        lines = read_lines(zlib.decompress(blob[offset + 4 : offset + length]))
        novels.append("\n".join(lines).strip())
        print(f"{name}: {len(lines):,} lines, {len(novels[-1]):,} characters")
    text = "\n\n\n".join(novels) + "\n"
    out = ASSETS_DATA / "austen.txt.xz"
    out.write_bytes(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))
    print(f"{out}: {out.stat().st_size:,} bytes, {len(set(text))} different characters")


def bundle_fashion_mnist(debian_root: Path) -> None:
    """Copy the t10k part."""
    source = debian_root / "usr/share/datasets/fashion-mnist"
    target = ASSETS_DATA / "fashion_mnist_t10k"
    target.mkdir(parents=True, exist_ok=True)
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        shutil.copyfile(source / name, target / name)


def bundle_tables(sklearn_data: Path) -> None:
    """Write scikit-learn's small tables in a uniform format: header first, target last, class names."""
    for name, source, target, columns in (
        ("iris", "iris.csv", "species", IRIS_COLUMNS),
        ("wine", "wine_data.csv", "cultivar", WINE_COLUMNS),
        ("breast_cancer", "breast_cancer.csv", "diagnosis", BREAST_CANCER_COLUMNS),
    ):
        first, *rows = read_csv((sklearn_data / source).read_text("ascii"))
        num_rows, num_columns, *classes = first
        assert (int(num_rows), int(num_columns)) == (len(rows), len(columns)), name
        classes = [re.sub(r"^class_(\d)$", lambda match: f"cultivar {int(match[1]) + 1}", c) for c in classes]
        write_table(name, [*columns, target], [[*row[:-1], classes[int(row[-1])]] for row in rows])
    features = read_csv(
        gzip.decompress((sklearn_data / "diabetes_data_raw.csv.gz").read_bytes()).decode(), " "
    )
    targets = gzip.decompress((sklearn_data / "diabetes_target.csv.gz").read_bytes()).decode().split()
    rows = [[*row, str(int(float(t)))] for row, t in zip(features, targets, strict=True)]
    write_table("diabetes", [*DIABETES_COLUMNS, "progression after one year"], rows)


def read_csv(text: str, delimiter: str = ",") -> list[list[str]]:
    """Return the rows of a table."""
    return list(csv.reader(text.splitlines(), delimiter=delimiter))


def write_table(name: str, header: list[str], rows: list[list[str]]) -> None:
    """Write a gzipped table. The same rows give the same bytes."""
    assert all(len(row) == len(header) for row in rows), name
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    out = ASSETS_DATA / f"{name}.csv.gz"
    out.write_bytes(gzip.compress(text.getvalue().encode("ascii"), compresslevel=9, mtime=0))
    print(f"{out}: {len(rows)} rows, {out.stat().st_size:,} bytes")


def main() -> None:
    """Create all data sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--debian-root", type=Path, required=True)
    parser.add_argument("--sklearn-data", type=Path, required=True)
    options = parser.parse_args()
    bundle_austen(options.debian_root)
    bundle_fashion_mnist(options.debian_root)
    shutil.copyfile(options.sklearn_data / "digits.csv.gz", ASSETS_DATA / "digits.csv.gz")
    bundle_tables(options.sklearn_data)


if __name__ == "__main__":
    main()
