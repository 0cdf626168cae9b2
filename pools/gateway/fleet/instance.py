"""One engine as the gateway sees it: what its agent reported, what was sent since, and how it has behaved."""

from __future__ import annotations

import math
from typing import NamedTuple
from urllib.parse import urlsplit

from core.controllers.request.routing import Candidate
from core.ports import EngineLimits
from core.types import Mode
from pools import wire

from ..http.upstream import Address

STREAM_TICKET = 0  # rounds count from 1
NO_NODE = ""  # of workers that registered themselves

ADAPTERS_REPORTED_S = 15.0  # agents ask engines for their adapters each 10 s


class Health:
    """Outlier ejection: an engine that fails is passed over for a while, longer each time; then one request probes.

    A connection that cannot be made ejects at once, and so does an engine that hangs; a few other failures in a row do.
    One success clears it.
    """

    __slots__ = ("_failures", "_out_until_s", "_probing", "ejections", "successes", "unreachable")

    FAILURES = 3  # in a row
    FIRST_S = 2.0
    LONGEST_S = 60.0

    def __init__(self) -> None:
        self._failures = 0
        self._out_until_s = 0.0
        self._probing = False
        self.ejections = 0  # since the last success
        self.successes = 0
        self.unreachable = False  # no connection could be made: it serves nobody, whatever else is thought of it

    def usable(self, now_s: float) -> bool:
        """Whether to send requests there: it is in, or its time out is over and no probe is under way."""
        return not self.ejections or (now_s >= self._out_until_s and not self._probing)

    def chosen(self) -> None:
        """A request is sent. Of an ejected instance it is the probe."""
        if self.ejections:
            self._probing = True

    def failed(self, now_s: float, refused: bool = False, hangs: bool = False) -> None:
        self._failures += 1
        self._probing = False
        self.unreachable = refused
        if refused or hangs or self.ejections or self._failures >= self.FAILURES:
            self._out_until_s = now_s + min(self.LONGEST_S, self.FIRST_S * 2.0**self.ejections)
            self.ejections += 1

    def worked(self) -> None:
        self.successes += 1
        self._failures = self.ejections = 0
        self._probing = self.unreachable = False

    def answers_again(self, now_s: float) -> None:
        """Its `/health` answers, and did not before. What could not be reached is in again; else a request probes."""
        if self.unreachable:
            self.worked()
        elif self.ejections:
            self._out_until_s = min(self._out_until_s, now_s)

    def unknown(self) -> None:
        """Lets another request probe: this one ended without showing anything of the engine, since its client left."""
        self._probing = False


class RoundTrip:
    """The least that a new connection has taken recently. A way that has become longer shows after two windows."""

    __slots__ = ("_before_s", "_began_s", "_least_s")

    WINDOW_S = 60.0

    def __init__(self) -> None:
        self._least_s = self._before_s = math.inf
        self._began_s = -math.inf

    def observe(self, took_s: float, now_s: float) -> float:
        """The round trip in whole milliseconds: what is below one is the hosts' doing, and no reason to prefer any."""
        if now_s - self._began_s > self.WINDOW_S:
            self._before_s, self._least_s, self._began_s = self._least_s, math.inf, now_s
        self._least_s = min(self._least_s, took_s)
        return int(min(self._least_s, self._before_s) * 1000.0) / 1000.0


class MeasuredSteps(NamedTuple):
    """An agent's report as what it says of its engine's steps since the one before.

    `step_s`: the mean gap between tokens; `running` and `kv_usage` at its end. `prompts`, `prompt_tokens`: of them sent
    a second, as far as can be seen from here. `at_s`: when, by the agent's clock.
    """

    step_s: float
    running: int
    kv_usage: float
    prompts: float
    prompt_tokens: float
    at_s: float


def _authorization(state: wire.InstanceState) -> bytes:
    """Returns the value of the header that its engine asks for; empty: it asks for none. Raises ValueError."""
    key = state.engine_key
    if not key:
        return b""
    if not (key.isascii() and key.isprintable()) or " " in key:  # it would end the header, or be no token
        raise ValueError(f"instance {state.uid} has no usable key")
    return b"Bearer " + key.encode()


class Instance:
    """Counts of requests are this gateway's own; a report of the agent corrects them.

    `heard_at_s` is when the agent's last report was received, by this host's monotonic clock. `silent`: that is too
    long ago for its figures to be believed. `lost`: besides, nothing listens there. `suspect`: it gives no sign of
    life and should; `answered_s` is when its `/health` last answered this gateway.
    """

    __slots__ = (
        "_adapter_orders",
        "_candidate",
        "_gateways",
        "_proven",
        "_queued",
        "_queued_tokens",
        "_reported_at_s",
        "_round",
        "_round_trip",
        "_sent",
        "_sent_tokens",
        "_stale",
        "_state",
        "_unstarted_tokens",
        "adapters",
        "adapters_used_s",
        "address",
        "answered_s",
        "authorization",
        "due",
        "health",
        "heard_at_s",
        "in_flight",
        "lost",
        "netloc",
        "node",
        "pool",
        "prompts_only",
        "rank",
        "rtt_s",
        "scale",
        "scaled_at_s",
        "silent",
        "slots",
        "steps",
        "suspect",
        "uid",
        "unstarted",
    )

    def __init__(
        self,
        state: wire.InstanceState,
        pool: wire.FleetPool,
        rank: int,
        reported_at_s: float,
        gateways: int = 1,
        node: str = NO_NODE,
        heard_at_s: float = math.inf,
    ) -> None:
        self.uid = state.uid
        self.in_flight = 0
        self.prompts_only = 0  # of them: parts of prompts, after which another instance generates
        self.health = Health()
        self._proven = 0  # successes at the last look
        self.silent = self.lost = self.suspect = False
        self.answered_s = -math.inf
        self.rtt_s = 0.0  # until a connection has been made
        self._round_trip = RoundTrip()
        self._adapter_orders: dict[str, tuple[bool, float]] = {}  # see `ordered_adapter`
        self.adapters_used_s: dict[str, float] = {}  # when each was last asked for here (monotonic)
        self.slots: dict[object, None] = {}  # what this gateway has in flight there: see `slots_at`
        self.steps: MeasuredSteps | None = None  # of the last report, until something was learned of it
        self.scale, self.scaled_at_s = 1.0, -math.inf  # measured over predicted time of its steps; when last corrected
        self.due: dict[object, None] = {}  # second parts that are to come, which are not in flight yet: see `due_at`
        self.node = node
        self.unstarted = 0  # in flight with their prompt still to be computed, as far as can be seen from here
        self._unstarted_tokens = 0  # of those that stream: prompts' tokens
        self._queued = self._queued_tokens = 0  # others, since the last report without a queue
        self._sent = self._sent_tokens = 0  # since the last report: what other gateways are taken to have sent as well
        self._reported_at_s: float | None = None  # by the agent's clock: it only tells reports apart
        self._round = 1
        self.update(state, pool, rank, reported_at_s, gateways, heard_at_s)

    def update(
        self,
        state: wire.InstanceState,
        pool: wire.FleetPool,
        rank: int,
        reported_at_s: float,
        gateways: int = 1,
        heard_at_s: float = math.inf,
    ) -> None:
        """Takes over a report, or the same one again. Raises ValueError when its address or its key cannot be used."""
        parts = urlsplit(state.url or "")
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
            raise ValueError(f"instance {state.uid} has no usable address: {state.url!r}")
        self.address = Address(parts.hostname, parts.port, parts.scheme == "https")
        self.netloc = parts.netloc.encode()
        self.authorization = _authorization(state)
        self._state, self.pool, self.rank, self._gateways = state, pool, rank, gateways
        self.heard_at_s = heard_at_s
        self.adapters = self._adapters_now()
        if reported_at_s != self._reported_at_s:  # an earlier one is newer too, where the node's clock was set back
            self.steps = self._measured_steps(reported_at_s)
            self._reported_at_s = reported_at_s
            self._sent = self._sent_tokens = 0
            self.silent = self.lost = False
            if not state.waiting:  # nothing queues there: what is no stream has begun, though it answers at its end
                self._round += 1
                self.unstarted -= self._queued
                self._queued = self._queued_tokens = 0
        self._candidate: Candidate | None = None
        self._stale = True

    def _measured_steps(self, at_s: float) -> MeasuredSteps | None:
        """None: nobody waited for a next token, or nothing is known of the time since the last report."""
        state, before_s = self._state, self._reported_at_s
        if before_s is None or at_s <= before_s or not state.tpot_s or not state.running or state.kv_usage is None:
            return None
        sent_a_s = self._gateways / (at_s - before_s)
        prompts, tokens = sent_a_s * self._sent, sent_a_s * self._sent_tokens
        return MeasuredSteps(state.tpot_s, state.running, state.kv_usage, prompts, tokens, at_s)

    @property
    def pool_id(self) -> int:
        return self._state.pool_id

    @property
    def request_class(self) -> str:
        return self.pool.request_class

    @property
    def state(self) -> wire.InstanceState:
        return self._state

    def offers(self, path: str, adapter: str = "") -> bool:
        """Says whether its engine serves requests at a path, which it may where paths are not known, by an adapter."""
        paths = self._state.paths
        return (paths is None or path in paths) and (not adapter or adapter in self.adapters)

    def ordered_adapter(self, name: str, loaded: bool, now_s: float) -> None:
        """Its engine has or has not an adapter, as it says itself: so until a report that must know of it."""
        self._adapter_orders[name] = loaded, now_s
        self.adapters_used_s.pop(name, None)
        self.adapters = self._adapters_now()

    def _adapters_now(self) -> frozenset[str]:
        """Returns the adapters that its engine has: those reported, but for what was ordered since."""
        recent = {n: o for n, o in self._adapter_orders.items() if self.heard_at_s < o[1] + ADAPTERS_REPORTED_S}
        self._adapter_orders = recent
        loaded = {name for name, (is_loaded, _) in recent.items() if is_loaded}
        return frozenset((set(self._state.adapters) | loaded) - (recent.keys() - loaded))

    @property
    def parts(self) -> int:
        """Counts what this gateway has in flight there, and the second parts that are to come."""
        return self.in_flight + len(self.due)

    @property
    def reported_at_s(self) -> float | None:
        """The time of the agent's last report, by the agent's clock: it only tells reports apart."""
        return self._reported_at_s

    @property
    def queued_prompt_tokens(self) -> int:
        """Their prompts' tokens: what a new request has to wait for."""
        return self._unstarted_tokens + self._queued_tokens

    def goes_silent(self) -> None:
        """Its agent is not heard: from now on its load is what is seen from here."""
        self.silent = True
        self._candidate = None

    def proves_itself(self) -> bool:
        """Says whether it has answered a request since this was last asked."""
        proven, self._proven = self._proven, self.health.successes
        return proven != self._proven

    @property
    def url(self) -> str:
        return f"{'https' if self.address.tls else 'http'}://{self.netloc.decode()}"

    def dispatched(self, prompt_tokens: int, stream: bool) -> int:
        """Counts a request in; returns a ticket for `started`. A stream's first byte tells when its prompt is done."""
        self.in_flight += 1
        self._sent += 1
        self._sent_tokens += prompt_tokens
        self._stale = True
        self.unstarted += 1
        if stream:
            self._unstarted_tokens += prompt_tokens
            return STREAM_TICKET
        self._queued += 1
        self._queued_tokens += prompt_tokens
        return self._round

    def started(self, ticket: int, prompt_tokens: int) -> None:
        """A request that was counted in has its first byte, or ended without one."""
        if ticket == STREAM_TICKET:
            self.unstarted -= 1
            self._unstarted_tokens -= prompt_tokens
        elif ticket == self._round:
            self.unstarted -= 1
            self._queued -= 1
            self._queued_tokens -= prompt_tokens
        self._stale = True

    def connected(self, took_s: float, now_s: float) -> None:
        """A new connection took so long: the network's round trip is part of every TTFT."""
        rtt_s = self._round_trip.observe(took_s, now_s)
        if rtt_s != self.rtt_s:
            self.rtt_s = rtt_s
            self._candidate = None

    def ended(self) -> None:
        """A request that was counted in, and has its first byte or gets none, is over."""
        self.in_flight -= 1
        self._stale = True

    def candidate(self) -> Candidate:
        """The instance as a candidate: made anew with each report, and brought up to date with each count.

        Load is the larger of what the agent reported and what is in flight from here: a report lags by a second,
        and other clients of the engine are not seen from here. Other gateways see the same report and choose alike:
        each is taken to have sent as much since as this one, or all would go to the same instance. Where the agent is
        silent, they are taken to have as much in flight as this one.
        """
        candidate = self._candidate
        if candidate is not None and not self._stale:
            return candidate
        state, gateways = self._state, self._gateways
        reported_running, reported_waiting = (0, 0) if self.silent else (state.running or 0, state.waiting or 0)
        load = max(reported_running + reported_waiting, self.in_flight)
        waiting = min(load, max(reported_waiting, self.unstarted))
        running, tokens = load - waiting, self._unstarted_tokens + self._queued_tokens
        if self.silent:
            running, waiting, tokens = gateways * running, gateways * waiting, gateways * tokens
        elif gateways > 1:
            waiting += (gateways - 1) * self._sent
            tokens += (gateways - 1) * self._sent_tokens
        self._stale = False
        if candidate is not None:
            candidate.carrying(running, waiting, tokens)
            return candidate
        pool = self.pool
        self._candidate = candidate = Candidate(
            uid=state.uid,
            pool_id=state.pool_id,
            site=pool.site,
            request_class=pool.request_class,
            class_rank=self.rank,
            model=state.engine_model_name,
            engine=state.engine,
            gpu=state.gpu_type,
            tp=state.tp,
            mhz=state.sm_clock_mhz or state.max_mhz,
            running=running,
            waiting=waiting,
            queued_prompt_tokens=tokens,
            kv_usage=None if self.silent else state.kv_usage,
            pue=pool.pue,
            intensity_g_per_kwh=pool.intensity_g_per_kwh
            if pool.marginal_g_per_kwh is None
            else pool.marginal_g_per_kwh,
            rtt_s=self.rtt_s,
            weight=pool.weights.get(Mode(state.gpu_type, state.tp).name, 1.0) if pool.weights else 1.0,
            token_budget=(state.engine_limits or EngineLimits()).max_num_batched_tokens,
            top_mhz=state.max_mhz,
        )
        return candidate
