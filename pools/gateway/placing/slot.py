"""A call's place at an instance."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol, cast

from ..fleet.instance import Instance
from ..http.loop_turn import Ticks
from ..requests.call import Call
from ..requests.sse import Meter
from .instance_choice import Routed


class Recallable(Protocol):
    """A call that was sent somewhere."""

    def call_back(self, squash_for_s: float | None = None) -> None: ...

    def move(self) -> bool:
        """Takes it elsewhere, if nothing has come of it and there is another place. Returns whether it goes."""


class Giver(Protocol):
    """Gives places, and hears of those that come free."""

    @property
    def ticks(self) -> Ticks: ...

    def room(self, service_name: str) -> None: ...


class Part(NamedTuple):
    """One of the two parts of a request: it is cut after `cut_tokens` of `total_tokens`, prompt and output."""

    cut_tokens: int
    total_tokens: int
    second: bool


class Pace(NamedTuple):
    """The limits of a call that a clock by deadlines keeps: when its first byte is due (monotonic), and its mean time
    between tokens. Infinite: no limit."""

    due_s: float
    tpot_s: float


class Slot:
    """A place at an instance, counted from the moment it is given. `end` gives it back; more than once does no harm."""

    __slots__ = (
        *("_giver", "_occupied", "_tick", "_ticket", "_tokens"),
        *("begun_s", "call", "choice", "instance", "meter", "owner", "pace", "part", "sent_s", "tokens_before"),
    )

    def __init__(self, giver: Giver, call: Call, routed: Routed) -> None:
        self._giver = giver
        self._tokens = call.prompt_tokens or 0
        self._occupied = True
        self._tick: int | None = None
        self.call = call
        self.owner: Recallable | None = None  # whom to tell that the call is to go elsewhere
        self.meter: Meter | None = None
        self.sent_s = time.monotonic()
        self.begun_s: float | None = None
        self.part: Part | None = None  # of the call that is done here; None: all of it
        self.pace: Pace | None = None  # once a clock by deadlines has looked
        self.tokens_before = 0  # that other engines have generated of it
        self.instance, self.choice = routed
        instance = self.instance
        if instance.health.ejections:
            instance.health.chosen()
        instance.slots[self] = None
        self._ticket: int | None = instance.dispatched(self._tokens, call.stream)
        if not call.stream and self.choice.ttft_s is not None:  # its first byte comes with its last: so by prediction
            self._tick = giver.ticks.call_later(self.choice.ttft_s, self.started)

    def started(self) -> None:
        """The prompt is done with: the first byte has come."""
        if self._ticket is not None:
            self.instance.started(self._ticket, self._tokens)
            self._ticket = None
            if self._tick is not None:
                self._giver.ticks.cancel(self._tick, self.started)
            if self._occupied:  # else it is over, which makes room in any case
                self.begun_s = time.monotonic()
                self.tokens_before = 0 if self.meter is None else self.meter.events
                self._giver.room(self.call.service.name)

    def does(self, part: Part) -> None:
        """Says which part of its call is done here."""
        self.part = part
        if self._prompt_only:
            self.instance.prompts_only += 1

    @property
    def _prompt_only(self) -> bool:
        part = self.part
        return part is not None and not part.second and part.cut_tokens <= (self.call.prompt_tokens or 1)

    def end(self) -> None:
        if self._occupied:
            self._occupied = False
            if self._prompt_only:
                self.instance.prompts_only -= 1
            if self._ticket is not None:
                self.started()
            self.instance.slots.pop(self, None)
            self.instance.ended()
            self._giver.room(self.call.service.name)

    @property
    def begun(self) -> bool:
        return self.begun_s is not None

    @property
    def generated(self) -> int:
        """Tokens so far; of a response that is no stream, as many as there should be by now."""
        if self.meter is not None:
            return self.meter.events
        tpot_s = self.choice.tpot_s
        if self.begun_s is None or not tpot_s:
            return 0
        return min(self.call.predicted_tokens or 1, int((time.monotonic() - self.begun_s) / tpot_s))


def slots_at(instance: Instance) -> list[Slot]:
    """What this gateway has in flight there, in the order it was sent."""
    return cast(list[Slot], list(instance.slots))
