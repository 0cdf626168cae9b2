"""Reads the texts of a report's document, which reportlab compresses."""

from __future__ import annotations

import base64
import re
import zlib


def pdf_text(document: bytes) -> str:
    """Returns what is written on all pages, a piece for each change of font, with line ends between."""
    found = []
    for match in re.finditer(rb"ASCII85Decode /FlateDecode \].*?stream\r?\n(.*?)endstream", document, re.DOTALL):
        content = zlib.decompress(base64.a85decode(match[1].strip().removesuffix(b"~>")))
        for piece in re.findall(rb"\(((?:\\.|[^\\)])*)\) Tj", content):
            plain = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), piece)
            found.append(re.sub(rb"\\(.)", rb"\1", plain).decode("cp1252"))
    return "\n".join(found)
