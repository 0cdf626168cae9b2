"""Chooses a request's instance by the core's pure choice, from memory, within the service's policy."""

from __future__ import annotations

import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from core.controllers.request import routing
from core.controllers.request.routing import Candidate, Choice, Route, RouteRequest
from core.controllers.request.turns import RoundRobin, WeightedTurns
from core.engine.step_tables import round_up
from core.observations.limits import planned
from pools import wire

from ..accounts.gateway_metrics import Histogram
from ..fleet.instance import Instance
from ..fleet.view import Service

ROUND_ROBIN, WEIGHTED_ROUND_ROBIN = "round_robin", "weighted_round_robin"
LEAST_LOADED, LEAST_BACKLOG = "least_loaded", "least_backlog"
# Which look at no limits, as pools of the simulator.
BY_COUNT = ROUND_ROBIN, WEIGHTED_ROUND_ROBIN, LEAST_LOADED, LEAST_BACKLOG

_ROUTES = {str(route): route for route in Route}

Routed = tuple[Instance, Choice]


class Router:
    """Chooses the instance of a request. `rng` breaks ties, so that several gateways do not all choose alike."""

    def __init__(self, duration_s: Histogram, rng: random.Random) -> None:
        self._duration_s = duration_s
        self._draw = rng.random
        self._rounds: dict[str, RoundRobin] = {}  # by service, class and pool
        self._turns: dict[str, WeightedTurns] = {}  # the same, and of sites
        self.warm = WarmPrefixes()

    def route(
        self,
        service: Service,
        choosable: Sequence[Instance],
        request: RouteRequest,
        prompt: bytes | memoryview = b"",
        everybody: Callable[[], Sequence[Instance]] | None = None,
        cache_salt: str = "",
    ) -> Routed | None:
        """Returns the instance to send to; None: there is none.

        Args:
            prompt: As it stands in the body, from its beginning: see WarmPrefixes. Empty: too short to matter.
            cache_salt: What engines keep its prefixes apart by.
            everybody: Given when `choosable` are only those of the request's class: tells all, should they be needed.
        """
        begun_s = time.perf_counter()
        policy, rank = service.policy, request.class_rank
        warm_uid, beginnings = self.warm.find(f"{service.name}/{cache_salt}", prompt) if prompt else (None, [])

        def able() -> list[Candidate]:
            """Returns those that hold the request; where none does, all, as it may prove to be shorter."""
            found = [i.candidate() for i in (choosable if everybody is None else everybody())]
            return routing.that_hold(found, request) or found

        own: Sequence[Candidate] = [i.candidate() for i in choosable if i.rank == rank]
        own = routing.that_hold(own, request)
        if policy.route in BY_COUNT:
            choice = self._by_count(service, own or able(), request, warm_uid)
        else:
            if policy.by_share:
                own = self._at_the_site_in_turn(service, own, request)
            choice = routing.choose_of(
                own,
                able,
                _as_planned(request, policy),
                self._draw,
                _ROUTES[policy.route],
                warm_uid,
            )
        self._duration_s.observe(time.perf_counter() - begun_s)
        if choice is None:
            return None
        if beginnings:
            self.warm.note(beginnings, choice.uid)
        return service.uids[choice.uid], choice

    def alone(self, service: Service, request: RouteRequest) -> tuple[float, float] | None:
        """Returns TTFT and E2E (s) of the request alone on an instance of its class (FREESH's Lat); None: unknown."""
        own = [i.candidate() for i in service.ready]
        own = [c for c in own if c.class_rank == request.class_rank] or own
        for candidate in own:
            if candidate.table is not None:
                prompt = round_up(request.prompt_tokens)
                ttft_s = candidate.table.prefill(prompt, 0)[0]
                return ttft_s, ttft_s + request.predicted_output_tokens * candidate.table.decode(1)[0]
        return None

    def _by_count(
        self, service: Service, candidates: Sequence[Candidate], request: RouteRequest, warm_uid: str | None
    ) -> Choice | None:
        """Takes turns, by weight or one each, or the least loaded, or the one of least backlog, over the instances of
        the request's class, or of the next larger one that has any; by share, over those of the site whose turn it is.
        """
        ranks = {c.class_rank for c in candidates}
        if not ranks:
            return None
        rank = min(ranks, key=lambda r: routing.class_order(r, request.class_rank))
        own: Sequence[Candidate] = [c for c in candidates if c.class_rank == rank]
        turns, route = f"{service.name}/{rank}", service.policy.route
        if service.policy.by_share:
            own = self._at_the_site_in_turn(service, own, request)
            turns += f"/{own[0].pool_id}"
        if route == LEAST_LOADED:
            uid, reason = routing.least_loaded(own, self._draw, warm_uid).uid, "least loaded"
        elif route == LEAST_BACKLOG:
            ttft_s = _paced_ttft_s(request, service.policy)
            uid = routing.least_backlog(own, request.prompt_tokens, self._draw, warm_uid, ttft_s).uid
            reason = "least backlog"
        elif route == ROUND_ROBIN:
            uid, reason = self._rounds.setdefault(turns, RoundRobin()).next([c.uid for c in own]), "its turn"
        else:
            weights = {c.uid: c.weight for c in own}
            uid, reason = self._turns.setdefault(turns, WeightedTurns()).next(weights, service.uids), "its turn"
        found = routing.estimate([c for c in own if c.uid == uid], request)
        if not found:
            reason = f"{reason}; the engine model does not know it"
            return Choice(uid, None, None, None, None, None, False, reason)
        # Under a clock by deadlines the present one says nothing of the limits: it is about to be another.
        keeps = found[0].meets_slo or service.policy.by_deadlines
        return routing.chosen(found[0], reason if keeps else f"{reason}; it cannot keep the limits")

    def _at_the_site_in_turn(
        self, service: Service, own: Sequence[Candidate], request: RouteRequest
    ) -> Sequence[Candidate]:
        """Returns of one class the candidates of one pool: sites take turns by the carbon plan's shares.

        Only sites take part where an instance keeps the limits, network included; without any, or without a plan's
        shares, all stay.
        """
        planned = [c for c in own if service.shares.get(c.pool_id)]
        able = {v.candidate.pool_id for v in routing.estimate(planned, request) if v.meets_slo}
        if not able:
            return own
        weights = {str(pool): service.shares[pool] or 0.0 for pool in able}
        pool = int(self._turns.setdefault(f"{service.name}//{planned[0].class_rank}", WeightedTurns()).next(weights))
        return [c for c in own if c.pool_id == pool]


def _paced_ttft_s(request: RouteRequest, policy: wire.RequestPolicy) -> float:
    """Returns the TTFT that clocks keep, in s; infinite: the request has no limit."""
    return math.inf if request.limits.ttft_s is None else policy.clock_ttft_share * request.limits.ttft_s


def _as_planned(request: RouteRequest, policy: wire.RequestPolicy) -> RouteRequest:
    """Returns it with the limits that plans keep: what is predicted are means, and a request may have to wait beside
    them."""
    shares = policy.plan_ttft_share, policy.plan_tpot_share
    if shares == (1.0, 1.0):
        return request
    limits = planned(request.limits, *shares)
    return RouteRequest(request.prompt_tokens, request.predicted_output_tokens, request.class_rank, limits)


class WarmPrefixes:
    """Where the beginnings of prompts were last sent: an engine may still have them in its prefix cache.

    A beginning is a number of whole blocks; it is known by the hash of its last block, chained to those before. One is
    noted when the next shorter one was known: prompts that share nothing take one entry each, and one hash, and those
    that come again are known to a greater length each time.
    """

    BLOCK_BYTES = 1024
    MAX_BYTES = 8 * BLOCK_BYTES
    KEPT = 50_000

    def __init__(self) -> None:
        self._where: OrderedDict[int, str] = OrderedDict()

    def find(self, scope: str, prompt: bytes | memoryview) -> tuple[str | None, list[int]]:
        """Returns the instance that has seen the longest known beginning, and which beginnings to `note`."""
        block, where = self.BLOCK_BYTES, self._where
        uid, chain, beginnings = None, hash(scope), []
        for end in range(block, min(len(prompt), self.MAX_BYTES) + 1, block):
            chain = hash((chain, prompt[end - block : end]))
            beginnings.append(chain)
            known = where.get(chain)
            if known is None:
                break
            uid = known
        return uid, beginnings

    def note(self, beginnings: Sequence[int], uid: str) -> None:
        """They are sent to this instance now."""
        where = self._where
        for beginning in beginnings:
            where[beginning] = uid
            where.move_to_end(beginning)
        while len(where) > self.KEPT:
            where.popitem(last=False)
