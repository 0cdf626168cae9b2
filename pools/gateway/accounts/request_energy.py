"""Adds to a response's usage what the request cost in energy and carbon, for clients that ask for it.

Ask with the header `x-greenserve-energy: true`. The figure is the engine model's for what the request adds at the
instance it went to, with the engine's own count of output tokens in place of the predicted one, PUE included. What was
metered is known minutes later and stands in the records.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from core.units import J_PER_KWH

from ..requests.call import Call, Ending
from ..requests.sse import Usage
from .credible_usage import usage_fault

HEADER = b"x-greenserve-energy"
METHOD = "modelled increment (engine model, PUE included)"


def asked(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(HEADER, b"").lower() in (b"true", b"1")


def energy_of(call: Call, ending: Ending, output_tokens: int | None) -> dict[str, float | str | None]:
    """Returns the fields that go into `usage`. None: not known, as without an engine model or a carbon intensity."""
    energy_j = _energy_j(call, ending, output_tokens)
    intensity = None if ending.instance is None else ending.instance.pool.intensity_g_per_kwh
    carbon_g = None if energy_j is None or intensity is None else energy_j / J_PER_KWH * intensity
    return {"energy_j": energy_j, "carbon_gco2e": carbon_g, "energy_method": METHOD}


def with_energy(body: bytes, call: Call, ending: Ending) -> bytes:
    """Returns a response, or an event's JSON, with the figures in its usage; unchanged when it has none."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        usage = msgspec.json.decode(fields.get("usage", b"null"), type=dict[str, msgspec.Raw] | None)
        if usage is None:
            return body
        tokens = msgspec.json.decode(usage.get(call.endpoint.output_field, b"null"), type=int | None)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body
    fields["usage"] = msgspec.Raw(msgspec.json.encode(usage | energy_of(call, ending, tokens)))
    return msgspec.json.encode(fields)


def _energy_j(call: Call, ending: Ending, output_tokens: int | None) -> float | None:
    choice = ending.choice
    if choice is None or choice.predicted_energy_j is None or choice.token_energy_j is None:
        return None
    predicted = call.predicted_tokens
    if output_tokens is None or predicted is None or usage_fault(call, Usage(None, output_tokens)):
        return choice.predicted_energy_j
    return choice.predicted_energy_j + (output_tokens - predicted) * choice.token_energy_j
