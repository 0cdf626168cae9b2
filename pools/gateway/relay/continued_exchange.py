"""A call that more than one engine generates: split over two in advance, or continued when its engine dies.

What the client sees is one stream. When the first of two engines fails, or the second cannot have its cache, another
one computes again what is written so far and goes on: nothing that was sent is taken back.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import ApiError, none_ready
from ..http.client_protocol import ClientConnection
from ..placing.slot import Slot
from ..placing.splitter import SplitPlan, Splitter
from ..requests.call import Call
from .continuation import BLOCKS, NIXL, Continuation, ContinuationMeter
from .exchange import Context, Exchange, Fate, LastWords


class ContinuedExchange(Exchange):
    """Serves a call by one engine after another. `splitter` None: others get it only when the first one dies."""

    __slots__ = ("_continuation", "_hindrance", "_meter", "_params", "_splitter", "_whole")

    def __init__(self, call: Call, client: ClientConnection, context: Context, splitter: Splitter | None) -> None:
        self._meter: ContinuationMeter | None = None
        super().__init__(call, client, context)
        self._splitter = splitter
        self._hindrance = ""  # why it is not split, where its policy says that it may be
        self._continuation = Continuation(call.body, call.endpoint.chat, call.max_tokens)
        self._whole = call.body

    def start(self) -> None:
        self._go_on(None)

    def _reset(self, window_end_s: float) -> None:
        super()._reset(window_end_s)
        if self._meter is None:
            return
        if self._started:  # what comes goes on with what the client has
            self.ending.meter = self._meter
        if not self._meter.events:
            self._meter.window_end_s = window_end_s

    def _begin(self, slot: Slot) -> None:
        super()._begin(slot)
        if self._hindrance:
            why = f"{slot.choice.reason}; not split: {self._hindrance}"
            self.ending.choice = replace(slot.choice, reason=why)

    def head(self, status: int, headers: bytes) -> None:
        if self._started:  # the client has had its head
            headers = self._headers
        self._status, self._headers = status, headers
        if status == 200 and b"text/event-stream" in headers.lower():
            self.ending.meter = self._meter
            if self._slot is not None:
                self._slot.meter = self._meter

    async def _serve(self, fate: Fate | None) -> LastWords:
        rewrite = self._with_energy if self.call.tells_energy else None
        name = self.call.service.name
        self._meter = ContinuationMeter(self._continuation, 0.0, self.call.strip_usage, rewrite, name)
        plan = None
        if self._splitter is not None:
            plan = self._splitter.plan(self.call)
            self._hindrance = self._splitter.hindrances.get(name, "")
        try:
            return await self._generate(self._meter, plan)
        finally:
            if plan is not None:  # places that were not used after all
                plan.first.end()
                if plan.second is not None:
                    plan.second.end()

    async def _generate(self, meter: ContinuationMeter, plan: SplitPlan | None) -> LastWords:
        """Asks engine after engine until the response is complete."""
        call, continuation = self.call, self._continuation
        next_slot: Slot | None = None if plan is None else plan.first
        params = None
        while True:
            part_only = plan is not None and plan.second is not None and next_slot is plan.first
            try:
                slot = next_slot or await self._context.dispatcher.place(call, self._tried, self._waking)
            except ApiError as error:
                return self._fail("rejected", error)
            if slot is None:
                break
            next_slot = None
            if plan is not None and part_only:
                connector = slot.instance.state.kv_connector
                continuation.sent_to(call.request_id, plan.second.instance.state.kv_address if plan.second else "")
                call.body = continuation.first(plan.cut_tokens, call.prompt_tokens or 1, plan.chunk_tokens, connector)
            else:
                if plan is not None and plan.second and slot.instance.state.kv_connector in (BLOCKS, NIXL):
                    params = continuation.rest()  # what is there of it, whoever wrote it
                call.body = continuation.next(params)
            meter.begin(part_only)
            self._begin(slot)
            fate = await self._attempt()
            params = None
            if fate is Fate.COMPLETE and self._status == 200 and not meter.failed:
                if meter.finished or not part_only:
                    return self._completed()
                assert plan is not None
                assert plan.second is not None
                params, next_slot = meter.params, plan.second
                plan.second.arrives()
                self.ending.attempts -= 1  # the second part is no second attempt
                self._tried.remove(slot.instance.uid)  # it may go on with the rest, should the second one fail
                continue
            # What an engine says to a part is not for the client: the whole request is asked for elsewhere.
            silent = self._started or part_only or fate in (Fate.CALLED_BACK, Fate.MOVED)
            last_words = None if silent else self._judge(fate)
            if fate in (Fate.TIMEOUT, Fate.CLIENT_STALLED) and last_words is None:
                last_words = self._judge(fate)
            if last_words is not None:
                return last_words
            if fate is Fate.MOVED:
                self._moves += 1
            elif not self._may_try_again():
                break
        if self._answer is not None and not self._started:
            return self._pass_on(*self._answer)
        if self.ending.attempts:
            return self._fail("upstream_error", self._broken_upstream())
        return self._fail("rejected", none_ready(call.service.name))
