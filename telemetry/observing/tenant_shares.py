"""Serving energy by tenant, where a label of engines' pages names tenants: by token-time, as in the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from core.accounting.allocation import TokenTime
from core.accounting.whole_shares import cut
from core.units import UJ_PER_J

from .engine_courses import EngineCourse
from .observation import TenantShare

TENANTS_HOW = (
    "SGLang labels requests by --tokenizer-metrics-allowed-custom-labels: give that label as --tenant-label. With "
    "other engines put GreenServe's gateway in front, which knows tenants by their keys"
)
UNLABELLED = "(not labelled)"  # what series without the label counted
_NS_PER_S = 1e9


def tenant_shares(
    courses: Sequence[EngineCourse],
    label: str,
    times: Sequence[TokenTime],
    serving_uj: int,
    carbon_per_j: float | None,
    cost_per_j: float | None,
) -> tuple[tuple[TenantShare, ...], str]:
    """Returns each tenant's tokens and part of the serving energy, to which they add up exactly; and a note.

    Args:
        label: The label that names tenants.
        times: For each course, how long one token keeps its engine busy.
        serving_uj: What is to be shared out, in microjoules.
        carbon_per_j, cost_per_j: Grams and money for each joule, PUE included; None: unknown.
    """
    tokens: dict[str, list[float]] = {}
    for course, time in zip(courses, times, strict=True):
        counted = (course.names.requests, course.names.prompt_tokens, course.names.output_tokens)
        requests, prompts, outputs = (course.by_label(names, label) for names in counted)
        for tenant in {**prompts, **outputs}:
            own = requests.get(tenant, 0.0), prompts.get(tenant, 0.0), outputs.get(tenant, 0.0)
            busy_ns = _NS_PER_S * (own[1] * time.prefill_s + own[2] * time.decode_s)
            sums = tokens.setdefault(tenant, [0.0] * 4)
            tokens[tenant] = [total + part for total, part in zip(sums, (*own, busy_ns), strict=True)]
    known = {tenant: own for tenant, own in sorted(tokens.items()) if own[3] > 0.0}
    if not any(known):
        return (
            (),
            f"no page counts tokens by the label '{label}', so that tenants cannot be distinguished. {TENANTS_HOW}",
        )
    shares = cut(serving_uj, [round(own[3]) for own in known.values()])
    return tuple(
        TenantShare(
            tenant=tenant or UNLABELLED,
            requests=own[0],
            prompt_tokens=own[1],
            output_tokens=own[2],
            energy_j=share_uj / UJ_PER_J,
            carbon_g=None if carbon_per_j is None else carbon_per_j * share_uj / UJ_PER_J,
            cost=None if cost_per_j is None else cost_per_j * share_uj / UJ_PER_J,
        )
        for (tenant, own), share_uj in zip(known.items(), shares, strict=True)
    ), ""
