"""Counts the tokens of a chat's images: by their size, which stands in the first bytes of a data: URL's file.

No image is decoded, and nothing is fetched: one at an address, or of a format that is not known here, counts as the
largest that the model takes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from core.engine.image_rule import ImageRule

from .bodies import ChatBody

HEAD_BYTES = 96 << 10  # a photograph's own notes go before its size: up to 64 KiB each
_DATA = re.compile(rb'"data:image\\?/[^"]{0,100}?;base64,')
_MARKERS_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_JPEG_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


class ImageTokens(NamedTuple):
    """The tokens of all images of a chat; and how many of these have a size that is known, and not."""

    tokens: int = 0
    sized: int = 0
    unknown: int = 0


def image_tokens(body: ChatBody, rule: ImageRule) -> ImageTokens:
    """Counts a chat's images by the rule of its model."""
    tokens = sized = unknown = 0
    for raw in _images(body):
        size = size_of(raw)
        if size is None:
            unknown += 1
            tokens += rule.most_tokens
        else:
            sized += 1
            tokens += rule.tokens(*size)
    return ImageTokens(tokens, sized, unknown)


def _images(body: ChatBody) -> Iterator[msgspec.Raw]:
    for message in body.messages or ():
        if isinstance(message.content, list):
            for part in message.content:
                if not isinstance(part, str) and len(part.image_url):
                    yield part.image_url


def size_of(image_url: msgspec.Raw) -> tuple[int, int] | None:
    """Returns the width and height (px) of an `image_url` as it stands in the body; None: they are not to be had."""
    raw = memoryview(image_url)
    found = _DATA.search(raw[:1024])
    if found is None:
        return None
    text = bytes(raw[found.end() : found.end() + HEAD_BYTES * 4 // 3])
    text = text.partition(b'"')[0].replace(b"\\/", b"/").replace(b"\\n", b"")
    try:
        head = base64.b64decode(text[: len(text) // 4 * 4])
    except (binascii.Error, ValueError):
        return None
    size = _size_in(head)
    return size if size is not None and min(size) > 0 else None


def _size_in(head: bytes) -> tuple[int, int] | None:
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    if head[:4] == b"GIF8" and len(head) >= 10:
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        return _webp_size(head)
    return _jpeg_size(head) if head[:2] == b"\xff\xd8" else None


def _webp_size(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """Walks from segment to segment up to the frame's, which has the size."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if marker in _JPEG_SIZES:
            return int.from_bytes(head[at + 7 : at + 9]), int.from_bytes(head[at + 5 : at + 7])
        if marker == 0xFF:  # it fills
            at += 1
        elif marker in _MARKERS_WITHOUT_LENGTH:
            at += 2
        else:
            at += 2 + max(2, int.from_bytes(head[at + 2 : at + 4]))
    return None
