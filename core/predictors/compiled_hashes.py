"""Hashes words and pairs of words: the inner loop of `text_features`, compiled, and alone so that it seldom changes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.compiled import compiled

SPACE, LETTER, SIGN = 0, 1, 2  # kinds of characters: between words, joined to words, words by themselves
PLACES = 32  # of characters in a word with factors of their own; longer words use them again


@compiled
def hashed(
    characters: NDArray[np.uint32], kinds: NDArray[np.uint8], factors: NDArray[np.uint64], lines: NDArray[np.uint64]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Returns the hashes of words and of pairs of words in their order, (g,), and the signature, (s,).

    Args:
        characters: (c,) code points.
        kinds: (k,) what each code point is; those from k - 1 on are as the last.
        factors: (4 + PLACES,) secret and odd: of code points, of a pair, of the whole, and of each place in a word.
        lines: (s, 2) a secret line's slope and offset for each entry of the signature.
    """
    grams = np.empty(2 * characters.size, np.uint32)
    signature = np.full(lines.shape[0], 0xFFFFFFFF, np.uint32)
    spread, first, second, last = factors[0], factors[1], factors[2], factors[3]
    found, at, previous = 0, 0, np.uint64(0)
    while at < characters.size:
        kind = kinds[min(characters[at], kinds.size - 1)]
        if kind == SPACE:
            at += 1
            continue
        word, place = np.uint64(0), 0
        while at < characters.size and (
            place == 0 or (kind == LETTER and kinds[min(characters[at], kinds.size - 1)] == kind)
        ):
            mixed = np.uint64(characters[at]) * spread
            word += (mixed ^ (mixed >> np.uint64(29))) * factors[4 + place % PLACES]
            at, place = at + 1, place + 1
        word ^= word >> np.uint64(31)
        grams[found] = np.uint32((word * last) >> np.uint64(32))
        found += 1
        if previous != 0:
            pair = ((previous * first) ^ word) * second
            grams[found] = np.uint32((pair * last) >> np.uint64(32))
            found += 1
        previous = word
    for line in range(lines.shape[0]):
        for gram in grams[:found]:
            value = np.uint32((np.uint64(gram) * lines[line, 0] + lines[line, 1]) >> np.uint64(32))
            if value < signature[line]:
                signature[line] = value
    return grams[:found], signature
