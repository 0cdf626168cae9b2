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

    def send_again(self, engine_priority: int) -> bool:
        """Sends it again to where it is, with another number in the engine's queue. Returns whether it does."""

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

    def tokens(self, prompt: int, output: int) -> tuple[int, int]:
        """Returns the tokens of the prompt and of the output, of so many each, that are computed in this part."""
        first = min(self.cut_tokens, prompt), min(max(0, self.cut_tokens - prompt), output)
        return (prompt - first[0], output - first[1]) if self.second else first


class Pace(NamedTuple):
    """The limits of a call that a clock by deadlines keeps: when its first byte is due (monotonic), and its mean time
    between tokens. Infinite: no limit."""

    due_s: float
    tpot_s: float


class Slot:
    """A place at an instance, counted from the moment it is given. `end` gives it back; more than once does no harm.

    The place of a second part is kept until the first one is over, and only then counted: see `arrives`.
    """

    __slots__ = (
        *("_giver", "_occupied", "_tick", "_ticket", "begun_s", "call", "choice", "instance", "meter", "owner", "pace"),
        *("part", "prompt_tokens", "sent_s", "tokens_before"),
    )

    def __init__(self, giver: Giver, call: Call, routed: Routed, part: Part | None = None) -> None:
        self._giver = giver
        self._occupied = True
        self._tick: int | None = None
        self._ticket: int | None = None
        self.call = call
        self.part = part  # of the call that is done here; None: all of it
        self.prompt_tokens = call.prompt_tokens or 0  # that are computed here
        if part is not None:
            self.prompt_tokens, _ = part.tokens(self.prompt_tokens, 0)
        self.owner: Recallable | None = None  # whom to tell that the call is to go elsewhere
        self.meter: Meter | None = None
        self.sent_s = time.monotonic()
        self.begun_s: float | None = None
        self.pace: Pace | None = None  # once a clock by deadlines has looked
        self.tokens_before = 0  # that other engines have generated of it
        self.instance, self.choice = routed
        if part is not None and part.second:
            self.instance.due[self] = None
        else:
            self._joins()

    def _joins(self) -> None:
        """Its tokens are the instance's from now on."""
        instance, call = self.instance, self.call
        if instance.health.ejections:
            instance.health.chosen()
        instance.slots[self] = None
        instance.prompts_only += self._prompt_only
        self.sent_s = time.monotonic()
        self._ticket = instance.dispatched(self.prompt_tokens, call.stream)
        if not call.stream and self.choice.ttft_s is not None:  # its first byte comes with its last: so by prediction
            self._tick = self._giver.ticks.call_later(self.choice.ttft_s, self.started)

    def arrives(self) -> None:
        """The first part of its call is over: a second part is sent now. Does nothing to one that is there, or over."""
        if self.instance.due.pop(self, self) is None:
            self._joins()

    def started(self) -> None:
        """The prompt is done with: the first byte has come."""
        if self._ticket is not None:
            self.instance.started(self._ticket, self.prompt_tokens)
            self._ticket = None
            if self._tick is not None:
                self._giver.ticks.cancel(self._tick, self.started)
            if self._occupied:  # else it is over, which makes room in any case
                self.begun_s = time.monotonic()
                self.tokens_before = 0 if self.meter is None else self.meter.events
                self._giver.room(self.call.service.name)

    @property
    def _prompt_only(self) -> bool:
        part = self.part
        return part is not None and not part.second and part.cut_tokens <= (self.call.prompt_tokens or 1)

    def end(self) -> None:
        if self._occupied:
            self._occupied = False
            if self.instance.due.pop(self, self) is None:
                return
            self.instance.prompts_only -= self._prompt_only
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


def due_at(instance: Instance) -> list[Slot]:
    """Returns the second parts that will come there once another instance is done with the first ones."""
    return cast(list[Slot], list(instance.due))


def answers_at(instance: Instance) -> int:
    """Counts the answers that this gateway has under way there: an engine generates those of a request side by side."""
    calls = [slot.call for slot in slots_at(instance)]
    return sum(1 if call.features is None else max(1, call.features.sequences) for call in calls)
