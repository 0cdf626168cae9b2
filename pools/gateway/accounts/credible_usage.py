"""Judges an engine's usage: a count that its answer cannot have would fail the record, or make its bill absurd."""

from __future__ import annotations

from ..requests.call import Call
from ..requests.sse import UNREADABLE, Usage

NOT_CREDIBLE = "the engine's usage is not credible: "
_LONGEST = 10**18


def usage_fault(call: Call, usage: Usage) -> str:
    """Says why a usage is not credible; empty: it is, or it has no counts.

    Each prompt fits into the context, and so does each answer, which also ends at the request's own limit.
    """
    if usage is UNREADABLE:
        return NOT_CREDIBLE + "it cannot be read"
    context, sequences = call.service.max_model_len, 1 if call.features is None else call.features.sequences
    answer = context if call.max_tokens is None else min(context, call.max_tokens)
    for what, count, most in (
        ("prompt", usage.prompt_tokens, context * sequences),
        ("output", usage.completion_tokens, answer * sequences),
    ):
        if count is not None and not 0 <= count <= most:
            shown = max(-_LONGEST, min(count, _LONGEST))  # one of thousands of digits cannot be written
            return f"{NOT_CREDIBLE}{shown} {what} tokens, where at most {most} are possible"
    return ""
