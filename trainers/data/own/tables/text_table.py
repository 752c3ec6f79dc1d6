"""Writes the texts of a table as rows of tokens of equal length, and keeps them as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from trainers.data.dataset import Tokenizer
from trainers.data.own.common.cache import require_space
from trainers.data.own.common.limits import Progress
from trainers.data.own.common.splits import Rows, split_rows
from trainers.data.own.common.store import ArrayWriter, MappedArray, write_array
from trainers.data.own.tables.features import chunks
from trainers.data.own.tables.table_file import Table, column
from trainers.data.own.tables.table_plan import Plan
from trainers.data.text import (
    NUM_SPECIAL,
    CharacterTokenizer,
    WordTokenizer,
    split_words,
    token_dtype,
    tokens_tensor,
)

WORDS = "words"
CHARACTERS = "characters"
MAX_WORDS = 20_000
MAX_CHARACTERS = 20_000
MOST_COUNTED = 1_000_000  # different words; the rarest are forgotten when there are more
MIN_LENGTH, MAX_LENGTH = 4, 256
LONG_SHARE = 0.95  # of the training texts are not cut
NO_LIMIT = 10**6
_TEXTS_AT_ONCE = 4096
_TEXTS_MEASURED = 20_000


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How texts become tokens; `of` is WORDS or CHARACTERS, or "" for a trained model's own."""

    of: str
    vocabulary: list[str]

    def tokenizer(self, own: Tokenizer | None) -> Tokenizer:
        """Return the tokenizer; `own` is that of a trained model."""
        if own is not None:
            return own
        return (
            CharacterTokenizer(self.vocabulary) if self.of == CHARACTERS else WordTokenizer(self.vocabulary)
        )


class MappedTexts(Sequence[str]):
    """Some of the texts on the disk, one read at a time.

    Args:
        texts: (bytes,) all texts in UTF-8, one after the other.
        ends: (texts,) where each one ends.
        rows: which of them.
    """

    def __init__(self, texts: MappedArray, ends: MappedArray, rows: Rows) -> None:
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
    plan: Plan,
    folder: Path,
    *,
    file_bytes: int,
    single_words: bool,
    length: int | None,
    own: Tokenizer | None,
) -> tuple[dict[str, Any], Reader]:
    """Write `texts`, `ends`, `inputs`, `targets`, `train` and `validation`; return what is known of them.

    Args:
        single_words: the texts are mostly one word each and are read by their characters.
        length: tokens of a text; None: what leaves 95 of 100 training texts whole.
        own: the tokenizer of a trained model.
    """
    require_space(folder, file_bytes)
    arrays, targets, texts = _write_whole(table, plan, folder)
    train, validation = split_rows(targets, len(targets))
    ends = _mapped(folder, "ends", arrays)
    # In the order of the file: the disk is read from front to back.
    training = MappedTexts(texts, ends, np.sort(train))
    reader = (
        _make_reader(training, single_words=single_words) if own is None else Reader(of="", vocabulary=[])
    )
    tokenizer = reader.tokenizer(own)
    length = length or _usual_length(tokenizer, training)
    dtype = np.dtype(str(token_dtype(tokenizer.vocabulary_size)).removeprefix("torch."))
    require_space(folder, len(targets) * length * dtype.itemsize)
    writer = ArrayWriter(folder, "inputs", dtype.str, (length,))
    progress = Progress("texts written as tokens", len(targets))
    everything = MappedTexts(texts, ends, np.arange(len(targets)))
    for start in range(0, len(everything), _TEXTS_AT_ONCE):
        piece = everything[start : start + _TEXTS_AT_ONCE]
        writer.append(tokens_tensor(tokenizer, piece, length).numpy())
        progress.add(len(piece))
    progress.finish()
    arrays |= {
        "inputs": writer.close(),
        "targets": write_array(folder, "targets", targets),
        "train": write_array(folder, "train", train),
        "validation": write_array(folder, "validation", validation),
    }
    return arrays, reader


def frequent_words(texts: Iterator[str], most: int) -> list[str]:
    """Return the most frequent words; where there are too many to count, nearly."""
    counts: Counter[str] = Counter()
    least = 1
    for text in texts:
        counts.update(split_words(text))
        if len(counts) > MOST_COUNTED:
            while len(counts) > MOST_COUNTED // 2:
                counts = Counter({word: count for word, count in counts.items() if count > least})
                least += 1
    return [word for word, _ in counts.most_common(most)]


def _write_whole(table: Table, plan: Plan, folder: Path) -> tuple[dict[str, Any], Rows, MappedArray]:
    writer, ends_writer = ArrayWriter(folder, "texts", "|u1", ()), ArrayWriter(folder, "ends", "<i8", ())
    all_targets = []
    end = 0
    progress = Progress("texts read", table.num_rows)
    text = f"concat_ws(chr(10), {', '.join(map(column, plan.texts))})"
    for (texts,), targets in chunks(table, plan, [text]):
        raw = [str(each).encode("utf-8", errors="surrogatepass") for each in texts.tolist()]
        ends = end + np.cumsum([len(each) for each in raw])
        end = int(ends[-1])
        if joined := b"".join(raw):
            writer.append(np.frombuffer(joined, dtype=np.uint8))
        ends_writer.append(ends)
        all_targets.append(targets)
        progress.add(len(raw))
    progress.finish()
    arrays = {"texts": writer.close(), "ends": ends_writer.close()}
    return arrays, np.concatenate(all_targets), _mapped(folder, "texts", arrays)


def _make_reader(training: Sequence[str], *, single_words: bool) -> Reader:
    if not single_words:
        words = frequent_words(_counted(training, "texts' words counted"), MAX_WORDS - NUM_SPECIAL)
        return Reader(of=WORDS, vocabulary=words)
    counts: Counter[str] = Counter()
    for text in _counted(training, "texts' characters counted"):
        counts.update(text)
    return Reader(
        of=CHARACTERS, vocabulary=sorted(letter for letter, _ in counts.most_common(MAX_CHARACTERS))
    )


def _counted(texts: Sequence[str], doing: str) -> Iterator[str]:
    progress = Progress(doing, len(texts))
    for text in texts:
        yield text
        progress.add(1)
    progress.finish()


def _usual_length(tokenizer: Tokenizer, training: Sequence[str]) -> int:
    step = max(1, len(training) // _TEXTS_MEASURED)
    lengths = [len(tokenizer.encode([text], NO_LIMIT)[0]) for text in training[::step]]
    return int(min(MAX_LENGTH, max(MIN_LENGTH, np.quantile(lengths, LONG_SHARE))))


def _mapped(folder: Path, name: str, arrays: dict[str, Any]) -> MappedArray:
    about = arrays[name]
    return MappedArray(folder / f"{name}.bin", about["dtype"], tuple(about["shape"]))
