"""Own running text for language modelling: inspection, preparation and splits."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainers.contract.config.sections import parse_reading
from trainers.data.dataset import (
    LANGUAGE_MODELLING,
    CharacterSplit,
    DataOptions,
    DataSpec,
    Split,
    num_windows,
)
from trainers.data.own import cache, reading
from trainers.data.own.cache import (
    Array,
    ArrayWriter,
    PreparedData,
    require_space,
    tokenizer_fingerprint,
)
from trainers.data.own.problems import Problems, quoted
from trainers.data.own.processes import ReadProgress
from trainers.data.own.reading import ReadingError
from trainers.data.own.sources import DataFile
from trainers.data.own.splits import MappedTextSplit

SEQUENCE_LENGTH = 64
MAX_CHARACTERS = 65_536  # distinct characters, each stored as a 16-bit number
UNICODE_END = 0x110000
VALIDATION_SHARE = 0.05
MAX_VALIDATION = 1_000_000
LEAST_WINDOWS = 4
PREVIEW_CHARACTERS = 400
MEGA = 1e6
MAX_CHUNKS_COMPARED = 16  # chunks of 4 MB that are compared with the validation text
CONTAINED_SHARE = 0.1
NOT_TEXT = {
    "project gutenberg": "the header and the licence of Project Gutenberg",
    "<!doctype html": "the tags of a web page",
}
_SENTENCE_END = re.compile(r"[\n.!?。！？]+")
_MIN_SENTENCE = 12  # characters
# A piece for a tokenizer: 20,000 characters and the rest of the line, so that no word is split.
_PIECE = re.compile(r".{20000}[^\n]{0,60000}\n?|.+", re.DOTALL)
_LONGEST_PIECE = 2_000_000  # tokens


@dataclass(frozen=True, kw_only=True)
class TextInspection:
    """The number of characters, the count of each code point, and the beginning of the text."""

    num_characters: int
    counts: Array
    beginning: str


class PlainText:
    """One text file, for next-token prediction."""

    name = "text"

    def __init__(self, file: DataFile, options: DataOptions) -> None:
        self._source = file.path
        self._file = file
        self._tokenizer = options.tokenizer
        self._reading = options.reading
        self._length = options.sequence_length or SEQUENCE_LENGTH

    @functools.cached_property
    def _path(self) -> Path:
        return self._file.local(Problems())

    @functools.cached_property
    def _encoding(self) -> reading.Encoding:
        requested = parse_reading(self._reading).get("encoding", "")
        return reading.find_encoding(self._path, requested)

    def num_bytes(self) -> int:
        """Return the size of the file, after unpacking."""
        return self._path.stat().st_size

    def options(self) -> dict[str, object]:
        """Return the options that determine the prepared data; the sequence length is not one of them."""
        return {
            "kind": self.name,
            "reading": self._reading,
            "tokenizer": tokenizer_fingerprint(self._tokenizer),
        }

    def inspect(self, problems: Problems) -> TextInspection:
        """Count the characters of the text, piece by piece."""
        counts = np.zeros(UNICODE_END, dtype=np.int64)
        beginning = end = ""
        progress = ReadProgress("million bytes looked at", self._path.stat().st_size, scale=MEGA)
        try:
            if self._encoding.note:
                problems.note(self._path.name, self._encoding.note)
            for text in reading.text_chunks(self._path, self._encoding):
                beginning = beginning or text[:PREVIEW_CHARACTERS]
                end = (end + text)[-MAX_VALIDATION:]
                found = np.bincount(_code_points(text))
                counts[: len(found)] += found
                progress.add(reading.CHUNK_BYTES)
        except ReadingError as error:
            problems.fault(self._path.name, error.message, error.hint, line=error.line)
        for mark, part in NOT_TEXT.items():
            if mark in beginning.lower():
                message = f"{part} are part of the text."
                problems.note(self._path.name, message, "Delete them if they should not be learned.")
        with self._path.open("rb") as file:
            if b"\r" in file.read(2**16):
                message = "its lines end in CR LF or CR; they are read as line feeds."
                problems.note(self._path.name, message)
        total = int(counts.sum())
        if not problems.num_faults:
            self._check(total, np.flatnonzero(counts).tolist(), problems)
        if not problems.num_faults:
            num_validation = self._num_validation(total)
            self._report_contained(end[-num_validation:], total - num_validation, problems)
        return TextInspection(num_characters=total, counts=counts, beginning=beginning)

    def _check(self, total: int, points: list[int], problems: Problems) -> None:
        num_distinct, visible = len(points), "".join(map(chr, points)).split()
        if self._tokenizer is None and total < LEAST_WINDOWS * (self._length + 1):
            self._too_short(total, "characters", problems)
        elif len("".join(visible)) < 2:
            what = f"of the character {quoted(visible[0])}" if visible else "of white space"
            message = f"the text consists {what} only: there is nothing to learn."
            problems.fault(self._path.name, message, "Give another text.")
        elif num_distinct > MAX_CHARACTERS:
            message = f"it has {num_distinct:,} different characters; at most {MAX_CHARACTERS:,} are allowed."
            problems.fault(self._path.name, message, "It may not be a text, or need another encoding.")

    def _report_contained(self, validation: str, num_train: int, problems: Problems) -> None:
        """Report if many sentences of the validation text are also in the training text."""
        validation_sentences = _sentences(validation)
        repeated: set[str] = set()
        offset = 0
        chunks = reading.text_chunks(self._path, self._encoding)
        for text in itertools.islice(chunks, MAX_CHUNKS_COMPARED):
            repeated |= validation_sentences & _sentences(text[: max(0, num_train - offset)])
            offset += len(text)
        if len(repeated) > CONTAINED_SHARE * len(validation_sentences):
            example = quoted(min(repeated, key=validation.index))
            message = (
                f"{len(repeated):,} of {len(validation_sentences):,} sentences or lines at its end, which is "
                f"kept for validation, are also in the training text, such as {example}."
            )
            hint = "The validation loss will be lower than for a new text. Remove what is repeated."
            problems.note(self._path.name, message, hint)

    def about(self, inspection: TextInspection) -> dict[str, Any]:
        """Return the beginning of the text and its number of characters."""
        preview = {
            "num_characters": inspection.num_characters,
            "num_distinct": int((inspection.counts > 0).sum()),
            "text": inspection.beginning,
        }
        return {"task": LANGUAGE_MODELLING, "columns": [], "label_column": None, "preview": preview}

    def estimate(self, inspection: TextInspection) -> DataSpec | None:
        """Describe the text before it is prepared; None for a pretrained model's tokens, not counted yet."""
        if self._tokenizer is not None:
            return None
        vocabulary = tuple(map(chr, np.flatnonzero(inspection.counts).tolist()))
        return self._spec(vocabulary, inspection.num_characters, _token_dtype(len(vocabulary)).itemsize)

    def prepare(self, inspection: TextInspection, folder: Path, problems: Problems) -> dict[str, Any]:
        """Write the text as numbers: 1 or 2 bytes per character, or 4 bytes per token of a pretrained model.

        Raises:
            DataError: if there are too few tokens.
        """
        if self._tokenizer is not None:
            require_space(folder, 4 * inspection.num_characters)
            info = self._write_tokens(folder)
            minimum = LEAST_WINDOWS * (self._length + 1)
            if info["shape"][0] < minimum:
                self._too_short(info["shape"][0], "tokens", problems)
            problems.check(str(self._path))
            return {"arrays": {"tokens": info}, "vocabulary": None}
        points = np.flatnonzero(inspection.counts)
        place_of = np.zeros(UNICODE_END, dtype=_token_dtype(len(points)))
        place_of[points] = np.arange(len(points))
        require_space(folder, place_of.itemsize * inspection.num_characters)
        writer = ArrayWriter(folder, "tokens", place_of.dtype.str, ())
        progress = ReadProgress("million characters written", inspection.num_characters, scale=MEGA)
        for text in reading.text_chunks(self._path, self._encoding):
            writer.append(place_of[_code_points(text)])
            progress.add(len(text))
        return {"arrays": {"tokens": writer.close()}, "vocabulary": "".join(map(chr, points.tolist()))}

    def spec(self, prepared: PreparedData) -> DataSpec:
        """Describe the prepared text."""
        tokens = prepared.array("tokens")
        vocabulary = prepared.meta["vocabulary"]
        return self._spec(tuple(vocabulary or ()), len(tokens), tokens.dtype.itemsize)

    def splits(self, prepared: PreparedData, device: torch.device) -> tuple[Split, Split]:
        """Return windows of the text: its end for validation, the rest for training."""
        tokens = prepared.array("tokens")
        border = len(tokens) - self._num_validation(len(tokens))
        length = self._length
        if tokens.num_bytes > cache.SMALL_BYTES and device.type == "cpu":
            return (
                MappedTextSplit(tokens, 0, border, sequence_length=length),
                MappedTextSplit(tokens, border, len(tokens), sequence_length=length),
            )
        # torch cannot index tensors of dtype uint16.
        values = tokens.all() if tokens.dtype != np.uint16 else tokens.all().astype(np.int32)
        train, validation = torch.from_numpy(values).tensor_split([border])
        return (
            CharacterSplit(train, sequence_length=length, device=device),
            CharacterSplit(validation, sequence_length=length, device=device),
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
            source=f"your own data, {self._source}",
            watched_paths=(self._source,),
            decode=None if own is None else own.decode,
            num_bytes=num_tokens * token_bytes,
        )

    def _num_validation(self, num_tokens: int) -> int:
        share = min(MAX_VALIDATION, int(num_tokens * VALIDATION_SHARE))
        return max(share, self._length + 1)

    def _write_tokens(self, folder: Path) -> dict[str, Any]:
        assert self._tokenizer is not None
        writer = ArrayWriter(folder, "tokens", "<i4", ())
        progress = ReadProgress("million characters read as tokens", 0, scale=MEGA)
        for text in reading.text_chunks(self._path, self._encoding):
            for row in self._tokenizer.encode(_PIECE.findall(text), _LONGEST_PIECE):
                writer.append(np.array(row, dtype=np.int32))
            progress.add(len(text))
        return writer.close()

    def _too_short(self, num_tokens: int, unit: str, problems: Problems) -> None:
        minimum = LEAST_WINDOWS * (self._length + 1)
        message = (
            f"the text has {num_tokens:,} {unit}; {minimum:,} is the least for windows of {self._length}."
        )
        hint = "Give a longer text, or a smaller sequence length."
        problems.fault(self._path.name, message, hint)


def _code_points(text: str) -> Array:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


def _sentences(text: str) -> set[str]:
    sentences = (sentence.strip() for sentence in _SENTENCE_END.split(text))
    return {sentence for sentence in sentences if len(sentence) >= _MIN_SENTENCE}


def _token_dtype(size: int) -> np.dtype[Any]:
    return np.dtype("|u1") if size <= 256 else np.dtype("<u2")
