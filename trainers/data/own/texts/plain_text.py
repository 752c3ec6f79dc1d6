"""A plain text file, however long: its characters, or a trained model's tokens, as numbers on the disk."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainers.contract.config.data import parse_reading
from trainers.data.dataset import (
    LANGUAGE_MODELLING,
    CharacterSplit,
    DataOptions,
    DataSpec,
    Split,
    num_windows,
)
from trainers.data.own.common import reading
from trainers.data.own.common.cache import require_space, tokenizer_fingerprint
from trainers.data.own.common.problems import Problems
from trainers.data.own.common.progress import Progress
from trainers.data.own.common.reading import ReadingError
from trainers.data.own.common.splits import MappedTextSplit
from trainers.data.own.common.store import SMALL_BYTES, Array, ArrayWriter, Prepared
from trainers.data.text import UNKNOWN_MARK

SEQUENCE_LENGTH = 64
MAX_CHARACTERS = 65_535  # kept apart; of a text with more, the rarest are all one unknown character
UNICODE_END = 0x110000
VALIDATION_SHARE = 0.05
MAX_VALIDATION = 1_000_000
LEAST_WINDOWS = 4
PREVIEW_CHARACTERS = 400
MEGA = 1e6
_PIECE_CHARACTERS = 20_000
_PIECES_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class TextInspection:
    """What was counted: characters in all, how often each occurs, and how the text begins."""

    num_characters: int
    counts: Array
    beginning: str


class PlainText:
    """One text file; a model learns to write on."""

    name = "text"

    def __init__(self, path: Path, options: DataOptions) -> None:
        self._path = path
        self._tokenizer = options.tokenizer
        self._reading = options.reading
        self._length = options.sequence_length or SEQUENCE_LENGTH

    @functools.cached_property
    def _encoding(self) -> reading.Encoding:
        wanted = parse_reading(self._reading).get("encoding", "")
        return reading.find_encoding(self._path, wanted)

    def options(self) -> dict[str, object]:
        """Return what, beside the file, decides what is prepared; the window's length does not."""
        return {
            "kind": self.name,
            "reading": self._reading,
            "tokenizer": tokenizer_fingerprint(self._tokenizer),
        }

    def inspect(self, problems: Problems) -> TextInspection:
        """Count the characters of the whole text, piece by piece."""
        counts = np.zeros(UNICODE_END, dtype=np.int64)
        beginning = ""
        progress = Progress("million bytes looked at", self._path.stat().st_size, scale=MEGA)
        try:
            if self._encoding.note:
                problems.note(self._path.name, self._encoding.note)
            for text in reading.text_chunks(self._path, self._encoding):
                beginning = beginning or text[:PREVIEW_CHARACTERS]
                found = np.bincount(_code_points(text))
                counts[: len(found)] += found
                progress.add(reading.CHUNK_BYTES)
        except ReadingError as error:
            problems.fault(self._path.name, error.message, error.hint, line=error.line)
        progress.finish()
        if has_returns(self._path):
            problems.note(self._path.name, "its lines end in CR LF or CR; they are read as line feeds.")
        total = int(counts.sum())
        least = LEAST_WINDOWS * (self._length + 1)
        if not problems.num_faults and self._tokenizer is None and total < least:
            self._too_short(total, "characters", problems)
        if (rare := int((counts > 0).sum()) - MAX_CHARACTERS) > 0:
            message = f"there are {rare:,} more different characters than {MAX_CHARACTERS:,}."
            problems.note(self._path.name, message, "The rarest of them become one unknown character.")
        return TextInspection(num_characters=total, counts=counts, beginning=beginning)

    def about(self, inspection: TextInspection) -> dict[str, Any]:
        """Return how the text begins and how many characters it has."""
        preview = {
            "num_characters": inspection.num_characters,
            "num_distinct": int((inspection.counts > 0).sum()),
            "text": inspection.beginning,
        }
        return {"task": LANGUAGE_MODELLING, "columns": [], "label_column": None, "preview": preview}

    def estimate(self, inspection: TextInspection) -> DataSpec | None:
        """Describe the text; exact, except for a trained model's tokens, which only preparing can count."""
        if self._tokenizer is not None:
            return None
        vocabulary, _ = _vocabulary(inspection.counts)
        return self._spec(vocabulary, inspection.num_characters, _token_dtype(len(vocabulary)).itemsize)

    def prepare(self, inspection: TextInspection, folder: Path, problems: Problems) -> dict[str, Any]:
        """Write the text as numbers: 1 or 2 bytes a character, 4 a token of a trained model.

        Raises:
            DataError: when there are too few tokens.
        """
        if self._tokenizer is not None:
            require_space(folder, 4 * inspection.num_characters)
            about = self._write_tokens(folder)
            least = LEAST_WINDOWS * (self._length + 1)
            if about["shape"][0] < least:
                self._too_short(about["shape"][0], "tokens", problems)
            problems.check(str(self._path))
            return {"arrays": {"tokens": about}, "vocabulary": None}
        vocabulary, place_of = _vocabulary(inspection.counts)
        require_space(folder, place_of.itemsize * inspection.num_characters)
        writer = ArrayWriter(folder, "tokens", place_of.dtype.str, ())
        progress = Progress("million characters written", inspection.num_characters, scale=MEGA)
        for text in reading.text_chunks(self._path, self._encoding):
            writer.append(place_of[_code_points(text)])
            progress.add(len(text))
        progress.finish()
        return {"arrays": {"tokens": writer.close()}, "vocabulary": "".join(vocabulary)}

    def spec(self, prepared: Prepared) -> DataSpec:
        """Describe the prepared text."""
        tokens = prepared.array("tokens")
        vocabulary = prepared.meta["vocabulary"]
        return self._spec(tuple(vocabulary or ()), len(tokens), tokens.dtype.itemsize)

    def splits(self, prepared: Prepared, device: torch.device) -> tuple[Split, Split]:
        """Return all but the end of the text, and its end, in windows."""
        tokens = prepared.array("tokens")
        border = len(tokens) - self._num_validation(len(tokens))
        length = self._length
        if tokens.num_bytes > SMALL_BYTES and device.type == "cpu":
            return (
                MappedTextSplit(tokens, 0, border, sequence_length=length),
                MappedTextSplit(tokens, border, len(tokens), sequence_length=length),
            )
        here = _brought(tokens.slice(0, border), device), _brought(tokens.slice(border, len(tokens)), device)
        return (
            CharacterSplit(here[0], sequence_length=length, device=device),
            CharacterSplit(here[1], sequence_length=length, device=device),
        )

    def _spec(self, vocabulary: tuple[str, ...], num_tokens: int, token_bytes: int) -> DataSpec:
        own = self._tokenizer
        size = len(vocabulary) if own is None else own.vocabulary_size
        num_validation = self._num_validation(num_tokens)
        units = "characters" if own is None else "tokens"
        return DataSpec(
            task=LANGUAGE_MODELLING,
            input_shape=(self._length,),
            num_classes=size,
            vocabulary_size=size,
            class_names=vocabulary,
            num_train=num_windows(num_tokens - num_validation, self._length),
            num_validation=num_windows(num_validation, self._length),
            sample_unit=f"passages of {self._length} {units}",
            description=f"Your own text of {num_tokens:,} {units}, {size:,} different ones. The model learns "
            f"which comes next; the last {num_validation:,} are kept for validation.",
            source=f"your own data, {self._path}",
            watched_paths=(self._path,),
            decode=None if own is None else own.decode,
            num_bytes=num_tokens * token_bytes,
        )

    def _num_validation(self, num_tokens: int) -> int:
        share = min(MAX_VALIDATION, int(num_tokens * VALIDATION_SHARE))
        return max(share, self._length + 1)

    def _write_tokens(self, folder: Path) -> dict[str, Any]:
        assert self._tokenizer is not None
        writer = ArrayWriter(folder, "tokens", "<i4", ())
        progress = Progress("million characters read as tokens", 0, scale=MEGA)
        no_limit = _PIECE_CHARACTERS * 100
        for pieces in _batches(_pieces(self._path, self._encoding), _PIECES_AT_ONCE):
            for row in self._tokenizer.encode(pieces, no_limit):
                writer.append(np.array(row, dtype=np.int32))
            progress.add(sum(map(len, pieces)))
        progress.finish()
        return writer.close()

    def _too_short(self, num_tokens: int, unit: str, problems: Problems) -> None:
        least = LEAST_WINDOWS * (self._length + 1)
        message = (
            f"the text has {num_tokens:,} {unit}; with windows of {self._length}, {least:,} is the least."
        )
        hint = "Give a longer text, or a smaller sequence length."
        problems.fault(self._path.name, message, hint)


def has_returns(path: Path) -> bool:
    """Return True if the first lines of a text end in a carriage return."""
    with path.open("rb") as file:
        return b"\r" in file.read(2**16)


def _code_points(text: str) -> Array:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


def _vocabulary(counts: Array) -> tuple[tuple[str, ...], Array]:
    """Return the characters in order of their code points, and the place of each code point among them.

    Where there are too many, the rest share the last place.
    """
    there = np.flatnonzero(counts)
    kept = there
    if len(there) > MAX_CHARACTERS:
        most_frequent = np.argsort(-counts[there], kind="stable")[:MAX_CHARACTERS]
        kept = np.sort(there[most_frequent])
    characters = tuple(chr(point) for point in kept.tolist())
    if len(kept) < len(there):
        characters += (UNKNOWN_MARK,)
    place_of = np.full(UNICODE_END, max(0, len(characters) - 1), dtype=_token_dtype(len(characters)))
    place_of[kept] = np.arange(len(kept))
    return characters, place_of


def _token_dtype(size: int) -> np.dtype[Any]:
    return np.dtype("|u1") if size <= 256 else np.dtype("<u2")


def _brought(tokens: Array, device: torch.device) -> torch.Tensor:
    # torch cannot pick from its unsigned 16-bit type.
    if tokens.dtype == np.uint16:
        tokens = tokens.astype(np.int32)
    return torch.from_numpy(tokens).to(device)


def _pieces(path: Path, encoding: reading.Encoding) -> Iterator[str]:
    """Yield the text in pieces of at least 20,000 characters that end where a line does, if lines end."""
    rest = ""
    for text in reading.text_chunks(path, encoding, _PIECE_CHARACTERS * 8):
        rest += text
        start = 0
        while len(rest) - start > _PIECE_CHARACTERS:
            end = rest.find("\n", start + _PIECE_CHARACTERS) + 1
            if end == 0 and len(rest) - start < 4 * _PIECE_CHARACTERS:
                break
            end = end or start + _PIECE_CHARACTERS
            yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest:
        yield rest


def _batches(items: Iterator[str], size: int) -> Iterator[list[str]]:
    batch: list[str] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
