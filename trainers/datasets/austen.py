"""Jane Austen's six novels as running text (public domain; the texts of R's janeaustenr, from Gutenberg)."""

from __future__ import annotations

import functools
import lzma

import torch
from torch import Tensor

from trainers.data import ASSETS_DATA, LANGUAGE_MODELLING, CharacterSplit, DataOptions, DataSpec, num_windows
from trainers.data.text import encode_whole
from trainers.registry import register_dataset

FILE = ASSETS_DATA / "austen.txt.xz"
SEQUENCE_LENGTH = 64
VALIDATION_CHARACTERS = 131_073


@register_dataset("austen", label="Jane Austen's novels")
class Austen:
    """Four million characters of prose for next-character prediction.

    A pretrained model with a tokenizer gets its tokens instead of characters.
    """

    def __init__(self, options: DataOptions) -> None:
        self._length = options.sequence_length or SEQUENCE_LENGTH
        self._tokenizer = options.tokenizer

    def spec(self) -> DataSpec:
        """Describe the text and its vocabulary."""
        tokenizer = self._tokenizer
        num_train, num_validation = self._num_tokens()
        class_names = vocabulary() if tokenizer is None else ()
        size = len(class_names) if tokenizer is None else tokenizer.vocabulary_size
        return DataSpec(
            task=LANGUAGE_MODELLING,
            input_shape=(self._length,),
            num_classes=size,
            vocabulary_size=size,
            class_names=class_names,
            num_train=num_windows(num_train, self._length),
            num_validation=num_windows(num_validation, self._length),
            sample_unit=f"passages of {self._length} {'characters' if tokenizer is None else 'tokens'}",
            description="Six novels, four million characters. The model learns to write the next "
            f"{'character' if tokenizer is None else 'piece of a word'}.",
            source="Project Gutenberg by way of janeaustenr, public domain",
            decode=None if tokenizer is None else tokenizer.decode,
        )

    def load(self, device: torch.device) -> tuple[CharacterSplit, CharacterSplit]:
        """Return the text as token numbers; its last pages are the validation split."""
        train, validation = self._tokens()
        return (
            CharacterSplit(train, sequence_length=self._length, device=device),
            CharacterSplit(validation, sequence_length=self._length, device=device),
        )

    @functools.cached_property
    def _own_tokens(self) -> tuple[Tensor, Tensor]:
        assert self._tokenizer is not None
        text = whole_text()
        train, validation = text[:-VALIDATION_CHARACTERS], text[-VALIDATION_CHARACTERS:]
        return encode_whole(self._tokenizer, train), encode_whole(self._tokenizer, validation)

    def _num_tokens(self) -> tuple[int, int]:
        if self._tokenizer is None:
            return len(whole_text()) - VALIDATION_CHARACTERS, VALIDATION_CHARACTERS
        train, validation = self._own_tokens
        return len(train), len(validation)

    def _tokens(self) -> tuple[Tensor, Tensor]:
        if self._tokenizer is not None:
            return self._own_tokens
        tokens = character_tokens()
        return tokens[:-VALIDATION_CHARACTERS], tokens[-VALIDATION_CHARACTERS:]


@functools.cache
def whole_text() -> str:
    """Return the text of all six novels."""
    return lzma.decompress(FILE.read_bytes()).decode("utf-8")


@functools.cache
def vocabulary() -> tuple[str, ...]:
    """Return the distinct characters of the text, sorted by code point."""
    return tuple(sorted(set(whole_text())))


@functools.cache
def character_tokens() -> Tensor:
    """Return (characters,) indices into the vocabulary."""
    number_of = {ord(character): number for number, character in enumerate(vocabulary())}
    return torch.frombuffer(bytearray(whole_text().translate(number_of).encode("latin-1")), dtype=torch.uint8)
