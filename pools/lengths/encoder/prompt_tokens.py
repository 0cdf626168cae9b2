"""Prompts as an encoder reads them: tokens of its own tokenizer, bounded, in chunks, in batches of equal shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .version_files import UnusableVersion

_BYTES_PER_TOKEN = 8  # more characters than the tokens that are kept ever have, on average
MOST_LONGER = 1.5  # of the prompts of a batch, the longest than the shortest, in tokens
_PADS = ("[PAD]", "<pad>")

Ints = NDArray[np.int64]
Chunks = list[list[int]]  # of one prompt


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts with equally many chunks. `rows` (n,) says which they are; `ids` and `mask` are (n, chunks, tokens)."""

    rows: Ints
    ids: Ints
    mask: Ints


class PromptTokens:
    """Cuts prompts into chunks of at most `max_tokens` tokens, the tokenizer's own special ones included.

    Of a prompt with more tokens than `max_chunks` chunks hold, the first half of what they hold and the last are kept:
    what is to be done stands at the beginning or the end. Raises UnusableVersion where `raw` is no tokenizer.json.
    """

    def __init__(self, raw: bytes, max_tokens: int, max_chunks: int) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_str(raw.decode())
        except Exception as error:  # tokenizers raises nothing narrower
            raise UnusableVersion(f"tokenizer.json cannot be used: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        special = self._tokenizer.encode("").ids
        self._begin, self._end = special[:1], special[1:]
        self._body = max_tokens - len(special)
        self._most = self._body * max_chunks
        found = (self._tokenizer.token_to_id(pad) for pad in _PADS)
        self._pad = next((pad for pad in found if pad is not None), 0)

    def chunks(self, prompts: Sequence[str]) -> list[Chunks]:
        """Returns the chunks of tokens of each prompt, at least one."""
        shortened = [self._shortened(prompt) for prompt in prompts]
        encoded = self._tokenizer.encode_batch_fast(shortened, add_special_tokens=False)
        return [self._cut(one.ids) for one in encoded]

    def batches(self, chunked: Sequence[Chunks], size: int, rows: Sequence[int] | None = None) -> Iterator[Batch]:
        """Yields batches of at most `size` prompts with equally many chunks, in the order of `rows` among these.

        `rows` None: all, by length, and none with others much shorter: what is padded takes as long as what is read.
        """
        tokens = [(len(prompt), len(prompt[0])) for prompt in chunked]
        order = sorted(range(len(chunked)), key=tokens.__getitem__) if rows is None else rows
        longer = MOST_LONGER if rows is None else math.inf
        part: list[int] = []
        for row in sorted(order, key=lambda row: tokens[row][0]):  # keeps the order among equals
            if part and not (
                len(part) < size
                and tokens[row][0] == tokens[part[0]][0]
                and tokens[row][1] <= longer * tokens[part[0]][1]
            ):
                yield self._batch(part, [chunked[one] for one in part])
                part = []
            part.append(row)
        if part:
            yield self._batch(part, [chunked[one] for one in part])

    def _batch(self, rows: list[int], prompts: list[Chunks]) -> Batch:
        width = max(len(chunk) for prompt in prompts for chunk in prompt)
        ids = np.full((len(prompts), len(prompts[0]), width), self._pad, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            for column, chunk in enumerate(prompt):
                ids[row, column, : len(chunk)] = chunk
                mask[row, column, : len(chunk)] = 1
        return Batch(np.asarray(rows, dtype=np.int64), ids, mask)

    def _shortened(self, prompt: str) -> str:
        half = self._most * _BYTES_PER_TOKEN
        return prompt if len(prompt) <= 2 * half else prompt[:half] + prompt[-half:]

    def _cut(self, ids: list[int]) -> Chunks:
        if len(ids) > self._most:
            last = self._most // 2
            ids = ids[: self._most - last] + ids[len(ids) - last :]
        pieces = [ids[start : start + self._body] for start in range(0, len(ids), self._body)] or [[]]
        return [[*self._begin, *piece, *self._end] or [self._pad] for piece in pieces]


def new_tokenizer(prompts: Sequence[str], words: int) -> bytes:
    """Trains a tokenizer.json of at most so many tokens: byte pairs, so that any language's text can be written.

    Only what occurs in several prompts becomes a token of its own.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        min_frequency=3,
        special_tokens=["[PAD]", "[CLS]", "[SEP]"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(prompts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer.to_str().encode()
