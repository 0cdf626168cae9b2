"""Chooses requests to split over two instances where the policy says so; `split_plans` decides where to cut.

Instances of a class are two groups: those that generate least do first parts, the others second parts. Routes by turns
and by load keep to groups in the order of names, and take one of each; else the decision itself says which.
"""

from __future__ import annotations

import importlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import ModuleType

from core.algorithms.split.request_mix import RequestMix
from core.controllers.request import routing
from core.controllers.request.routing import Candidate, Estimate, Route, RouteRequest
from core.controllers.request.turns import RoundRobin
from core.engine.engine_model import UnknownConfiguration
from core.observations.request.request_configs import groups
from core.types import Limits
from pools import kv_connectors

from ..fleet.instance import Instance
from ..fleet.view import FleetView
from ..requests.call import Call
from .dispatch import Dispatcher
from .instance_choice import LEAST_LOADED, ROUND_ROBIN
from .slot import Part, Slot

log = logging.getLogger(__name__)

NONE = "none"
_CHUNK_TOKENS = 512  # of a cache that is sent while more of it is computed


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Tokens 1 to `cut_tokens` of prompt and output at `first`, the rest at `second`; the places are taken.

    `second` None: `first` does all of it. `chunk_tokens`: of the cache that are sent while more of it is computed;
    None: all is sent at once.
    """

    first: Slot
    second: Slot | None
    cut_tokens: int
    total_tokens: int
    chunk_tokens: int | None


class Splitter:
    """Until the compiled code is loaded, beside the event loop, requests are served whole, and the log says so."""

    def __init__(self, fleet: FleetView, dispatcher: Dispatcher, loader: Executor | None = None) -> None:
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._loader = loader
        self._plans: ModuleType | None = None
        self._loading = False
        self._turns: dict[str, RoundRobin] = defaultdict(RoundRobin)  # by service, class and group
        self._mixes: dict[str, RequestMix] = defaultdict(RequestMix)  # by service and class
        self.counts: dict[tuple[str, str], int] = defaultdict(int)  # (service, split | whole)
        self.hindrances: dict[str, str] = {}  # by service: why its requests are served whole; empty: they need not be

    def plan(self, call: Call) -> SplitPlan | None:
        """Returns the places for a call; None: it is served whole, where its route says."""
        service = self._fleet.services.get(call.service.name, call.service)
        if service.policy.split == NONE:
            return None
        tuning = service.policy.tuning
        found, request = None, self._dispatcher.request_of(service, call)
        usable = service.choosable(service.unable(*call.needs), time.monotonic())
        open_ones = [i for i in usable if i.unstarted < service.engine_queue]
        own = of_one_connector([i for i in open_ones if i.rank == request.class_rank] or open_ones)
        of_class = [i for i in usable if i.rank == request.class_rank] or usable
        self.hindrances[service.name] = kv_connectors.hindrance(i.state.kv_connector for i in of_class)
        if len(own) >= 2 and self._load(own, call):
            assert self._plans is not None
            key, route = f"{service.name}/{request.class_rank}", service.policy.route
            answer = min(call.predicted_tokens or 1, call.max_tokens or math.inf)
            mix = self._mixes[key] = self._mixes[key].after(call.prompt_tokens or 1, int(answer))
            try:
                own, share = sorted(own, key=lambda i: i.uid), tuning.split_first_share
                if tuning.split_by_rates:
                    own, share = self._plans.by_rates(own, call.limits(service), mix, service.policy)
                first, second = self._groups(own, route, share, key, request)
                found = self._plans.best_cut(first, second, call, service.policy.split, tuning, mix)
            except (UnknownConfiguration, ValueError) as error:
                log.warning("request %s is not split: %s", call.request_id, error)
        whole = found is None or found.second is None
        self.counts[service.name, "whole" if whole else "split"] += 1
        if found is None or (whole and service.policy.route != Route.PREDICTED):
            return None
        chunk_tokens = _CHUNK_TOKENS if tuning.split_chunked else None
        if found.second is None:
            choice = routing.chosen(_estimate(found.first, request), "whole: best for it, and for what is there")
            here = self._dispatcher.take(call, (found.first, choice))
            return SplitPlan(here, None, found.tokens, found.total, chunk_tokens)
        here, there = self._taken(call, (found.first, found.second), request, found.tokens, found.total)
        return SplitPlan(here, there, found.tokens, found.total, chunk_tokens)

    def _taken(
        self, call: Call, instances: tuple[Instance, Instance], request: RouteRequest, cut_tokens: int, total: int
    ) -> tuple[Slot, Slot]:
        """Takes both parts' places. First byte and gaps are predicted for each, energy and end for the request."""
        parts = Part(cut_tokens, total, second=False), Part(cut_tokens, total, second=True)
        lengths = [part.tokens(request.prompt_tokens, request.predicted_output_tokens) for part in parts]
        estimates = [
            _estimate(instance, RouteRequest(prompt, output, request.class_rank, request.limits))
            for instance, (prompt, output) in zip(instances, lengths, strict=True)
        ]
        energy_j, e2e_s = sum(own.energy_j for own in estimates), sum(own.e2e_s for own in estimates)
        meets_slo, reason = all(own.meets_slo for own in estimates), f"split at token {cut_tokens} of {total}"
        first, second = (
            self._dispatcher.take(
                call,
                (instance, routing.chosen(own._replace(energy_j=energy_j, e2e_s=e2e_s, meets_slo=meets_slo), reason)),
                part,
            )
            for instance, own, part in zip(instances, estimates, parts, strict=True)
        )
        return first, second

    def _groups(
        self, own: Sequence[Instance], route: str, share: float, key: str, request: RouteRequest
    ) -> tuple[Sequence[Instance], Sequence[Instance]]:
        if route not in (ROUND_ROBIN, LEAST_LOADED, Route.LEAST_ENERGY):
            return groups(own, _decoding, share)
        prompts, answers = groups(own, lambda _: 0, share)
        if route == Route.LEAST_ENERGY:
            return self._routed(prompts, ROUND_ROBIN, f"{key}/0"), [_least_energy(answers, request)]
        return self._routed(prompts, route, f"{key}/0"), self._routed(answers, route, f"{key}/1")

    def _routed(self, group: Sequence[Instance], route: str, turns: str) -> list[Instance]:
        """Returns the one of a group whose turn it is, or which has the least load."""
        if route == ROUND_ROBIN:
            uid = self._turns[turns].next([instance.uid for instance in group])
            return [instance for instance in group if instance.uid == uid]
        return [min(group, key=lambda i: (_load_with_due(i), i.uid))]

    def _load(self, instances: Sequence[Instance], call: Call) -> bool:
        if self._plans is None and not self._loading:
            self._loading = True
            self._loader = self._loader or ThreadPoolExecutor(1, "splits")
            self._loader.submit(self._import, instances[0], call)
        return self._plans is not None

    def _import(self, instance: Instance, call: Call) -> None:
        log.info("requests are not split yet: the predictor is being loaded")
        try:
            plans = importlib.import_module("pools.gateway.placing.split_plans")
            plans.warm_up(instance, call)
        except Exception:
            log.exception("requests are not split: the predictor cannot be loaded")
        else:
            self._plans = plans
            log.info("requests are split from now on")

    def close(self) -> None:
        if self._loader is not None:
            self._loader.shutdown(wait=False, cancel_futures=True)


def _estimate(instance: Instance, request: RouteRequest) -> Estimate:
    return routing.estimate([instance.candidate()], request)[0]


def _load_with_due(instance: Instance) -> float:
    candidate = instance.candidate()
    return routing.weighed_load(candidate) + len(instance.due) / candidate.weight


def _with_due(instance: Instance) -> Candidate:
    """Returns it as if the second parts that will come there had been sent."""
    candidate = instance.candidate()
    return replace(candidate, waiting=candidate.waiting + len(instance.due)) if instance.due else candidate


def _least_energy(instances: Sequence[Instance], request: RouteRequest) -> Instance:
    """Returns the one where an answer more takes least energy, of those that keep its pace at the clock that they have:
    its prompt is done with elsewhere (VoltanaLLM's EcoRoute)."""
    answer = RouteRequest(1, request.predicted_output_tokens, request.class_rank, Limits(tpot_s=request.limits.tpot_s))
    candidates = [_with_due(instance) for instance in instances]
    choice = routing.choose_of(candidates, lambda: candidates, answer)
    return next(i for i in instances if choice is None or i.uid == choice.uid)


def _decoding(instance: Instance) -> int:
    return instance.parts - instance.prompts_only


def of_one_connector(instances: Sequence[Instance]) -> list[Instance]:
    """Returns those that can hand caches to each other: of the connector that most of them have."""
    most = kv_connectors.shared(i.state.kv_connector for i in instances)
    return [i for i in instances if most and i.state.kv_connector == most]
