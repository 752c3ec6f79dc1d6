"""Classify which of Jane Austen's six novels a passage is from; uses the bundled text."""

from __future__ import annotations

import functools
import re

import torch

from trainers.data import TEXT_CLASSIFICATION, DataOptions, DataSpec
from trainers.data.text import TextSplit, WordTokenizer, tokens_tensor
from trainers.datasets.austen import whole_text
from trainers.registry import register_dataset

NOVELS = (
    "Emma", "Mansfield Park", "Northanger Abbey",
    "Persuasion", "Pride and Prejudice", "Sense and Sensibility",
)  # fmt: skip
PASSAGE_WORDS = 40
NUM_TRAIN_EACH = 1_500  # per novel, from its beginning; the shortest has 1,923 passages
NUM_VALIDATION_EACH = 300  # per novel, from its end
VOCABULARY_SIZE = 8_000
SEQUENCE_LENGTH = 64  # 40 words and punctuation: 99% of the passages are not truncated


@register_dataset("austen_novels", label="Which Austen novel?")
class AustenNovels:
    """Passages of forty words from six novels."""

    def __init__(self, options: DataOptions) -> None:
        self._length = options.sequence_length or SEQUENCE_LENGTH
        self._tokenizer = options.tokenizer

    def spec(self) -> DataSpec:
        """Describe the passages without reading them, because the text never changes."""
        tokenizer = self._tokenizer
        return DataSpec(
            task=TEXT_CLASSIFICATION,
            input_shape=(self._length,),
            num_classes=len(NOVELS),
            class_names=NOVELS,
            num_train=NUM_TRAIN_EACH * len(NOVELS),
            num_validation=NUM_VALIDATION_EACH * len(NOVELS),
            sample_unit="passages",
            description="Predicts which of six novels by Jane Austen contains a passage of 40 words; names "
            "are a strong hint. 1,500 passages of each novel to train, 300 from near its end to validate.",
            source="Project Gutenberg by way of janeaustenr, public domain",
            vocabulary_size=VOCABULARY_SIZE if tokenizer is None else tokenizer.vocabulary_size,
            padding=WordTokenizer.padding if tokenizer is None else tokenizer.padding,
            decode=None if tokenizer is None else tokenizer.decode,
        )

    def load(self, device: torch.device) -> tuple[TextSplit, TextSplit]:
        """Read the passages and tokenize them."""
        passages = [novel_passages(novel) for novel in NOVELS]
        train = [passage for novel in passages for passage in novel[:NUM_TRAIN_EACH]]
        validation = [passage for novel in passages for passage in novel[-NUM_VALIDATION_EACH:]]
        tokenizer = self._tokenizer or _word_tokenizer()
        numbers = torch.arange(len(NOVELS))
        return (
            TextSplit(
                tokens_tensor(tokenizer, train, self._length),
                numbers.repeat_interleave(NUM_TRAIN_EACH),
                train,
                device=device,
                tokenizer=tokenizer,
            ),
            TextSplit(
                tokens_tensor(tokenizer, validation, self._length),
                numbers.repeat_interleave(NUM_VALIDATION_EACH),
                validation,
                device=device,
                tokenizer=tokenizer,
            ),
        )


@functools.cache
def _word_tokenizer() -> WordTokenizer:
    texts = [passage for novel in NOVELS for passage in novel_passages(novel)[:NUM_TRAIN_EACH]]
    tokenizer = WordTokenizer.of(texts, VOCABULARY_SIZE)
    assert tokenizer.vocabulary_size == VOCABULARY_SIZE
    return tokenizer


@functools.cache
def novel_passages(novel: str) -> list[str]:
    """Return a novel, without its title page, as consecutive passages of 40 words."""
    words = _novel_texts()[novel].split()
    return [
        " ".join(words[start : start + PASSAGE_WORDS])
        for start in range(0, len(words) - PASSAGE_WORDS + 1, PASSAGE_WORDS)
    ]


@functools.cache
def _novel_texts() -> dict[str, str]:
    """Split the text at lines that consist of a novel's title; drop title pages and an editor's note."""
    text = whole_text()
    pattern = "|".join(NOVELS)
    starts = list(re.finditer(rf"^({pattern})$", text, flags=re.MULTILINE | re.IGNORECASE))
    titles = [match[1].lower() for match in starts]
    assert titles == [novel.lower() for novel in NOVELS], titles
    ends = [match.start() for match in starts[1:]] + [len(text)]
    parts = (text[match.end() : end] for match, end in zip(starts, ends, strict=True))
    return {novel: _body(part) for novel, part in zip(NOVELS, parts, strict=True)}


def _body(part: str) -> str:
    first = re.search(r"^chapter (1|i)$", part, flags=re.MULTILINE | re.IGNORECASE)
    assert first is not None
    return part[first.end() :].split("\nA NOTE ON THE TEXT\n")[0]
