"""Jane Austen's six novels as characters (public domain; the texts of R's janeaustenr, from Gutenberg)."""

from __future__ import annotations

import functools
import lzma

import torch

from trainers.data import ASSETS_DATA, LANGUAGE_MODELLING, CharacterSplit, DataSpec, num_windows
from trainers.registry import register_dataset

FILE = ASSETS_DATA / "austen.txt.xz"
SEQUENCE_LENGTH = 64
VALIDATION_CHARACTERS = 131_073


@register_dataset("austen", label="Jane Austen's novels")
class Austen:
    """Four million characters of prose; a model learns which character comes next."""

    def spec(self) -> DataSpec:
        """Describe the text and its vocabulary."""
        text = _text()
        vocabulary = tuple(sorted(set(text)))
        return DataSpec(
            task=LANGUAGE_MODELLING,
            input_shape=(SEQUENCE_LENGTH,),
            num_classes=len(vocabulary),
            class_names=vocabulary,
            num_train=num_windows(len(text) - VALIDATION_CHARACTERS, SEQUENCE_LENGTH),
            num_validation=num_windows(VALIDATION_CHARACTERS, SEQUENCE_LENGTH),
            sample_unit=f"passages of {SEQUENCE_LENGTH} characters",
            description="Six novels, four million characters. The model learns to write the next character.",
            source="Project Gutenberg by way of janeaustenr, public domain",
        )

    def load(self, device: torch.device) -> tuple[CharacterSplit, CharacterSplit]:
        """Return the text as numbers of the vocabulary; the last pages are kept for validation."""
        text = _text()
        number_of = {character: number for number, character in enumerate(sorted(set(text)))}
        tokens = torch.frombuffer(bytearray(number_of[character] for character in text), dtype=torch.uint8)
        train, validation = tokens[:-VALIDATION_CHARACTERS], tokens[-VALIDATION_CHARACTERS:]
        return (
            CharacterSplit(train, sequence_length=SEQUENCE_LENGTH, device=device),
            CharacterSplit(validation, sequence_length=SEQUENCE_LENGTH, device=device),
        )


@functools.cache
def _text() -> str:
    return lzma.decompress(FILE.read_bytes()).decode("utf-8")
