"""One simulated engine process: its life from cold start to stop, asleep at times, and its own HTTP server."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from core.engine.engine_model import EngineModel
from core.ports import EngineLimits, InstanceSpec, InstanceStatus

from ..gpu_group import GpuGroup
from ..gpus import SimGpu
from .batching import Batcher
from .engine_transitions import Durations, Transition
from .generation import Generation
from .hand_over import Arriving, HandOver
from .http_api import PATHS, HttpApi
from .request_reading import Ask, RequestError
from .resharding import Way
from .side_channel import KvNetwork, KvOffer, LoadFailed
from .sim_metrics import EngineGauges, render

_BLOCK_TOKENS = 16  # vLLM's


class Busy(Exception):
    """The engine cannot do that now, but may soon: it starts, falls asleep or wakes."""


class SimInstance:
    """An engine on its GPUs. States as `ports.InstanceStatus` has them; `gone` is called once, when it has ended."""

    def __init__(
        self,
        spec: InstanceSpec,
        gpus: Sequence[SimGpu],
        durations: Durations,
        network: KvNetwork,
        gone: Callable[[str], None],
        engine_model: EngineModel,
    ) -> None:
        self.spec = spec
        self.model = spec.model
        self.max_model_len = spec.max_model_len
        self.adapters: dict[str, str] = {}
        self.state = "starting"
        self.limits = spec.limits
        self.sleep_level = 0  # 0: awake
        self._engine_model = engine_model
        self._group = GpuGroup(gpus, engine_model)
        self._durations = durations
        self._network = network
        self._gone = gone
        self._started_at_s = time.time()
        self._batcher: Batcher | None = None
        self._http_api = HttpApi(self)
        self._runner: web.AppRunner | None = None
        self._address: tuple[str, int] = ("", 0)
        self._timer: tuple[float, asyncio.TimerHandle] | None = None  # when the batcher is looked at next
        self._transition: Transition | None = None
        self._transition_timer: asyncio.TimerHandle | None = None
        self._to_wake: set[str] = set()  # parts of an engine that sleeps, by vLLM's tags
        self._stable = asyncio.Event()  # it neither starts, falls asleep, wakes nor goes over to other GPUs
        self._way: Way | None = None  # to other GPUs, if it is on one
        self._group.allocate(spec.uid, time.monotonic(), self._on_clock, spec.gpu_slices)

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Binds the HTTP server, which answers /health at once, and begins the cold start."""
        now_s = time.monotonic()
        self._group.move_weights(now_s)
        self._runner = web.AppRunner(
            self._http_api.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self._address = host, port
        self._begin(self._durations.cold_start(now_s), self._become_ready)

    def _become_ready(self) -> None:
        now_s = time.monotonic()
        self._group.loaded(now_s)
        capacity = self._engine_model.kv_capacity_tokens
        self._batcher = Batcher(self._engine_model, self._group, capacity, now_s, self.spec.options, self.limits)
        self.state = "ready"

    def drain(self) -> None:
        """Takes no more requests and ends when the last one has ended, and what it keeps for others is fetched."""
        state, self.state = self.state, "draining"
        self._stable.set()
        if self._batcher is not None and state in ("sleeping", "starting"):
            if self._transition is None and not self._batcher.settled:
                self._batcher.resume(time.monotonic())  # it was to sleep after those that run
            else:
                self._batcher.abort_all(time.monotonic())  # they wait for an engine that will not wake
        self._settle()

    async def close(self) -> None:
        """Stops at once: what runs is cut off."""
        self.state = "stopped"
        self._batcher = None  # requests that end from here on must not touch the GPUs: others may have them
        for timer in (self._timer and self._timer[1], self._transition_timer):
            if timer is not None:
                timer.cancel()
        self._stable.set()
        self._http_api.close()
        await asyncio.sleep(0)  # lets the handlers see it before the server cancels them
        self._group.release(time.monotonic())
        if self._runner is not None:
            await self._runner.cleanup()

    def status(self) -> InstanceStatus:
        now_s = time.monotonic()
        detail = "" if self._transition is None else self._transition.doing(now_s)
        if self.state == "draining" and self._batcher is not None:
            batcher = self._batcher
            detail = f"requests left: {batcher.running + batcher.waiting}, kept for others: {len(batcher.cache.kept)}"
        elif self.state == "sleeping" and not detail:
            detail = f"sleeps at level {self.sleep_level}"
        falling = self.state == "sleeping" and not self._stable.is_set()  # its GPUs' memory is not free yet
        return InstanceStatus(
            self.spec.uid,
            "starting" if falling else self.state,
            None if not self._address[1] else "http://{}:{}".format(*self._address),
            self.spec.gpu_uuids,
            self._started_at_s,
            detail,
            None if self._transition is None else self._transition.progress(now_s),
            self.limits,
            self.spec.shadow_of,
            kv_connector="simulated",
            start="warm",
            paths=PATHS,
            adapters=tuple(sorted(self.adapters)),
            reshards=self.spec.gpu_slices == 1,
            taking=self.taking,
        )

    def become(self, engine_model: EngineModel) -> None:
        """Takes other times and watts from the next iteration on. Its KV cache stays as it is."""
        self._engine_model = self._group.model = engine_model
        if self._batcher is not None:
            self._batcher.cost = engine_model
        self._on_clock(time.monotonic())

    def tune(self, limits: EngineLimits) -> None:
        """Sets the limits, in force from the next iteration on."""
        self.limits = limits
        if self._batcher is not None:
            self._batcher.limits = limits

    # -- other GPUs --------------------------------------------------------------------------------

    @property
    def taking(self) -> tuple[str, ...]:
        """The GPUs that it goes over to, by rank; empty: it stays."""
        return () if self._way is None else self._way.spec.gpu_uuids

    def reshard(self, way: Way) -> None:
        """Begins to go over to other GPUs; raises Busy.

        It serves while weights move, with the part of its KV cache that these leave. Then it halts, and goes on there
        with all of its requests.
        """
        if self.state != "ready" or self._batcher is None or not self._stable.is_set():
            raise Busy(f"the engine is {'on its way to other GPUs' if self._way else self.state}")
        now_s, outlook = time.monotonic(), way.outlook
        self._way = way
        self._group.take(way.gpus, now_s)
        if outlook.serving_s > 0.0:
            self.advance(now_s)
            self._batcher.cache.capacity = int(self._batcher.cache.capacity * outlook.kv_share)
        self._begin(self._durations.reshard("moving weights", outlook.serving_s, now_s), self._halt)

    def _halt(self) -> None:
        assert self._batcher is not None
        assert self._way is not None
        now_s = time.monotonic()
        self._batcher.halt(now_s)
        self._begin(self._durations.reshard("joining GPUs", self._way.outlook.halted_s, now_s), self._turn_over)

    def _turn_over(self) -> None:
        assert self._batcher is not None
        assert self._way is not None
        now_s, way = time.monotonic(), self._way
        self.advance(now_s)
        if (ends_s := self._batcher.iteration_ends_s) is not None:  # the one in which it was halted
            self._begin(Transition((("ending an iteration", ends_s - now_s),), now_s), self._turn_over)
            return
        self.spec, self._way, self._engine_model = way.spec, None, way.engine()
        self._durations = replace(self._durations, tp=way.spec.tp)
        self._group.turn_to(way.gpus, self._engine_model, now_s)
        self._batcher.turn_to(self._engine_model, self._engine_model.kv_capacity_tokens, now_s)
        self._settle()

    # -- sleep -------------------------------------------------------------------------------------

    @property
    def sleeping(self) -> bool:
        return self.sleep_level > 0

    def fall_asleep(self, level: int, mode: str = "abort") -> None:
        """Begins to; asleep already is fine. Raises Busy."""
        if self.sleeping and self.state == "sleeping":
            return
        if self.state != "ready" or self._batcher is None or self._way is not None:
            raise Busy(f"the engine is {'on its way to other GPUs' if self._way else self.state}")
        self.state, self.sleep_level = "sleeping", level
        self._stable.clear()
        self._to_wake = {"weights", "kv_cache"}
        self._batcher.pause(mode, time.monotonic())
        self._settle()

    def wake_up(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        """Begins to, or takes one step towards it; awake already is fine. Raises Busy, also where others have its GPUs'
        memory."""
        if self.state == "ready":
            return
        if self.state != "sleeping" or not self._stable.is_set():
            raise Busy("the engine is falling asleep" if self.state == "sleeping" else f"the engine is {self.state}")
        coming = self._to_wake & set(tags)
        if coming and (taken := self._group.wake(time.monotonic())):
            raise Busy(taken)
        self._to_wake -= coming
        if not self._to_wake:
            self.state = "starting"
        if "weights" in coming:
            now_s = time.monotonic()
            self._group.move_weights(now_s)
            self._begin(self._durations.wake(self.sleep_level, now_s), self._have_weights)
        else:
            self._have_weights()

    def _have_weights(self) -> None:
        assert self._batcher is not None
        if "weights" in self._to_wake or self.state == "draining":
            return
        now_s = time.monotonic()
        self._group.loaded(now_s)
        if not self._to_wake:
            self.state, self.sleep_level = "ready", 0
            self._batcher.resume(now_s)
            self._settle()

    def _are_asleep(self) -> None:
        assert self._batcher is not None
        self._batcher.forget()
        self._group.sleep(time.monotonic())

    async def sleep(self, level: int, mode: str) -> None:
        await self._carry_out(lambda: self.fall_asleep(level, mode))

    async def wake(self, tags: Sequence[str]) -> None:
        await self._carry_out(lambda: self.wake_up(tags))

    async def _carry_out(self, begin: Callable[[], None]) -> None:
        try:
            begin()
        except Busy as error:
            raise RequestError(503, str(error), retry_after_s=1) from None
        await self._stable.wait()

    def _begin(self, transition: Transition, then: Callable[[], None]) -> None:
        """Carries out `then` when the transition is over."""
        self._stable.clear()
        self._transition = transition

        def over() -> None:
            self._transition = self._transition_timer = None
            then()
            if self._transition is None:
                self._stable.set()

        self._transition_timer = asyncio.get_running_loop().call_later(transition.total_s, over)

    # -- the engine as its surface sees it ---------------------------------------------------------

    @property
    def by_priority(self) -> bool:
        return self.spec.options.by_priority

    @property
    def refusal(self) -> RequestError | None:
        """An engine that sleeps takes requests, which wait until it wakes, as with vLLM."""
        if self._batcher is None:
            left_s = self._transition.left_s(time.monotonic()) if self._transition is not None else 1.0
            return RequestError(503, self.health or "the engine is starting", retry_after_s=math.ceil(left_s) or 1)
        if self.state == "draining":
            return RequestError(503, "the engine is draining", retry_after_s=1)
        return None

    @property
    def health(self) -> str:
        """The reason why it is not up yet. One that sleeps is up: its process answers, as vLLM's does."""
        if self._batcher is None and self._transition is not None:
            return self._transition.doing(time.monotonic())
        return ""

    def submit(self, generation: Generation) -> None:
        assert self._batcher is not None, "the surface refuses requests until the engine is ready"
        self._batcher.submit(generation, time.monotonic())
        self._settle()

    def abort(self, generation: Generation) -> None:
        if self._batcher is not None:
            self._batcher.abort(generation, time.monotonic())
            self._settle()

    def metrics(self) -> str:
        if self._batcher is None:
            return ""
        self.advance(time.monotonic())
        engine = self._batcher
        expired = engine.cache.expired
        gauges = EngineGauges(
            engine.running, engine.waiting, engine.kv_usage, engine.loading, self.sleep_level, expired
        )
        return render(engine.counters, self.model, gauges)

    # -- caches from and for other engines ---------------------------------------------------------

    def hand_over(self, ask: Ask, request_id: str) -> HandOver | None:
        asked = ask.transfer
        if not asked.do_remote_decode:
            return None
        # Where the cache goes is known beforehand only if the request says so; it may, to have it pushed.
        goes_to = None if asked.do_remote_prefill else asked.remote_engine_id
        link = self._network.link_to(goes_to)
        return HandOver(request_id, self._engine_model.constants.kv_bytes, link, asked.chunk_tokens)

    def transfer_params(self, kept: HandOver) -> Mapping[str, Any]:
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(-(-kept.tokens // _BLOCK_TOKENS)))],
            "remote_engine_id": self.spec.uid,
            "remote_request_id": kept.request_id,
            "remote_host": self._address[0],
            "remote_port": self._address[1],
            "remote_num_tokens": kept.tokens,
            "tp_size": self.spec.tp,
        }

    async def fetch(self, ask: Ask) -> Arriving | None:
        asked = ask.transfer
        if not asked.fetches:
            return None
        assert asked.remote_host is not None
        assert asked.remote_port is not None
        assert asked.remote_request_id is not None
        where = asked.remote_host, asked.remote_port, asked.remote_request_id
        try:
            offer = await self._network.offer(*where)
            if offer.model != self.model:
                raise LoadFailed(f"the cache is one of {offer.model}")
        except LoadFailed as error:  # vLLM's kv_load_failure_policy `fail`, its default
            raise RequestError(500, f"KV load failed: {error}", "kv_transfer_params") from None
        # The last token of a prompt is computed here whatever there is of it: the next one follows from that.
        tokens = min(offer.tokens, ask.prefill_tokens - 1)
        size_bytes = tokens * self._engine_model.constants.kv_bytes
        transfer_s = self._network.link_to(asked.remote_engine_id).transfer_s(size_bytes)
        return Arriving(tokens, size_bytes, transfer_s, offer.there_at_s, let_go=lambda: self._network.let_go(*where))

    def offer(self, request_id: str) -> KvOffer | None:
        if self._batcher is None:
            return None
        now_s = time.monotonic()
        self.advance(now_s)
        kept = self._batcher.cache.renew(request_id, now_s)
        return None if kept is None else KvOffer(self.model, kept.tokens, kept.there_at_s)

    def let_go(self, request_id: str) -> bool:
        if self._batcher is None:
            return False
        found = self._batcher.let_go(request_id, time.monotonic())
        self._settle()
        return found

    # -- time --------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        if self._batcher is not None:
            self._batcher.advance(now_s)

    def _on_clock(self, now_s: float) -> None:
        if self._batcher is not None:
            self._batcher.clock_changed(now_s)
        else:
            self._group.idle(now_s)

    def _wake(self) -> None:
        self._timer = None
        self.advance(time.monotonic())
        self._settle()

    def _settle(self) -> None:
        """Sets the timer for what happens next in the engine, or ends a drained one, or lets a paused one sleep."""
        if self.state == "stopped":
            return
        if self.state == "draining" and (self._batcher is None or self._batcher.empty):
            self._gone(self.spec.uid)
            return
        if self._batcher is None:
            return
        now_s = time.monotonic()
        falling = self.state == "sleeping" and not self._stable.is_set() and self._transition is None
        if falling and self._batcher.settled:
            self._group.move_weights(now_s)
            self._begin(self._durations.fall_asleep(self.sleep_level, now_s), self._are_asleep)
        next_s = self._batcher.next_s
        if next_s is None or (self._timer is not None and self._timer[0] <= next_s):
            return
        if self._timer is not None:
            self._timer[1].cancel()
        # Rounded up: uvloop counts whole milliseconds and would wake too early, and then again and again.
        delay_s = math.ceil(max(0.0, next_s - now_s) * 1e3) / 1e3
        self._timer = next_s, asyncio.get_running_loop().call_later(delay_s, self._wake)
