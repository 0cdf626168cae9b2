"""Finds the places of a request's features in a hashed table: the inner loop of `text_lengths`, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.compiled import compiled

SPREAD = 0x9E3779B1  # 2^32 by the golden ratio, odd: Fibonacci hashing


@compiled
def places_of(
    record: NDArray[np.float64], grams: NDArray[np.uint32], key: np.uint32, bits: int, length: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Returns the place and the value of each feature, (f,) each, for all services and then for the one with `key`.

    Args:
        record: (s,) sizes and flags, below zero where they are not known: each is two features, its octave and its
            quarter of an octave.
        grams: (g,) hashes of words: together a vector of `length`.
        bits: Of a place.
    """
    sizes = 2 * record.size + 1
    total = sizes + grams.size
    places, values = np.empty(2 * total, np.int64), np.ones(2 * total, np.float32)
    each = np.float32(length / np.sqrt(max(1.0, grams.size)))
    for number in range(total):
        if number == sizes - 1:
            gram = np.uint32(1)  # of the constant
        elif number < sizes:
            value = record[number >> 1]
            quarter = -1 if value < 0.0 else int(4.0 * np.log2(1.0 + value))
            step = (quarter >> 2 & 0xFF) + 0x100 if number & 1 else (quarter & 0xFF) + 0x200
            gram = np.uint32(((number >> 1) << 16) + step)
        else:
            gram = grams[number - sizes]
            values[number] = values[total + number] = each
        if number < sizes:
            gram = np.uint32(gram * SPREAD)
        places[number] = gram >> np.uint32(32 - bits)
        places[total + number] = np.uint32((gram ^ key) * SPREAD) >> np.uint32(32 - bits)
    return places, values
