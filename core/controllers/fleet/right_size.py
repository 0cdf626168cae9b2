"""GreenServe's fleet loop: which instances, where and how many, cost least under the load that comes.

DynamoLLM (HPCA 2025) decides nodes each half hour and TP degrees each five minutes, because a start took minutes there.
With an environment that stands ready and weights cached a start takes half a minute (table V: 33 s), so that count,
degree, type and site can follow the load together, by one look at the profiles: the mix of least cost that has capacity
for what is ahead (`core.algorithms.fleet.site_mix`). It is FREESH's choice of sites, made this often.

What is ahead: the load as it would be if it went on to rise as it recently did, with `headroom`, and the largest burst
of the look-back, whichever is more. More capacity is asked for at once; less, or another kind, once it would have saved
enough for `hold_s` on end. Another kind restarts everything, so that its saving must be larger, and what stays or
starts beside it has to carry the load meanwhile. Two rules of a site are kept whatever they cost: its power cap, what
is still on its way out included, and how many starts and stops an hour it may have. Half of these are left for what
the load asks for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from core.algorithms.fleet.site_mix import Mix, Offer, Part, SiteMode, SiteRule, best_mix, kept_by_some, most_load_rps
from core.controllers.basis import basis_json
from core.controllers.fleet.explain import least_trusted, left_out, limits_text
from core.types import Alternative, Effects, Limits, Mode, PoolDecision, PoolKey, Rationale, Reason, ScaleTo

_EPS = 1e-9
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class RightSizeConfig:
    """`min_saving`, `mode_saving`: shares of the cost that a smaller fleet, or one of another kind, must save.

    `changes_per_hour`: most starts and stops of a site in any hour; None: as many as pay. `catch_up_s`: in which what
    waits is to be served as well, about a start's time. `learn_s`: after the first request, in which the load counts as
    little known; 0: it never does.
    """

    period_s: float = 10.0
    headroom: float = 1.02
    burst: float = 0.9
    hold_s: float = 60.0
    min_saving: float = 0.03
    mode_saving: float = 0.1
    changes_per_hour: int | None = None
    catch_up_s: float = 30.0
    learn_s: float = 600.0

    def __post_init__(self) -> None:
        if (
            min(self.period_s, self.catch_up_s) <= 0.0
            or self.headroom < 1.0
            or min(self.burst, self.hold_s, self.learn_s) < 0.0
        ):
            raise ValueError("period_s and catch_up_s above 0, headroom from 1, burst, hold_s and learn_s from 0")
        if not (0.0 <= self.min_saving < 1.0 and 0.0 <= self.mode_saving < 1.0):
            raise ValueError("min_saving and mode_saving are shares, from 0 to below 1")
        if self.changes_per_hour is not None and self.changes_per_hour < 1:
            raise ValueError("changes_per_hour from 1, or None for no limit")


@dataclass(frozen=True, slots=True)
class RightSizeObservation:
    """A service and its load. `rates_rps`: of the stretches of the look-back, oldest first; none: nothing was seen yet.

    `limits`: what the profiles' latencies are to keep. `caps_w`: most that a site's instances may draw; sites without
    one are not named. `standing`: what draws power now, starting and draining ones included. `waiting`: requests in
    queues. `least`: how many instances of a kind, by themselves, keep TTFT when what came comes again, as near as what
    is ahead has it (`ahead_rps`), None where no number of them does; None: what came is not known one by
    one, and profiles alone say what keeps it. `headroom`: of the error budget (`core.controllers.fleet.error_budget`).
    `expected_rps`: to have capacity for though it was not seen: what is left of the operator's word as more is known.
    `without_e2e_s`: the E2E limit that `limits` are without, since no offer keeps it; None: there is none.
    `first_s`: when the first request of the look-back came; None: none did.
    """

    now_s: float
    pool: PoolKey
    rates_rps: tuple[float, ...]
    offers: tuple[Offer, ...]
    limits: Limits
    caps_w: Mapping[str, float] = field(default_factory=dict)
    standing: Mapping[SiteMode, int] = field(default_factory=dict)
    waiting: int = 0
    least: Mapping[SiteMode, int | None] | None = None
    headroom: float = 1.0
    expected_rps: float = 0.0
    without_e2e_s: float | None = None
    first_s: float | None = None


@dataclass(frozen=True, slots=True)
class RightSizeState:
    """The mix that was last asked for, under the load of now; since when another would have been better; the changes of
    the last hour (when, where, how many); since when the load is looked at, or since requests come, if they have
    `begun`; and how many of each kind keep TTFT (the last observation's `least`)."""

    mix: Mix
    better_since_s: float | None = None
    changed: tuple[tuple[float, str, int], ...] = ()
    since_s: float | None = None
    begun: bool = False
    least: Mapping[SiteMode, int | None] | None = None

    @property
    def workers(self) -> dict[SiteMode, int]:
        return self.mix.workers


def step(
    state: RightSizeState | None, obs: RightSizeObservation, config: RightSizeConfig
) -> tuple[RightSizeState | None, Effects]:
    """Decides one period: a ScaleTo for each site whose instances are to change.

    Without any load seen nothing is decided.
    """
    if not obs.rates_rps or not obs.offers:
        return state, _effects(obs, config, (), Reason.NO_DATA, "no load has been seen", ())
    return _Choice(state, obs, config).made()


@dataclass(frozen=True, slots=True)
class _Rules:
    """Those of each site: its cap and what is left of its changes, for a change that can wait or one that cannot."""

    state: RightSizeState | None
    obs: RightSizeObservation
    config: RightSizeConfig

    def of(self, needed: bool, *, least: bool = False, most: bool = False) -> dict[str, SiteRule]:
        """`least`, `most`: nothing of what was asked for goes, or nothing comes."""
        return {site: self._of(site, needed, least, most) for site in {offer.site for offer in self.obs.offers}}

    def _of(self, site: str, needed: bool, least: bool, most: bool) -> SiteRule:
        asked = {} if self.state is None else _at_site(self.state.workers, site)
        return SiteRule(
            self.obs.caps_w.get(site),
            _at_site(self.obs.standing, site),
            self._left(site, needed),
            asked,
            asked if least else None,
            asked if most else None,
        )

    def _left(self, site: str, needed: bool) -> int | None:
        budget = self.config.changes_per_hour
        if budget is None or self.state is None:  # the first fleet is no change
            return None
        done = sum(count for at_s, where, count in self.state.changed if where == site and self._recent(at_s))
        return max(0, budget - done - (0 if needed else budget // 2))

    def _recent(self, at_s: float) -> bool:
        return at_s > self.obs.now_s - _HOUR_S


class _Choice:
    """One period's, with what it weighs."""

    def __init__(self, state: RightSizeState | None, obs: RightSizeObservation, config: RightSizeConfig) -> None:
        self._state, self._obs, self._config = state, obs, config
        self._begun, self._since_s = _since(state, obs)
        self._rules = _Rules(state, obs, config)
        self._rps, seen_rps = _load(obs, config)
        self._expected = obs.expected_rps > seen_rps  # more than what was seen asks for
        self._need_rps = max(seen_rps, obs.expected_rps)
        self._limits = kept_by_some(obs.offers, obs.limits)
        self._unknown = _unknown(obs.now_s, self._since_s, config)
        self._offers = obs.offers
        if obs.least is not None or self._unknown:
            self._offers = _by_counts(obs.offers, obs.least or {}, self._unknown)

    def made(self) -> tuple[RightSizeState | None, Effects]:
        if self._state is None:
            return self._taken(self._best(self._rules.of(True)), (), Reason.OPTIMAL)
        present = self._present()
        if present is None or present.short:
            return self._grown()
        less = self._best(self._rules.of(False, most=True))
        other = self._best(self._rules.of(False))
        weighed = (other, less, present)
        better = (mix for mix in (other, less) if mix is not None and self._saves(mix, present))
        found = next((mix for mix in better if self._serves_meanwhile(mix)), None)
        if found is None:
            text = f"nothing else saves enough{' under the expected load' if self._expected else ''}"
            return self._kept(None, weighed, Reason.NO_CHANGE, text, present)
        now_s = self._obs.now_s
        since_s = now_s if self._state.better_since_s is None else self._state.better_since_s
        if now_s - since_s < self._config.hold_s - _EPS:
            return self._kept(since_s, weighed, Reason.GRACE, "less would do, and may not for long", present)
        return self._changed(found, weighed, Reason.SLACK, f"less would have done for {self._config.hold_s:g} s")

    def _grown(self) -> tuple[RightSizeState | None, Effects]:
        """Asks for more at once, since the fleet is too small, beside what there is unless something else is far
        better."""
        chosen = self._best(self._rules.of(True))
        more = self._best(self._rules.of(True, least=True))
        weighed = (chosen, more)
        if more is not None and chosen is not None and not more.short:
            better = chosen.cost <= (1.0 - self._config.mode_saving) * more.cost and self._serves_meanwhile(chosen)
            chosen = chosen if better else more
        return self._taken(chosen, weighed, Reason.CONGESTED)

    def _taken(
        self, chosen: Mix | None, weighed: Sequence[Mix | None], reason: Reason
    ) -> tuple[RightSizeState | None, Effects]:
        ahead = f"{self._need_rps:.3g} requests/s{' of the expected load' if self._expected else ''} are ahead"
        if self._unknown:
            ahead += " and little is known"
        if chosen is None:
            return self._kept(None, weighed, Reason.AT_LIMIT, f"{ahead}, and nothing may run")
        if chosen.short:
            return self._changed(chosen, weighed, Reason.AT_LIMIT, f"{ahead}, more than all that may run carries")
        return self._changed(chosen, weighed, reason, ahead)

    def _best(self, rules: Mapping[str, SiteRule]) -> Mix | None:
        """None: nothing may run."""
        found = best_mix(self._offers, self._rps, self._need_rps, self._limits, rules)
        return found if found is not None and found.parts else None

    def _present(self) -> Mix | None:
        """Returns the fleet as it was asked for, under the load of now; None when the rules of a site forbid it."""
        assert self._state is not None
        offered = {offer.kind for offer in self._obs.offers}
        if not offered.issuperset(self._state.workers):
            return None
        found = self._best(self._rules.of(True, least=True, most=True))
        return found if found is not None and found.workers == self._state.workers else None

    def _saves(self, mix: Mix, present: Mix) -> bool:
        new = set(mix.workers) - set(present.workers)
        share = self._config.mode_saving if new else self._config.min_saving
        return mix.workers != present.workers and not mix.short and mix.cost <= (1.0 - share) * present.cost

    def _serves_meanwhile(self, mix: Mix) -> bool:
        """Says whether the load of now is carried while the fleet changes: new instances start beside the old ones, or
        what stays is enough where they need the GPUs of those."""
        assert self._state is not None
        before, after = self._state.workers, mix.workers
        there: dict[tuple[str, str], int] = {}
        both: Counter[tuple[str, str]] = Counter()
        stays_rps = 0.0
        for own in self._offers:
            place, counts = (own.site, own.mode.gpu), (before.get(own.kind, 0), after.get(own.kind, 0))
            there[place] = max(there.get(place, 0), own.room * own.mode.tp)
            both[place] += max(counts) * own.mode.tp
            stays_rps += min(counts) * most_load_rps(own, self._limits)
        return all(both[place] <= gpus for place, gpus in there.items()) or stays_rps >= self._rps

    def _kept(
        self,
        since_s: float | None,
        weighed: Sequence[Mix | None],
        reason: Reason,
        text: str,
        present: Mix | None = None,
    ) -> tuple[RightSizeState | None, Effects]:
        state = self._state
        if state is not None:
            mix = state.mix if present is None else present
            state = replace(state, mix=mix, better_since_s=since_s, since_s=self._since_s, begun=self._begun)
            state = replace(state, least=self._obs.least)
        return state, _effects(self._obs, self._config, (), reason, text, weighed, present)

    def _changed(
        self, chosen: Mix, weighed: Sequence[Mix | None], reason: Reason, text: str
    ) -> tuple[RightSizeState | None, Effects]:
        before = {} if self._state is None else self._state.workers
        moved = _moved(before, chosen.workers)
        changed: tuple[tuple[float, str, int], ...] = ()
        if self._state is not None:
            changed = tuple(one for one in self._state.changed if one[0] > self._obs.now_s - _HOUR_S)
            changed += tuple((self._obs.now_s, site, count) for site, count in sorted(moved.items()))
        commands = tuple(
            ScaleTo(replace(self._obs.pool, site=site or self._obs.pool.site), _at_site(chosen.workers, site))
            for site in sorted(moved)
        )
        state = RightSizeState(chosen, None, changed, self._since_s, self._begun, self._obs.least)
        for_promise_w = self._for_promise_w(chosen)
        if for_promise_w is not None:
            text += f", {for_promise_w:.0f} of {_watts(chosen):.0f} W for the promise"
        weighed = (chosen, *weighed)
        return state, _effects(self._obs, self._config, commands, reason, text, weighed, chosen, for_promise_w)

    def _for_promise_w(self, chosen: Mix) -> float | None:
        """Returns the power that the load of now does not need: that over the mix which carries just this load in the
        mean; None: nothing carries it."""
        plain = best_mix(self._obs.offers, self._rps, self._rps, self._limits, self._rules.of(True))
        return None if plain is None or plain.short else max(0.0, _watts(chosen) - _watts(plain))


def still_expected_rps(state: RightSizeState | None, now_s: float, expected_rps: float) -> float:
    """Returns what counts of the load that an operator expects, in requests/s: less as more was seen, for an hour."""
    since_s = now_s if state is None or state.since_s is None else state.since_s
    return expected_rps * max(0.0, 1.0 - (now_s - since_s) / _HOUR_S)


def ahead_rps(rates_rps: Sequence[float]) -> tuple[float, float]:
    """Returns the load of the newer half of the look-back, in requests/s, and the load as far ahead if it goes on to
    rise."""
    rates = np.array(rates_rps)
    half = max(1, rates.size // 2)
    now = float(rates[-half:].mean())
    before = float(rates[:-half].mean()) if rates.size > half else now
    return now, max(now, 2.0 * now - before)


def _load(obs: RightSizeObservation, config: RightSizeConfig) -> tuple[float, float]:
    """Returns the load of now, in requests/s, and what to have capacity for by what was seen."""
    now, ahead = ahead_rps(obs.rates_rps)
    need = max(config.headroom * ahead, config.burst * max(obs.rates_rps), now + obs.waiting / config.catch_up_s)
    return now, obs.headroom * need


def _since(state: RightSizeState | None, obs: RightSizeObservation) -> tuple[bool, float]:
    """Says whether requests have come, and since when something is known of the load: the first of them, or else the
    first look, since silence tells something too."""
    if state is not None and state.since_s is not None and (state.begun or obs.first_s is None):
        return state.begun, state.since_s
    return obs.first_s is not None, obs.now_s if obs.first_s is None else obs.first_s


def _unknown(now_s: float, since_s: float, config: RightSizeConfig) -> float:
    """Returns how little is known of a load: from 1 at first down to 0 after `learn_s`."""
    return max(0.0, 1.0 - (now_s - since_s) / config.learn_s) if config.learn_s else 0.0


def _by_counts(offers: Sequence[Offer], least: Mapping[SiteMode, int | None], unknown: float) -> tuple[Offer, ...]:
    """Returns the offers, each keeping its part of the load in time where as many of its kind keep all of it; nothing
    of it where no number of them does.

    While little is known there are spare ones: one where few do, and as the root of the count where many do, since what
    comes in addition from many independent users grows no faster. Where all kinds together have no room for them, there
    are as many as each kind has room for.
    """
    counts = {own.kind: None if (count := least.get(own.kind, 1)) is None else max(1, count) for own in offers}
    wanted = {kind: n + math.ceil(unknown * math.sqrt(n)) for kind, n in counts.items() if n is not None}
    room: dict[tuple[str, str], float] = {}  # by site and type of GPU, of which degrees take the same
    of_mode: Counter[Mode] = Counter()
    for own in offers:
        of_mode[own.mode] += own.room
        if own.kind in wanted:
            place = own.site, own.mode.gpu
            room[place] = max(room.get(place, 0.0), own.room / wanted[own.kind])
    if unknown and sum(room.values()) < 1.0 - _EPS:
        wanted = {kind: max(counts[kind] or 1, min(of_mode[kind[1]], n)) for kind, n in wanted.items()}
    return tuple(replace(own, keeps=1.0 / wanted[own.kind] if own.kind in wanted else 0.0) for own in offers)


def _at_site(workers: Mapping[SiteMode, int], site: str) -> dict[Mode, int]:
    return {mode: count for (where, mode), count in workers.items() if where == site and count}


def _moved(before: Mapping[SiteMode, int], after: Mapping[SiteMode, int]) -> Counter[str]:
    """Starts and stops by site."""
    found: Counter[str] = Counter()
    for kind in {*before, *after}:
        if changes := abs(after.get(kind, 0) - before.get(kind, 0)):
            found[kind[0]] += changes
    return found


def _effects(
    obs: RightSizeObservation,
    config: RightSizeConfig,
    commands: tuple[ScaleTo, ...],
    reason: Reason,
    text: str,
    weighed: Sequence[Mix | None],
    chosen: Mix | None = None,
    for_promise_w: float | None = None,
) -> Effects:
    inputs = {
        "rates_rps": obs.rates_rps,
        "waiting": obs.waiting,
        "ttft_limit_s": obs.limits.ttft_s,
        "tpot_limit_s": obs.limits.tpot_s,
        "without_e2e_s": obs.without_e2e_s,
        "caps_w": dict(obs.caps_w),
        "headroom": obs.headroom,
        "expected_rps": obs.expected_rps,
        "for_promise_w": for_promise_w,
        "profiles": {offer.mode.name: basis_json(offer.profile) for offer in obs.offers},
    }
    without = _without(obs)
    mixes = [mix for mix in weighed if mix is not None]
    sources = {offer.kind: offer.profile.source for offer in obs.offers}

    def because(parts_of: Callable[[Mix], tuple[Part, ...]], to: str) -> Rationale:
        """Returns the reason for a whole mix, or for the parts of it that stand at a site."""
        rows: dict[str, Alternative] = {}
        for mix in mixes:
            parts = parts_of(mix)
            label = _label(parts)
            taken = chosen is not None and mix.workers == chosen.workers
            taken |= label in rows and rows[label].chosen
            source = least_trusted(sources[part.kind] for part in parts if part.kind in sources)
            rows[label] = Alternative(
                label, chosen=taken, power_w=math.fsum(part.watts for part in parts), source=source
            )
        return Rationale(reason, f"{obs.pool.request_class}: {text}.{to}{without}", inputs, tuple(rows.values()))

    decisions = tuple(
        PoolDecision(own.pool, own.workers, True, because(partial(_parts_at, own.pool.site), _asked(own)))
        for own in commands
    )
    whole = because(lambda mix: mix.parts, "".join(map(_asked, commands)))
    return Effects(commands, obs.now_s + config.period_s, whole, decisions)


def _without(obs: RightSizeObservation) -> str:
    """Returns a sentence that says which limits no offer keeps; empty: there is none, or no offer."""
    if not obs.offers:
        return ""
    kept = kept_by_some(obs.offers, obs.limits)
    given = (
        ("e2e", obs.without_e2e_s, None),
        ("ttft", obs.limits.ttft_s, kept.ttft_s),
        ("tpot", obs.limits.tpot_s, kept.tpot_s),
    )
    missed = {name: limit_s for name, limit_s, kept_s in given if limit_s is not None and limit_s != kept_s}
    return f" {left_out(obs.pool.request_class, limits_text(missed))}" if missed else ""


def _parts_at(site: str, mix: Mix) -> tuple[Part, ...]:
    return tuple(part for part in mix.parts if part.site in ("", site))


def _asked(command: ScaleTo) -> str:
    workers = ", ".join(f"{count} x {mode.name}" for mode, count in command.workers.items()) or "none"
    return f" {workers} at {command.pool.site}."


def _watts(mix: Mix) -> float:
    return math.fsum(part.watts for part in mix.parts)


def _label(parts: Sequence[Part]) -> str:
    texts = (
        f"{part.count} x {part.mode.name} at {part.mhz:.0f} MHz{f', {part.site}' if part.site else ''}"
        for part in parts
    )
    return "; ".join(texts) or "none"
