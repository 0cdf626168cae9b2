"""Decides what a request's end means for its line, and writes the line of its result. No I/O."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

import msgspec

from scheduler.batches.lifecycle import BUDGET_SPENT, request_id, result_of
from scheduler.batches.sending import LineOutcome
from scheduler.models import BatchLine

NOT_NOW = frozenset({401, 429, 503})  # no fault of the line's: no room, or the gateway does not know its key yet
FAULTY = frozenset({404, 408, 409, 500, 502, 504})  # passing, or the line's own: tried a few times
GATEWAY_AWAY_S, NOT_KNOWN_S, BUSY_S = 5.0, 3.0, 1.0
LONGEST_S = 60.0


class Fate(Enum):
    DONE = auto()
    AGAIN = auto()  # one attempt less
    LATER = auto()  # as if it had not been sent


def fate_of(outcome: LineOutcome, attempts: int, most: int) -> Fate:
    """Decides what becomes of a line. `attempts` includes this one."""
    if outcome.final:
        return Fate.DONE
    if outcome.unsent or outcome.status in NOT_NOW:
        return Fate.LATER
    if outcome.status is None or outcome.status in FAULTY:
        return Fate.AGAIN if attempts < most else Fate.DONE
    return Fate.DONE


def retry_in_s(outcome: LineOutcome, attempts: int) -> float:
    if outcome.retry_after_s is not None:
        return outcome.retry_after_s
    if outcome.status is None:
        return GATEWAY_AWAY_S
    if outcome.status == 401:
        return NOT_KNOWN_S
    return min(LONGEST_S, BUSY_S * 2.0**attempts)


def result_line(line: BatchLine, outcome: LineOutcome) -> bytes:
    """Returns the line of an output or error file."""
    if outcome.status is None:
        return result_of(
            line, None, {"code": "no_response", "message": f"The request got no response: {outcome.error}"}
        )
    try:
        body: Any = msgspec.Raw(msgspec.json.format(outcome.body, indent=-1))  # on one line, whatever it came as
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = outcome.body[:1000].decode(errors="replace")
        body = {"error": {"message": text, "type": "server_error", "param": None, "code": None}}
    response = {"status_code": outcome.status, "request_id": outcome.request_id or request_id(line), "body": body}
    return result_of(line, response)


class _Error(msgspec.Struct):
    code: str | None = None
    message: str = ""


class _Refusal(msgspec.Struct):
    error: _Error | None = None


def spent_budget(outcome: LineOutcome) -> str:
    """Returns what the gateway says of its tenant's budget that is spent; empty: it says nothing of the kind."""
    if outcome.status != 429:
        return ""
    try:
        error = msgspec.json.decode(outcome.body, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return error.message if error is not None and error.code == BUDGET_SPENT else ""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Response(msgspec.Struct):
    usage: _Usage | None = None


def usage_of(body: bytes) -> tuple[int, int]:
    """Returns prompt and output tokens; 0 where the engine did not say."""
    try:
        usage = msgspec.json.decode(body, type=_Response).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0, 0
    return (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
