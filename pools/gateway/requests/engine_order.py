"""Gives an engine what it needs to know of a request's place among others.

vLLM takes a `priority`. One that runs GreenServe's scheduler (docs/plugin.md) says so in its agent's report
(`InstanceState.laxity`), and gets more, so that it can order by laxity as the request goes on: `vllm_xargs` with
`slo_s`, `lat_s`, `ttft_s` and `predicted_tokens`. No other engine sees these. A client's own such fields go nowhere:
how urgent a request is, its laxity says, not its client.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

HINTS = ("slo_s", "lat_s", "ttft_s", "predicted_tokens")
_XARGS = b'"vllm_xargs"'


class EngineWork(NamedTuple):
    """A request's part in least laxity first (FREESH, eq. 6). `due_s` in Unix seconds; `lat_s`: its time alone."""

    due_s: float
    lat_s: float
    ttft_s: float
    predicted_tokens: int

    def hints(self, now_s: float) -> dict[str, float | int]:
        """Returns the hints of an engine: due so long after arrival there, so that hosts' clocks need not agree."""
        return {
            "slo_s": round(self.due_s - now_s, 4),
            "lat_s": round(self.lat_s, 4),
            "ttft_s": round(self.ttft_s, 4),
            "predicted_tokens": self.predicted_tokens,
        }


def engine_body(body: bytes, priority: int | None, work: EngineWork | None, laxity: bool, now_s: float) -> bytes:
    """Returns a relayed body with what its engine is to know. `laxity`: whether it runs GreenServe's scheduler."""
    if priority is not None:
        body = _with(body, b'"priority":%d' % priority)
    hints = work.hints(now_s) if work is not None and laxity else {}
    if _XARGS not in body:
        return _with(body, _XARGS + b":" + msgspec.json.encode(hints)) if hints else body
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])  # the client has some of its own
    own = msgspec.json.decode(fields.get("vllm_xargs", b"null"))
    if not isinstance(own, dict):
        own = {}
    merged: dict[str, Any] = {name: value for name, value in own.items() if name not in HINTS} | hints
    fields["vllm_xargs"] = msgspec.Raw(msgspec.json.encode(merged))
    return msgspec.json.encode(fields)


def _with(body: bytes, field: bytes) -> bytes:
    brace = body.index(b"{") + 1
    return b"%b%b,%b" % (body[:brace], field, body[brace:])
