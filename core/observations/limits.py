"""The limits that plans, gateways and clocks keep for a class, and those of a pool that several classes come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from core.observations.request.request_configs import tbt_limit_s
from core.policy.dynamo_classes import PUBLISHED_FACTOR, strictest
from core.policy.knobs import Knobs
from core.types import Limits

# In an hour one answer in a hundred is longer than 2.8 times the mean (Azure 2023, conversation), 3.3 times (Mooncake)
# or 5.3 times (ServeGen, m-mid).
LONG_ANSWER = 4.0
_GO_BY_PACE = ("clock=throttle", "clock=retail", "admission=projection")
PRESENT = 0.01  # a class is present in a pool that takes this part of it


def class_limits(slo: Limits, own: Limits, knobs: Knobs) -> Limits:
    """Returns the limits that plans and gateways keep for a class: those of the service, or the stricter of both.

    Args:
        slo: The service's objectives.
        own: The class's thresholds. Its E2E threshold is left out, since E2E goes with a request's length.
        knobs: Of the policy: whether the class's own ones count, and how loose the policy takes all of them.
    """
    found = replace(strictest([slo, own]), e2e_s=slo.e2e_s) if knobs.class_limits else slo
    return at_factor(found, knobs.slo_factor)


def at_factor(limits: Limits, slo_factor: float) -> Limits:
    """Returns limits that allow 5 times a request by itself, as those that allow `slo_factor` times."""
    factor = slo_factor / PUBLISHED_FACTOR
    return Limits(*(None if own is None else own * factor for own in (limits.ttft_s, limits.tpot_s, limits.e2e_s)))


def planned(limits: Limits, ttft_share: float, tpot_share: float) -> Limits:
    """Returns the limits of a steady state's mean latencies, so that requests that wait as well keep the real ones.

    E2E is the time of all of a request, with its wait: it stays whole.
    """
    ttft_s = None if limits.ttft_s is None else limits.ttft_s * ttft_share
    tpot_s = None if limits.tpot_s is None else limits.tpot_s * tpot_share
    return Limits(ttft_s, tpot_s, limits.e2e_s)


def left_for_tokens_s(limits: Limits, output_tokens: float) -> float | None:
    """Returns the time that an answer has left of its E2E limit for each of its tokens; None: it has no such limit."""
    if limits.e2e_s is None:
        return None
    return max(0.0, limits.e2e_s - (limits.ttft_s or 0.0)) / max(1.0, output_tokens)


def batch_limits(tbt_s: float | None, of_classes: Iterable[Limits]) -> Limits:
    """Returns what throttLL'eM's engines keep for all in a batch: the time between tokens, and the strictest E2E (V-A).

    Args:
        tbt_s: Of the tuning; None: the strictest of the classes.
    """
    limits = list(of_classes)
    e2e_s = [own.e2e_s for own in limits if own.e2e_s is not None]
    return Limits(None, tbt_limit_s(tbt_s, limits), min(e2e_s, default=None))


def due_within_s(limits: Limits, tokens: float) -> float | None:
    """Returns the time, in s, within which throttLL'eM has a request end (eq. 4): its limit on E2E latency; None: any.

    Without such a limit it is the time in which an answer of so many tokens keeps the limits on TTFT and TPOT. Else
    nobody would be late who waits, and clocks would stay low beside a queue that grows.
    """
    if limits.e2e_s is not None or limits.tpot_s is None:
        return limits.e2e_s
    return (limits.ttft_s or 0.0) + limits.tpot_s * max(1.0, tokens)


def lacks_pace(clock: str, admission: str, tbt_s: float | None, of_classes: Iterable[Limits]) -> str:
    """Says why a policy has nothing to go by, and what to do; empty: it has, or needs nothing.

    Admission by projection, throttLL'eM's clock and ReTail's know neither TTFT nor load: under a TTFT limit by itself
    every clock is fast enough for them.

    Args:
        clock, admission: The knobs.
        tbt_s: Of the tuning. It paces answers, and holds for a whole batch, but ReTail's clock does not know it.
        of_classes: Limits of the classes, or of the service, that it is to serve.
    """
    by = [name for name in (f"clock={clock}", f"admission={admission}") if name in _GO_BY_PACE]
    limits = list(of_classes)
    if not by or all(due_within_s(own, 1.0) is not None for own in limits):
        return ""
    if clock != "retail" and (tbt_s is not None or any(own.tpot_s is not None for own in limits)):
        return ""
    return (
        f"{' with '.join(by)} goes by a limit on E2E latency or TPOT, and there is neither: give the service an "
        f"objective of one (e2e_s or tpot_s), or choose clock=fixed with admission=none"
    )


def present_limits(classes: Sequence[tuple[str, Limits]], shares: Mapping[str, float]) -> dict[str, Limits]:
    """Returns for each class the strictest TTFT and TPOT limits of the classes that come to its pools.

    Args:
        classes: Names and limits, smallest class first.
        shares: What each class's pools hand on to the next larger class, 0 to 1; classes left out hand on nothing.
    """
    found: dict[str, Limits] = {}
    arriving: list[tuple[float, Limits]] = []  # parts of the classes that come to the present one's pools
    for name, limits in classes:
        share = shares.get(name, 0.0)
        arriving = [*arriving, (1.0, limits)]
        present = [own for part, own in arriving if part * (1.0 - share) >= PRESENT]
        found[name] = strictest(present or [limits])
        arriving = [(part * share, own) for part, own in arriving if part * share > 0.0]
    return found
