"""Texts as token numbers: word and character tokenizers, and a split that also keeps the texts."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from trainers.data.dataset import PADDING, TensorSplit, Tokenizer

UNKNOWN = 1  # the token of words that are not in the vocabulary
NUM_SPECIAL = 2  # padding and unknown
_PIECE_CHARACTERS = 20_000
UNKNOWN_MARK = "\N{REPLACEMENT CHARACTER}"

# Punctuation marks, each a token. A word is any text between them, not a sequence of letters: scripts such as
# Hindi and Tamil write vowels as signs, which are not letters in Unicode.
_MARKS = re.escape(string.punctuation + "“”‘’«»‹›„–—…।॥¿¡、。，！？：；（）「」")
# Chinese and Japanese have no spaces, so each character is a word.
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(
    rf"[{_IDEOGRAPHS}]|[^\s{_MARKS}{_IDEOGRAPHS}]+(?:['’][^\s{_MARKS}{_IDEOGRAPHS}]+)*|[{_MARKS}]"
)


class WordTokenizer:
    """One token per lower-cased word or punctuation mark; rare words share one unknown token.

    Args:
        words: the vocabulary; the first word is token `NUM_SPECIAL`.
    """

    padding = PADDING
    pattern: ClassVar[str] = _WORD.pattern

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.vocabulary_size = len(self.words) + NUM_SPECIAL
        self._number_of = {word: number for number, word in enumerate(self.words, start=NUM_SPECIAL)}

    @classmethod
    def of(cls, texts: Iterable[str], vocabulary_size: int) -> WordTokenizer:
        """Build a vocabulary of the most frequent words; ties go to the word that occurs first."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(split_words(text))
        return cls([word for word, _ in counts.most_common(vocabulary_size - NUM_SPECIAL)])

    def encode(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Return each text's tokens, truncated to `max_length`."""
        find = self._number_of.get
        return [[find(word, UNKNOWN) for word in split_words(text)[:max_length]] for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the words of some tokens, joined by spaces, without padding."""
        return " ".join(_names(self.words, tokens))


class CharacterTokenizer:
    """One token per character (Unicode code point); unseen characters share one unknown token.

    Args:
        characters: the vocabulary; the first character is token `NUM_SPECIAL`.
    """

    padding = PADDING

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = tuple(characters)
        self.vocabulary_size = len(self.characters) + NUM_SPECIAL
        self._number_of = {
            character: number for number, character in enumerate(self.characters, start=NUM_SPECIAL)
        }

    @classmethod
    def of(cls, texts: Iterable[str]) -> CharacterTokenizer:
        """Build a vocabulary of all characters of the training texts."""
        return cls(sorted(set().union(*texts)))

    def encode(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Return each text's tokens, truncated to `max_length`."""
        find = self._number_of.get
        return [[find(character, UNKNOWN) for character in text[:max_length]] for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the characters of some tokens, without padding."""
        return "".join(_names(self.characters, tokens))


class LetterTokenizer:
    """One token per character, without padding; unseen characters are left out.

    Args:
        characters: the vocabulary of a language model that was trained on a text without a tokenizer.
    """

    padding = PADDING

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = tuple(characters)
        self.vocabulary_size = len(self.characters)
        self._number_of = {character: number for number, character in enumerate(self.characters)}

    def encode(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Return each text's tokens, truncated to `max_length`."""
        known = self._number_of
        return [[known[each] for each in text if each in known][:max_length] for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the characters of some tokens."""
        return "".join(self.characters[token] for token in tokens)


class TextSplit(TensorSplit):
    """Short texts as token rows of equal length; `texts` keeps the originals for display.

    Args:
        inputs: (samples, length) tokens with padding.
        targets: (samples,) class numbers.
        texts: the original text of each sample.
        tokenizer: the tokenizer that produced the tokens.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        texts: Sequence[str],
        *,
        device: torch.device,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        assert len(texts) == len(inputs)
        super().__init__(inputs, targets, device=device)
        self.texts = texts
        self.tokenizer = tokenizer


def split_words(text: str) -> list[str]:
    """Return the lower-cased words and punctuation marks of a text."""
    return _WORD.findall(text.lower())


def tokens_tensor(tokenizer: Tokenizer, texts: Sequence[str], length: int) -> Tensor:
    """Return (texts, length) tokens, truncated or padded to `length`, in the smallest sufficient dtype."""
    rows = tokenizer.encode(texts, length)
    filled = [row + [tokenizer.padding] * (length - len(row)) for row in rows]
    return torch.tensor(filled, dtype=token_dtype(tokenizer.vocabulary_size)).reshape(len(texts), length)


def token_dtype(vocabulary_size: int) -> torch.dtype:
    """Return the smallest signed dtype that holds all tokens of a vocabulary."""
    return torch.int16 if vocabulary_size <= 2**15 else torch.int32


def _names(vocabulary: Sequence[str], tokens: Sequence[int]) -> list[str]:
    return [
        vocabulary[token - NUM_SPECIAL] if token >= NUM_SPECIAL else UNKNOWN_MARK
        for token in tokens
        if token != PADDING
    ]


def encode_whole(tokenizer: Tokenizer, text: str) -> Tensor:
    """Return the (tokens,) of a long text, encoded piece by piece to limit memory.

    Pieces end at a line break, so that no word is split.
    """
    pieces = []
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE_CHARACTERS) + 1 or len(text)
        pieces.append(text[start:end])
        start = end
    dtype = token_dtype(tokenizer.vocabulary_size)
    no_limit = _PIECE_CHARACTERS * 100
    rows = (row for chunk in pieces for row in tokenizer.encode([chunk], no_limit))
    return torch.cat([torch.tensor(row, dtype=dtype) for row in rows])
