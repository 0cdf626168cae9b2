"""The compiled reader of well-formed lines of a trace. What it does not know it leaves to `trace.py`, line by line."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.compiled import compiled

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

# Slots of the state that `parse` carries from call to call.
POSITION, ROWS, LINES, LAST_US, ZONE, FAILED, SLOTS = 0, 1, 2, 3, 4, 5, 6
# Whether timestamps name a time zone.
UNKNOWN, LOCAL, ZONED = 0, 1, 2
NEVER_US = -(1 << 62)

_NEWLINE, _RETURN, _COMMA, _QUOTE, _POINT, _COLON, _MINUS, _PLUS = 10, 13, 44, 34, 46, 58, 45, 43
_BLANK, _LETTER_T, _LETTER_Z, _ZERO = 32, 84, 90, 48
_MOST_DIGITS = 15  # of a number of tokens, or of seconds


@compiled
def _digits(text: Bytes, begin: int, end: int) -> int:
    """Reads a whole number without a sign; -1: it is none, or longer than any sensible one."""
    if begin >= end or end - begin > _MOST_DIGITS:
        return -1
    value = 0
    for k in range(begin, end):
        digit = int(text[k]) - _ZERO
        if digit < 0 or digit > 9:
            return -1
        value = 10 * value + digit
    return value


@compiled
def _fraction_us(text: Bytes, begin: int, end: int) -> int:
    """Reads microseconds from the digits after the point; further digits are cut off. -1: not only digits."""
    if begin >= end:
        return -1
    value = 0
    for k in range(begin, end):
        digit = int(text[k]) - _ZERO
        if digit < 0 or digit > 9:
            return -1
        if k < begin + 6:
            value = 10 * value + digit
    for _ in range(end - begin, 6):
        value *= 10
    return value


@compiled
def _days(year: int, month: int, day: int) -> int:
    """Returns the days since 1970-01-01 in the Gregorian calendar; years begin in March, so that the leap day is a
    year's last."""
    if month <= 2:
        year -= 1
        month += 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719_469


@compiled
def _date_us(text: Bytes, begin: int, end: int) -> tuple[int, int]:
    """Reads microseconds since 1970 and the ZONE of `YYYY-MM-DD HH:MM:SS[.f...][Z|+HH:MM]`; UNKNOWN: not of
    that form."""
    if end - begin < 19:
        return 0, UNKNOWN
    if text[begin + 4] != _MINUS or text[begin + 7] != _MINUS:
        return 0, UNKNOWN
    if (text[begin + 10] != _BLANK and text[begin + 10] != _LETTER_T) or text[begin + 13] != _COLON:
        return 0, UNKNOWN
    if text[begin + 16] != _COLON:
        return 0, UNKNOWN
    year = _digits(text, begin, begin + 4)
    month = _digits(text, begin + 5, begin + 7)
    day = _digits(text, begin + 8, begin + 10)
    hour = _digits(text, begin + 11, begin + 13)
    minute = _digits(text, begin + 14, begin + 16)
    second = _digits(text, begin + 17, begin + 19)
    if year < 1 or month < 1 or month > 12 or day < 1:
        return 0, UNKNOWN
    following = _days(year, month + 1, 1) if month < 12 else _days(year + 1, 1, 1)
    if _days(year, month, day) >= following:
        return 0, UNKNOWN
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return 0, UNKNOWN
    at_us = 1_000_000 * (86_400 * _days(year, month, day) + 3600 * hour + 60 * minute + second)
    k = begin + 19
    if k < end and text[k] == _POINT:
        stop = k + 1
        while stop < end and _ZERO <= text[stop] <= _ZERO + 9:
            stop += 1
        fraction = _fraction_us(text, k + 1, stop)
        if fraction < 0:
            return 0, UNKNOWN
        at_us += fraction
        k = stop
    if k == end:
        return at_us, LOCAL
    if text[k] == _LETTER_Z and k + 1 == end:
        return at_us, ZONED
    if (text[k] == _PLUS or text[k] == _MINUS) and k + 6 == end and text[k + 3] == _COLON:
        hours, minutes = _digits(text, k + 1, k + 3), _digits(text, k + 4, k + 6)
        if 0 <= hours <= 23 and 0 <= minutes <= 59:
            ahead_us = 60_000_000 * (60 * hours + minutes)
            return (at_us - ahead_us if text[k] == _PLUS else at_us + ahead_us), ZONED
    return 0, UNKNOWN


@compiled
def _seconds_us(text: Bytes, begin: int, end: int) -> tuple[int, int]:
    """Reads microseconds from `S[.f...]`, as LOCAL; UNKNOWN: not of that form."""
    point = begin
    while point < end and text[point] != _POINT:
        point += 1
    whole = _digits(text, begin, point)
    if whole < 0 or whole > 1_000_000_000_000:
        return 0, UNKNOWN
    if point == end:
        return 1_000_000 * whole, LOCAL
    fraction = _fraction_us(text, point + 1, end)
    return (0, UNKNOWN) if fraction < 0 else (1_000_000 * whole + fraction, LOCAL)


@compiled
def parse(
    text: Bytes,
    columns: Ints,
    in_seconds: bool,
    drops_failed: bool,
    state: Ints,
    at_us: Ints,
    prompt: Ints,
    output: Ints,
    predicted: Ints,
) -> bool:
    """Reads lines from state[POSITION] on into the four arrays, one entry a row; nothing predicted is 0.

    Args:
        text: whole lines, the last one with its newline too.
        columns: positions of time, prompt, output and predicted output among the fields of a line; the last may be -1.
        in_seconds: times are numbers of seconds, not dates.
        drops_failed: rows without output are counted in state[FAILED] and left out.
        state: where it stands; changed. The arrays have room for all lines.

    Returns:
        Whether all was read. If not, state[POSITION] is at a line that is wrong, or right in an unusual way.
    """
    position = state[POSITION]
    begins = np.zeros(4, np.int64)
    ends = np.zeros(4, np.int64)
    needed = 4 if columns[3] >= 0 else 3
    while position < text.size:
        field, seen, plain = 0, 0, True
        start = position
        k = position
        while True:
            byte = text[k]
            if byte == _QUOTE:
                plain = False
            if byte in (_COMMA, _NEWLINE):
                last = k - 1 if byte == _NEWLINE and k > position and text[k - 1] == _RETURN else k
                for c in range(needed):
                    if columns[c] == field:
                        begins[c], ends[c] = start, last
                        seen += 1
                field += 1
                start = k + 1
            if byte == _NEWLINE:
                break
            k += 1
        if field == 1 and (k == position or (k == position + 1 and text[position] == _RETURN)):  # a blank line
            state[LINES] += 1
            position = k + 1
            continue
        state[POSITION] = position
        if not plain or seen < needed:
            return False
        if in_seconds:
            now_us, zone = _seconds_us(text, begins[0], ends[0])
        else:
            now_us, zone = _date_us(text, begins[0], ends[0])
        if zone == UNKNOWN or now_us < state[LAST_US] or (state[ZONE] != UNKNOWN and zone != state[ZONE]):
            return False
        tokens_in, tokens_out = _digits(text, begins[1], ends[1]), _digits(text, begins[2], ends[2])
        failed = drops_failed and tokens_out == 0
        guess = _digits(text, begins[3], ends[3]) if needed == 4 and begins[3] < ends[3] else 0
        if not failed and (tokens_in < 1 or tokens_out < 1 or guess < 0):
            return False
        if failed:
            state[FAILED] += 1
        else:
            row = state[ROWS]
            at_us[row], prompt[row], output[row], predicted[row] = now_us, tokens_in, tokens_out, guess
            state[ROWS] = row + 1
        state[LAST_US], state[ZONE] = now_us, zone
        state[LINES] += 1
        position = k + 1
    state[POSITION] = position
    return True
