"""Takes passwords out of what people read: errors of servers may repeat an address, or the part of it that is wrong."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, unquote, urlsplit

MASK = "***"
_BEFORE_HOST = re.compile(r"(://[^\s:/@]*):[^\s@]+@")
_IN_QUERY = re.compile(r"([?&]password=)[^&\s'\"]+")


def masked(text: str, *urls: str | None) -> str:
    """Returns the text without passwords: those in addresses that it has, and those of `urls` wherever they stand."""
    for url in urls:
        for word in _passwords(url or ""):
            text = text.replace(word, MASK)
    return _IN_QUERY.sub(rf"\1{MASK}", _BEFORE_HOST.sub(rf"\1:{MASK}@", text))


def _passwords(url: str) -> list[str]:
    """Returns the password of an address as it is written and as it is meant, the longer first."""
    parts = urlsplit(url)
    written = [parts.password or "", *re.findall(r"(?:^|&)password=([^&]+)", parts.query)]
    meant = [unquote(word) for word in written] + parse_qs(parts.query).get("password", [])
    return sorted({word for word in written + meant if word}, key=len, reverse=True)
