"""Turns the text of a prompt into keyed hashes of its words and of pairs of words: all that is kept of a prompt.

Whoever has the hashes without the salt can read nothing back, and can try no guesses. Words are runs of letters, digits
and marks of any script; a character of a script that puts no spaces between words is a word by itself, and so is a sign
such as a question mark. Long prompts count by their head and their tail: where an instruction stands.

A word's hash is a sum over its characters with secret factors, modulo 2^64, of which the upper half is used
(multilinear hashing: Lemire and Kaser, "Strongly universal string hashing is fast", 2014).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from .compiled_hashes import LETTER, PLACES, SIGN, SPACE, hashed

HEAD, TAIL = 1024, 512  # characters of a prompt that are looked at
SIGNATURE = 64  # minima of a MinHash signature
_BASIC = 0x10000  # characters below are looked up in a table
# Scripts without spaces between words: Thai to Tibetan, Myanmar, Khmer, and Han, Kana and what lies between them.
_UNSPACED = ((0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0xA4CF), (0xF900, 0xFAFF))

Hashes = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class TextFeatures:
    """Keeps of a prompt, while it runs, hashes alone.

    Args:
        grams: (g,) hashes of its words and pairs of words, ascending, each once; (0,) of an empty text.
        signature: (SIGNATURE,) the share of equal entries of two signatures is the share of words and pairs that two
            prompts have in common (MinHash: Broder, 1997).
    """

    grams: Hashes
    signature: Hashes


class TextHasher:
    """Hashes texts with a salt. The same salt gives the same hashes in any process.

    Args:
        salt: 16 bytes or more that stay secret.
    """

    def __init__(self, salt: bytes) -> None:
        if len(salt) < 16:
            raise ValueError(f"a salt has 16 bytes or more, not {len(salt)}")
        self.mark = hashlib.blake2b(b"mark", key=salt[:64], digest_size=16).digest()
        digest = hashlib.blake2b(b"factors", key=salt[:64], digest_size=32).digest()
        random = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
        odd = random.integers(0, 1 << 64, 4 + PLACES + 2 * SIGNATURE, np.uint64) | np.uint64(1)
        self._factors, self._lines = odd[: 4 + PLACES], odd[4 + PLACES :].reshape(SIGNATURE, 2)

    def look(self, texts: Sequence[str]) -> TextFeatures:
        """Returns the features of a request's texts, the messages of a chat in their order."""
        characters = np.frombuffer(_ends(texts).casefold().encode("utf-32-le", "surrogatepass"), np.uint32)
        grams, signature = hashed(characters, _kinds(), self._factors, self._lines)
        return TextFeatures(np.unique(grams), signature)


def likeness(signature: Hashes, other: Hashes) -> float:
    """Estimates the share of words and pairs of words that two prompts have in common, 0 to 1."""
    return float(np.count_nonzero(signature == other)) / SIGNATURE


def _ends(texts: Sequence[str]) -> str:
    whole = "\n".join(texts)
    return whole if len(whole) <= HEAD + TAIL else f"{whole[:HEAD]}\n{whole[-TAIL:]}"


@cache
def _kinds() -> NDArray[np.uint8]:
    """Returns what each character below _BASIC is, and what all others are: signs."""
    import unicodedata

    kinds = np.full(_BASIC + 1, SIGN, np.uint8)
    for point in range(_BASIC):
        category = unicodedata.category(chr(point))
        if category[0] in "ZC":
            kinds[point] = SPACE
        elif category[0] in "LMN":
            kinds[point] = LETTER
    for low, high in _UNSPACED:
        block = kinds[low : high + 1]
        block[block == LETTER] = SIGN
    return kinds
