"""Classify the language of a name by its characters, if the package `faker` is installed.

Faker stores the first and last names of each country in a Python file. The file is parsed, not executed: only
the strings in the lists named first_names… and last_names… are read.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

import torch

from trainers.data import TEXT_CLASSIFICATION, DataOptions, DataSpec, NotInstalledError, Tokenizer
from trainers.data.installed import package_folder
from trainers.data.tables import split_rows
from trainers.data.text import CharacterTokenizer, TextSplit, tokens_tensor
from trainers.registry import register_dataset

IN_PACKAGE = Path("providers") / "person"
LANGUAGES = {
    "hi_IN": "Hindi", "mr_IN": "Marathi", "gu_IN": "Gujarati", "ta_IN": "Tamil", "or_IN": "Odia",
    "en_IN": "Indian (Latin letters)", "de_DE": "German", "es_ES": "Spanish", "fi_FI": "Finnish",
    "fr_FR": "French", "it_IT": "Italian", "nl_NL": "Dutch", "ru_RU": "Russian", "tr_TR": "Turkish",
}  # fmt: skip
MAX_NAMES = 1_000  # per language, so that long lists do not outweigh short ones
SEQUENCE_LENGTH = 20  # characters; 99% of the names are shorter
REQUIREMENT = "faker==40.54.0"
NOT_INSTALLED = (
    "Names of people in Hindi, Marathi, Gujarati, Tamil, Odia and other languages (2 MB). They come with a "
    f"Python package; get them with: pip install --no-deps {REQUIREMENT}"
)


@register_dataset("names", label="Names of people")
class Names:
    """First and last names; the model predicts the language from the characters."""

    def __init__(self, options: DataOptions, package: Path | None = None) -> None:
        self._folder = (package or package_folder("faker")) / IN_PACKAGE
        self._length = options.sequence_length or SEQUENCE_LENGTH
        self._tokenizer = options.tokenizer

    def spec(self) -> DataSpec:
        """Describe the names.

        Raises:
            NotInstalledError: if the package is missing.
        """
        languages, train, validation = self._names()
        tokenizer: Tokenizer = self._tokenizer or _tokenizer(self._folder)
        return DataSpec(
            task=TEXT_CLASSIFICATION,
            input_shape=(self._length,),
            num_classes=len(languages),
            class_names=languages,
            num_train=len(train),
            num_validation=len(validation),
            sample_unit="names",
            description=f"First and last names, read character by character: {', '.join(languages)}. "
            "Gujarati, Tamil, Odia and Russian have their own letters; Hindi and Marathi share theirs, and "
            "so do the other languages. Names that occur in two languages are omitted.",
            source="the Python package faker (MIT licence)",
            vocabulary_size=tokenizer.vocabulary_size,
            padding=tokenizer.padding,
            decode=tokenizer.decode,
            watched_paths=(self._folder,),
        )

    def load(self, device: torch.device) -> tuple[TextSplit, TextSplit]:
        """Read the names and tokenize them by character."""
        _, train, validation = self._names()
        tokenizer: Tokenizer = self._tokenizer or _tokenizer(self._folder)
        train_split, validation_split = (
            TextSplit(
                tokens_tensor(tokenizer, [name for name, _ in names], self._length),
                torch.tensor([language for _, language in names]),
                [name for name, _ in names],
                device=device,
                tokenizer=tokenizer,
            )
            for names in (train, validation)
        )
        return train_split, validation_split

    def _names(self) -> tuple[tuple[str, ...], list[tuple[str, int]], list[tuple[str, int]]]:
        if not self._folder.is_dir():
            raise NotInstalledError(NOT_INSTALLED, (self._folder,), requirement=REQUIREMENT)
        return split_names(self._folder)


@functools.cache
def split_names(folder: Path) -> tuple[tuple[str, ...], list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the available languages, and (name, language number) for training and validation.

    Raises:
        ValueError: if there are names of fewer than two languages.
    """
    languages_by_name = {
        language: read_names(folder / code / "__init__.py")
        for code, language in LANGUAGES.items()
        if (folder / code / "__init__.py").is_file()
    }
    num_languages = Counter(name for names in languages_by_name.values() for name in names)
    alone = {
        language: [name for name in names if num_languages[name] == 1]
        for language, names in languages_by_name.items()
    }
    unique_names = {language: names for language, names in alone.items() if len(names) > 1}
    if len(unique_names) < 2:
        raise ValueError(f"{folder} contains no lists of names that this program can read")
    pairs = []
    for number, names in enumerate(unique_names.values()):
        step = max(1.0, len(names) / MAX_NAMES)
        pairs += [(names[int(i * step)], number) for i in range(min(len(names), MAX_NAMES))]
    train, validation = split_rows(torch.tensor([number for _, number in pairs]), len(pairs))
    return (
        tuple(unique_names),
        [pairs[row] for row in train.tolist()],
        [pairs[row] for row in validation.tolist()],
    )


def read_names(path: Path) -> list[str]:
    """Return the distinct first and last names in a Python file, sorted."""
    names: set[str] = set()
    classes = (node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ClassDef))
    for statement in (statement for class_node in classes for statement in class_node.body):
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if any(isinstance(t, ast.Name) and t.id.startswith(("first_name", "last_name")) for t in targets):
            constants = (part.value for part in ast.walk(value) if isinstance(part, ast.Constant))
            names.update(word.strip() for word in constants if isinstance(word, str) and word.strip())
    return sorted(names)


@functools.cache
def _tokenizer(folder: Path) -> CharacterTokenizer:
    _, train, _ = split_names(folder)
    return CharacterTokenizer.of(name for name, _ in train)
