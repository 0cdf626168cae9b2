"""Takes passwords, keys and tokens out of what people read: messages, logs and tracebacks.

Errors of servers may repeat an address, or the part of it that is wrong.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MASK = "***"
LEAST_KNOWN = 5  # characters: shorter ones are words of ordinary lines, too
_SHAPES = (
    (re.compile(r"(://[^\s:/@]*:)[^\s@]+@"), rf"\1{MASK}@"),
    (re.compile(r"([?&](?:sentinel_)?password=)[^&\s'\"]+"), rf"\1{MASK}"),
    (re.compile(r"\b(bearer\s+)(?=\S*\d)[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"\b(gs[-_]|gsj_)[\w-]{20,}"), rf"\1{MASK}"),  # keys and tokens of our own
)


def masked(text: str, *urls: str | None) -> str:
    """Returns the text without what looks like a secret, and without passwords of `urls` wherever they stand."""
    return without(text, [word for url in urls for word in passwords(url)])


def passwords(url: str | None) -> list[str]:
    """Returns the password of an address as it is written and as it is meant, the longer first."""
    parts = urlsplit(url or "")
    written = [parts.password or "", *re.findall(r"(?:^|&)(?:sentinel_)?password=([^&]+)", parts.query)]
    meant = [unquote(word) for word in written]
    meant += [word for name in ("password", "sentinel_password") for word in parse_qs(parts.query).get(name, [])]
    return sorted({word for word in written + meant if word}, key=len, reverse=True)


def mask_logs(*secrets: str | None) -> None:
    """Keeps `secrets`, and what looks like one, out of all this process logs, whichever library or handler does it.

    Messages, tracebacks, and errors that nobody catches: all are masked before a handler or stderr sees them.
    """
    known = sorted({word for word in secrets if word and len(word) >= LEAST_KNOWN}, key=len, reverse=True)

    class MaskedRecord(logging.LogRecord):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.exc_info and self.exc_info[0] is not None:
                self.exc_text = without(_lines(*self.exc_info), known)
            if self.stack_info:
                self.stack_info = without(self.stack_info, known)

        def getMessage(self) -> str:
            return without(super().getMessage(), known)

    def say(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        sys.stderr.write(without(_lines(kind, error, trace), known) + "\n")

    def say_of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            say(args.exc_type, args.exc_value, args.exc_traceback)

    logging.setLogRecordFactory(MaskedRecord)
    sys.excepthook = say
    threading.excepthook = say_of_thread


def _lines(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> str:
    return "".join(traceback.format_exception(kind, error, trace)).rstrip("\n")


def without(text: str, words: Iterable[str]) -> str:
    """Returns the text without `words` wherever they stand, and without what looks like a secret."""
    for word in words:
        text = text.replace(word, MASK)
    for shape, shown in _SHAPES:
        text = shape.sub(shown, text)
    return text
