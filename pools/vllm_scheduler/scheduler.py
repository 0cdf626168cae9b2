"""vLLM's V1 scheduler with GreenServe's order and budget. The only module here that imports vLLM.

What it changes it changes before vLLM's own `schedule` decides: who is first among those that run and those that wait,
who gives way, and how many tokens the step may have. With the order `vllm` and no limits that is nothing at all.

vLLM's scheduler interface is not public, so the version is pinned: another one may not have the same insides.
"""

from __future__ import annotations

import json
import logging
import os
import time
from bisect import bisect_right
from collections import deque
from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from core.algorithms.split.step_times import LEAST_PROMPT_TOKENS, StepLoad, StepTimes, pairs

from . import SETTINGS_VARIABLE, SOCKET_VARIABLE, require
from .control_socket import ControlSocket, SchedulerControl
from .order import Head, LaxityQueue, Seat, Work, displaced, work_of
from .scheduler_settings import Most, Settings, changed

# Under vLLM's own name, which it has set up to be seen.
log = logging.getLogger("vllm.greenserve")

MOST_DISPLACED = 4  # in a step
RECENT = 500  # steps with decodes, and so gaps between tokens, that figures are of
HEADS = 8  # waiting requests that are looked at for whom to displace

require(vllm.__version__)
RequestQueue.register(LaxityQueue)


class GreenServeScheduler(Scheduler):
    """With `async_scheduling`, vLLM's default on a GPU, the class made is `GreenServeAsyncScheduler`."""

    # vLLM's own, which are set here as well
    max_num_scheduled_tokens: int
    max_num_active_reqs: int
    policy: Any
    waiting: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> GreenServeScheduler:
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        if config.scheduler_config.async_scheduling and not issubclass(cls, AsyncScheduler):
            cls = GreenServeAsyncScheduler
        made: GreenServeScheduler = super().__new__(cls)
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raises ValueError or OSError where its settings or its socket's path make no sense: the engine then stops."""
        super().__init__(*args, **kwargs)
        most = Most(self.max_num_scheduled_tokens, self.max_num_active_reqs)
        self._own_policy = self.policy
        self._own_chunk_tokens = self.scheduler_config.long_prefill_token_threshold
        self._looked = -1  # the last stretch of `preempts_s` in which requests may have given way
        self._settings = Settings()
        self._control = SchedulerControl(_first_settings(most), most)
        self._steps = StepTimes()
        self._begun: deque[tuple[Any, StepLoad, float]] = deque()  # steps whose outputs are still to come
        self._last_output_s: float | None = None  # None: there was nothing to do after it
        self._gaps_s: deque[float] = deque(maxlen=RECENT)
        self._ran = self._cut = self._displaced = self._bad_hints = 0
        self._socket = _listen(self._control, self.parallel_config)

    # -- what vLLM calls ---------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> Any:
        settings = self._control.settings
        if settings is not self._settings:
            self._take_up(settings)
        aside: list[Any] = []
        if settings.by_laxity:
            now_s = time.time()
            # Who is last is preempted first, by vLLM too.
            self.running.sort(key=lambda request: self._work(request).place(request.num_output_tokens, now_s))
            if settings.preempts_s > 0.0:
                aside = self._displace(settings)
        if settings.itl_limit_s is not None:
            self._set_budget(settings.itl_limit_s, settings.max_num_batched_tokens)
        try:
            output = super().schedule(throttle_prefills)
        finally:
            self.waiting.prepend_requests(aside)
        if output.total_num_scheduled_tokens:
            self._begun.append((output, self._load_of(output), time.monotonic()))
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if scheduler_output.total_num_scheduled_tokens:
            self._ran += 1
            self._observe(scheduler_output, time.monotonic())
        found = super().update_from_output(scheduler_output, model_runner_output)
        if not self.running:
            self._last_output_s = None
        self._control.stats = self._figures()
        return found

    def shutdown(self) -> None:
        if self._socket is not None:
            self._socket.close()
        super().shutdown()

    # -- settings ----------------------------------------------------------------------------------

    def _take_up(self, settings: Settings) -> None:
        before, self._settings = self._settings, settings
        most = self._control.most
        self.max_num_scheduled_tokens = settings.max_num_batched_tokens or most.max_num_batched_tokens
        self.max_num_active_reqs = settings.max_num_seqs or most.max_num_seqs
        self.scheduler_config.long_prefill_token_threshold = settings.chunk_tokens or self._own_chunk_tokens
        self._gaps_s.clear()
        orders = ("order", "default_window_s", "window_factor")
        if any(getattr(before, name) != getattr(settings, name) for name in orders):
            waiting = sorted(self.waiting, key=lambda request: request.arrival_time)
            for request in self.requests.values():
                request.greenserve_work = None
            if settings.by_laxity:
                self.policy = SchedulingPolicy.FCFS  # of what runs, the last gives way: it has the most laxity
                self.waiting = LaxityQueue(self._key_and_left, time.time, waiting)
            elif before.by_laxity:
                self.policy = self._own_policy
                self.waiting = create_request_queue(self.policy)
                for request in waiting:
                    self.waiting.add_request(request)
        log.info("GreenServe's scheduler: %s", settings)

    # -- the order ---------------------------------------------------------------------------------

    def _work(self, request: Any) -> Work:
        work: Work | None = getattr(request, "greenserve_work", None)
        if work is None:
            work = request.greenserve_work = self._work_of(request)
        return work

    def _key_and_left(self, request: Any) -> tuple[float, float]:
        work, generated = self._work(request), request.num_output_tokens
        return work.key(generated), work.remaining_s(generated)

    def _work_of(self, request: Any) -> Work:
        params = request.sampling_params
        hints = None if params is None else params.extra_args
        due = self._settings.default_window_s, self._settings.window_factor
        work, bad = work_of(hints, request.arrival_time, request.max_tokens, request.priority, *due)
        self._bad_hints += len(bad)
        if bad:
            log.warning("request %s: %s cannot be what it says; not looked at", request.request_id, ", ".join(bad))
        return work

    def _displace(self, settings: Settings) -> list[Any]:
        """Preempts those that give way, once in each stretch of `preempts_s` in which somebody waits.

        They are taken off the queue for this step, lest they come back in at once.
        """
        if self._pause_state != PauseState.UNPAUSED or not self.waiting or not self.running or self.kv_holding_waiting:
            return []
        stretch = int(time.monotonic() / settings.preempts_s)
        if stretch == self._looked:
            return []
        self._looked = stretch
        free_seats = self.max_num_active_reqs - len(self.running) - self.num_waiting_for_streaming_input
        free_blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        heads = []
        for request in self.waiting.first(HEADS):
            if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
                key, left_s = self._key_and_left(request)
                heads.append(Head(request, key, -(-(request.num_tokens + 1) // self.block_size), left_s))
        if free_seats >= len(heads) and free_blocks >= sum(head.blocks for head in heads):
            return []
        seats = [self._seat(request) for request in self.running if self._request_blocks_can_be_freed(request)]
        gone = displaced(heads, seats, free_seats, free_blocks, time.time(), settings.margin_s, MOST_DISPLACED)
        now_s = time.monotonic()
        for request in gone:
            self.running.remove(request)
            self._preempt_request(request, now_s, drop_stale_output=self.requires_kv_delivery)
            self.waiting.remove_request(request)
        self._displaced += len(gone)
        return gone

    def _seat(self, request: Any) -> Seat[Any]:
        blocks = sum(map(len, self.kv_cache_manager.get_block_ids(request.request_id)))
        key, left_s = self._key_and_left(request)
        return Seat(request, key, self._steps.prompt_s(request.num_computed_tokens), blocks, left_s)

    # -- the budget --------------------------------------------------------------------------------

    def _set_budget(self, limit_s: float, tuned_tokens: int | None) -> None:
        """The tokens of the next step: all decodes, and as much of prompts as keeps it within the limit.

        Without decodes nobody waits between tokens, and the prompts have the whole budget.
        """
        most = tuned_tokens or self._control.most.max_num_batched_tokens
        decodes, context_tokens, cached_tokens = 0, 0, 0
        for request in self.running:
            if request.is_prefill_chunk:
                cached_tokens = max(cached_tokens, request.num_computed_tokens)
            else:
                decodes += 1
                context_tokens += request.num_computed_tokens
        self.running.sort(key=lambda request: request.is_prefill_chunk)  # a prompt is not to take a decode's token
        if decodes:
            beside = decodes * (1 + self.num_spec_tokens)
            room = self._steps.prompt_budget(decodes, context_tokens, cached_tokens, limit_s, most)
            self._cut += beside + room < most
            most = min(most, beside + max(LEAST_PROMPT_TOKENS, room))
        self.max_num_scheduled_tokens = most

    def _load_of(self, output: Any) -> StepLoad:
        """Returns the load of a step; vLLM has counted its tokens as computed already."""
        per_decode = 1 + self.num_spec_tokens
        prompt_tokens, pair_count, decodes, context_tokens = 0, 0.0, 0, 0
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            before = request.num_computed_tokens - tokens
            if tokens <= per_decode and before >= request.num_prompt_tokens:
                decodes += 1
                context_tokens += before
            else:
                prompt_tokens += tokens
                pair_count += pairs(tokens, before)
        return StepLoad(prompt_tokens, pair_count, decodes, context_tokens)

    def _observe(self, output: Any, now_s: float) -> None:
        """A step has ended. It began when the one before ended, or where there was none, when it was scheduled."""
        while self._begun:
            begun, load, scheduled_s = self._begun.popleft()
            if begun is output:
                since_s = scheduled_s if self._last_output_s is None else self._last_output_s
                self._steps.observe(load, now_s - since_s)
                if load.decodes:
                    self._gaps_s.append(now_s - since_s)
                break
        self._last_output_s = now_s

    def _figures(self) -> dict[str, Any]:
        steps, gaps_s = self._steps, sorted(self._gaps_s)
        last = len(gaps_s) - 1
        return {
            "steps": self._ran,
            "learned": steps.steps,
            "ready": steps.ready,
            "coefficients": list(steps.coefficients),
            "margin": steps.margin,
            "itl_p50_s": gaps_s[last // 2] if gaps_s else None,  # since the settings were changed
            "itl_p99_s": gaps_s[round(0.99 * last)] if gaps_s else None,
            "itl_within": self._within(gaps_s),
            "token_budget": self.max_num_scheduled_tokens,
            "cut": self._cut,  # steps whose budget the ITL limit made smaller
            "displaced": self._displaced,
            "bad_hints": self._bad_hints,
            "running": len(self.running),
            "waiting": len(self.waiting) + len(self.kv_holding_waiting),
        }

    def _within(self, gaps_s: list[float]) -> float | None:
        """Returns the share of sorted gaps that kept the limit; None: there is no limit, or no gap."""
        limit_s = self._settings.itl_limit_s
        return None if limit_s is None or not gaps_s else bisect_right(gaps_s, limit_s) / len(gaps_s)


class GreenServeAsyncScheduler(GreenServeScheduler, AsyncScheduler):
    """The same where steps are scheduled while the one before still runs."""


def _first_settings(most: Most) -> Settings:
    """Raises ValueError on what makes no sense."""
    given = os.environ.get(SETTINGS_VARIABLE)
    if not given:
        return Settings()
    try:
        fields = json.loads(given)
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object")
        return changed(Settings(), fields, most)
    except ValueError as error:
        raise ValueError(f"{SETTINGS_VARIABLE}={given}: {error}") from None


def _listen(control: SchedulerControl, parallel: Any) -> ControlSocket | None:
    """Listens at the path of this engine: those of a data-parallel group have one each, the first the path as it is."""
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return None
    rank = parallel.data_parallel_index
    path = f"{path}.{rank}" if rank else path
    socket = ControlSocket(path, control)
    log.info("GreenServe's scheduler listens at %s", path)
    return socket
