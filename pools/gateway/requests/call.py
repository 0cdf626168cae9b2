"""A request on its way to an engine, and how that ended."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from core.controllers.request.routing import Choice
from core.ports import RequestFeatures
from core.types import Limits
from pools import wire

from ..classify.classified import Classified
from ..fleet.instance import Instance
from ..fleet.view import Service
from ..http.request import Request
from .endpoint import Endpoint
from .engine_order import EngineWork
from .sse import Meter, Usage

NOT_SERVED = frozenset({"rejected", "client_error"})  # statuses of requests for which no engine has worked

# Request ids are this process's own random part and a number: a system call for each would cost more than all the rest.
_BOOT = os.urandom(10).hex()
_NUMBERS = itertools.count(1)


class Charge(Protocol):
    """Counts a request against limits until it has ended."""

    def settle(self, tokens: int, now_s: float) -> None:
        """Counts what it took in place of what it might have. `now_s`: monotonic."""


@dataclass(slots=True)
class Call:
    """A request to a known service by a known key. Fields below `stream` are None until they are known."""

    request: Request
    service: Service
    key: wire.FleetKey
    endpoint: Endpoint
    stream: bool = False
    adapter: str = ""  # that it asks for; empty: the model itself
    request_id: str = field(default_factory=lambda: f"{_BOOT}{next(_NUMBERS):012x}")
    features: RequestFeatures | None = None
    classified: Classified | None = None
    texts: Sequence[str] = ()  # of the prompt, where others are to look at it: `Classifier.refine`
    max_tokens: int | None = None
    pool_rank: int | None = None  # the class whose pools it enters, where classes hand requests on
    own_limits: Limits | None = None  # that its client asked for: the kinds that are not None
    priority: int = 0  # its own hint, lower first
    tier: str | None = None  # OpenAI's service_tier
    prompt_start: bytes | memoryview = b""  # as it stands in the body, see WarmPrefixes; empty: too short
    cache_salt: str = ""  # what parts its prefixes from others'; empty: nothing
    endpoints: Collection[str] | None = None  # `ip:port`s that a proxy allows it; None: all
    engine_priority: int | None = None
    engine_work: EngineWork | None = None
    sent_again: int = 0  # how often it was taken back and sent to the same engine, for another place in its queue
    queue_s: float | None = None  # in a queue of the gateway
    lost: bool = False
    body: bytes = b""  # as the engine gets it
    strip_usage: bool = False
    tells_energy: bool = False  # to its client, in its usage
    continues: bool = False  # elsewhere, should its engine die: its client asked for it
    charge: Charge | None = None  # of limits, until it has ended; None: its tenant and key have none
    limit_headers: bytes = b""  # lines for the response's head

    @property
    def model_name(self) -> str:
        """The name that its client asked for."""
        return self.adapter or self.service.name

    @property
    def needs(self) -> tuple[str, str]:
        """Path and adapter that its engine has to have."""
        return self.endpoint.engine_path, self.adapter

    @property
    def line(self) -> str | None:
        """Names the queue that it waits in: its class's, or its adapter's in it, which fewer engines have."""
        return f"{self.class_name or ''}+{self.adapter}" if self.adapter else self.class_name

    @property
    def prefix_owner(self) -> str:
        """Engines keep the prefixes of its prompts apart by this, as routing does."""
        return f"{self.adapter}/{self.cache_salt}" if self.adapter else self.cache_salt

    @property
    def prompt_tokens(self) -> int | None:
        return None if self.classified is None else self.classified.prompt_tokens

    @property
    def predicted_tokens(self) -> int | None:
        return None if self.classified is None else self.classified.predicted_tokens

    @property
    def long_tokens(self) -> int | None:
        """The length that its answer will hardly exceed."""
        return None if self.classified is None else self.classified.long_tokens

    @property
    def class_name(self) -> str | None:
        return None if self.classified is None else self.classified.class_name

    def limits(self, service: Service) -> Limits:
        """Returns the limits that it is to be served within: its class's, and in their place those asked for."""
        limits, of_class, own = service.limits, service.class_limits, self.own_limits
        if of_class:
            limits = of_class.get(self.class_name, limits)
        if own is None:
            return limits
        return Limits(
            limits.ttft_s if own.ttft_s is None else own.ttft_s,
            limits.tpot_s if own.tpot_s is None else own.tpot_s,
            limits.e2e_s if own.e2e_s is None else own.e2e_s,
        )


@dataclass(slots=True)
class Ending:
    """The end of a call. `status` is one of RequestRow's."""

    status: str = "upstream_error"
    http_status: int = 500
    error: str = ""
    ended_s: float | None = None  # monotonic
    attempts: int = 0
    instance: Instance | None = None
    choice: Choice | None = None
    usage: Usage | None = None
    meter: Meter | None = None
