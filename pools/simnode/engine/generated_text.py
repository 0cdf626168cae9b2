"""Makes up a simulated engine's words, which follow from the tokens before them, as with greedy decoding.

The first word follows from the prompt, each other one from its predecessor. So a prompt that ends with the beginning of
its own answer, words or token ids, is continued where that answer went on, on whichever engine: the parts of a split
request read as one, and cost the tokens that one would.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Words without a character that JSON must escape: they go into templates as they are.
_WORDS = (
    *("the", "river", "follows", "a", "slow", "bend", "past", "old", "mills", "and", "open", "fields", "where"),
    *("morning", "light", "settles", "on", "grass", "while", "birds", "turn", "above", "quiet", "water", "then"),
    *("people", "walk", "home", "with", "bread", "talk", "of", "rain", "winter", "harvest", "roads", "that", "lead"),
    *("over", "green", "hills", "to", "towns", "by", "sea"),
)
TOKENS = tuple(f" {word}" for word in _WORDS)
FIRST_ID = 100_000  # token ids of the words; ids of other text lie below
LAST_ID = 2**31 - 1
_INDEX = {word: index for index, word in enumerate(_WORDS)}
_STRIDE = 7  # coprime to the number of words: a text runs through all of them
_BYTES_PER_TOKEN = 4  # no tokenizer of a gated model is to be had: four bytes of text count as a token, rounded up
_MESSAGE_TOKENS = 4  # a chat template adds a few to each message: role and separators
_BEGINNINGS_TRIED = 3  # the tokens before an answer go on with its pattern by chance, once in 45 times each


def word_index(seed: int, index: int) -> int:
    """Returns the index in TOKENS of an answer's token `index`."""
    return (seed + _STRIDE * index) % len(TOKENS)


def text_of(seed: int, tokens: int) -> str:
    """Returns the first `tokens` tokens of an answer; the same as a stream of the same seed gives."""
    return "".join(TOKENS[word_index(seed, index)] for index in range(tokens))


def ids_of(seed: int, tokens: int) -> list[int]:
    """Returns their token ids."""
    return [FIRST_ID + word_index(seed, index) for index in range(tokens)]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: token ids of what was asked, and how many tokens of its own answer it ends with."""

    asked: array[int]
    written: int = 0

    @property
    def tokens(self) -> int:
        return len(self.asked) + self.written

    @property
    def origin(self) -> int:
        """The number that the whole answer, with what is written of it, follows from."""
        return zlib.crc32(self.asked.tobytes())

    @property
    def seed(self) -> int:
        """The number that the rest of the answer follows from."""
        return self.origin + _STRIDE * self.written

    def ids(self) -> list[int]:
        return [*self.asked, *ids_of(self.origin, self.written)]


def of_ids(ids: Sequence[int]) -> Prompt:
    """Makes a prompt of token ids, each from 0 to LAST_ID."""
    words: list[int] = []
    for token in reversed(ids):
        if not _precedes(token - FIRST_ID, words):
            break
        words.append(token - FIRST_ID)
    return _continued(array("I", ids), words[::-1], lambda count: array("I", ids[: len(ids) - count]))


def of_text(text: str) -> Prompt:
    words, cuts = _own_words(text)
    return _continued(_text_ids(text), words, lambda count: _text_ids(text[: cuts[-count]]))


def of_chat(messages: Sequence[tuple[str, str]], continues: bool) -> Prompt:
    """Makes a prompt of a chat of (role, text); `continues`: the last message is the beginning of the answer."""
    role, text = messages[-1]
    words, cuts = _own_words(text) if continues else ([], [])

    def before(count: int) -> array[int]:
        kept = text[: cuts[-count]]
        return _chat_ids([*messages[:-1], (role, kept)] if kept else messages[:-1])

    return _continued(_chat_ids(messages), words, before)


def _continued(whole: array[int], words: Sequence[int], before: Callable[[int], array[int]]) -> Prompt:
    """The prompt, less the longest end that is the beginning of the answer to the rest.

    `words`: the longest end in which each follows the one before. `before(n)`: the prompt less its last n tokens.
    """
    for count in range(len(words), max(0, len(words) - _BEGINNINGS_TRIED), -1):
        found = Prompt(before(count), count)
        if found.asked and word_index(found.origin, 0) == words[-count]:
            return found
    return Prompt(whole)


def _own_words(text: str) -> tuple[list[int], list[int]]:
    """The longest end of `text` in which each word follows the one before: which words, and where each begins."""
    words: list[int] = []
    cuts: list[int] = []
    end = len(text)
    while (cut := text.rfind(" ", 0, end)) >= 0:
        word = _INDEX.get(text[cut + 1 : end], -1)
        if not _precedes(word, words):
            break
        words.append(word)
        cuts.append(cut)
        end = cut
    return words[::-1], cuts[::-1]


def _precedes(word: int, later: Sequence[int]) -> bool:
    """Whether it is one of the words, and the last of `later` is the one that follows it."""
    return 0 <= word < len(TOKENS) and (not later or (word + _STRIDE) % len(TOKENS) == later[-1])


def _text_ids(text: str) -> array[int]:
    """Returns an id below 2**16 for each four bytes: their halves, one laid over the other, all at once."""
    data = text.encode() or bytes(1)
    data += bytes(-len(data) % _BYTES_PER_TOKEN)
    number = int.from_bytes(data, "little")
    mask = int.from_bytes(b"\xff\xff\0\0" * (len(data) // _BYTES_PER_TOKEN), "little")
    ids = array("I")
    ids.frombytes(((number ^ number >> 16) & mask).to_bytes(len(data), "little"))
    return ids


def _chat_ids(messages: Sequence[tuple[str, str]]) -> array[int]:
    ids = array("I")
    for role, text in messages:
        ids.extend(zlib.crc32(b"%d %b" % (n, role.encode())) % FIRST_ID for n in range(_MESSAGE_TOKENS))
        ids.extend(_text_ids(text))
    return ids
