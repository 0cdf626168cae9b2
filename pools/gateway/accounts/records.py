"""The row that each request leaves, however it ended."""

from __future__ import annotations

from typing import NamedTuple

from pools import wire

from ..requests.call import Call, Ending
from ..requests.sse import Meter
from .credible_usage import usage_fault

MAX_ERROR_CHARACTERS = 500
MAX_REASON_CHARACTERS = 200
TRACEPARENT_CHARACTERS = 55


class Counted(NamedTuple):
    """Tokens of a call, and where they are from. `fault`: why the engine's own counts were left aside; empty: not."""

    prompt_tokens: int | None
    output_tokens: int | None
    source: str | None
    fault: str = ""


def row_of(
    call: Call, ending: Ending, actual_class: str | None = None, counted: Counted | None = None
) -> wire.RequestRow:
    """Puts a row together. Latencies count from when the whole request was here. `counted`: what `counts` said."""
    meter, choice, instance, request = ending.meter, ending.choice, ending.instance, call.request
    known, limits, began_s = call.classified, call.own_limits, request.received_s
    prompt_tokens, output_tokens, source, fault = counts(call, ending) if counted is None else counted
    e2e_s = None if ending.ended_s is None else ending.ended_s - began_s
    first_s = None if meter is None else meter.first_s
    # By position, in the order of RequestRow's fields: names would cost as much as all else here.
    return wire.RequestRow(
        call.request_id,
        request.started_at_s,
        call.service.name,
        call.key.tenant_id,
        call.key.key_id,
        call.endpoint.name,
        call.stream,
        ending.status,
        ending.http_status,
        prompt_tokens,
        output_tokens,
        source,
        None if known is None else known.predicted_tokens,
        None if known is None else known.source,
        call.max_tokens,
        None if known is None else known.class_name,
        actual_class,
        None if instance is None else instance.pool_id,
        None if instance is None else instance.uid,
        None if first_s is None else first_s - began_s,  # ttft_s
        None if meter is None else _tpot_s(meter, output_tokens),
        None if meter is None else meter.gap_max_s,
        e2e_s,
        None if choice is None else choice.window_s,
        _timely_tokens(ending, output_tokens, e2e_s),
        None if choice is None else choice.predicted_energy_j,
        call.queue_s,
        call.lost,
        None if limits is None else limits.ttft_s,
        None if limits is None else limits.tpot_s,
        ending.attempts,
        "" if choice is None else choice.reason[:MAX_REASON_CHARACTERS],
        (ending.error or fault)[:MAX_ERROR_CHARACTERS],
        _traceparent(request.headers.get(b"traceparent")),
        call.adapter or None,
        None if known is None else known.class_probability,
    )


def _traceparent(sent: bytes | None) -> str | None:
    """Returns only what has a traceparent's 55 characters. Whether it is one is looked at where spans are made."""
    return sent.decode() if sent is not None and len(sent) == TRACEPARENT_CHARACTERS and sent.isascii() else None


def counts(call: Call, ending: Ending) -> Counted:
    """Returns prompt and output tokens and their source: the engine's usage, the chunks seen, or an estimate.

    Usage that is not credible is left aside.
    """
    usage, meter, fault = ending.usage, ending.meter, ""
    if usage is not None:
        fault = usage_fault(call, usage)
        if not fault and usage.prompt_tokens is not None and usage.completion_tokens is not None:
            return Counted(usage.prompt_tokens, usage.completion_tokens, "usage")
    if meter is not None and meter.events:
        return Counted(call.prompt_tokens, meter.events, "chunks", fault)
    return Counted(call.prompt_tokens, None, None if call.prompt_tokens is None else "estimate", fault)


def _tpot_s(meter: Meter, output_tokens: int | None) -> float | None:
    """Returns the mean time of a token after the first; None where there is no second."""
    if meter.first_s is None or meter.last_s is None or not output_tokens or output_tokens < 2:
        return None
    return (meter.last_s - meter.first_s) / (output_tokens - 1)


def _timely_tokens(ending: Ending, output_tokens: int | None, e2e_s: float | None) -> int | None:
    """Returns the tokens delivered within the fairness window (FREESH C.2); None without a window or tokens.

    Events stand for tokens. Where the engine counts otherwise (an event of several tokens, or one without) the share
    of timely events is applied to its count. A response that is no stream comes as one piece at its end.
    """
    meter, choice = ending.meter, ending.choice
    if choice is None or choice.window_s is None or output_tokens is None:
        return None
    if meter is not None and meter.events:
        return round(output_tokens * meter.timely_events / meter.events)
    return output_tokens if e2e_s is not None and e2e_s <= choice.window_s else 0
