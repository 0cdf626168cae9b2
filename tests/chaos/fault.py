"""What a fault is: how it begins and ends, what is promised meanwhile, and what is looked at afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.stand import Stand

Step = Callable[["Stand"], None]
Look = Callable[["Stand"], str]  # returns what is wrong; empty: nothing

SERVES = "Every accepted request is answered or retried, none is twice on record, and the ledger has no gap."


def nothing(_: Stand) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of the running demo.

    Attributes:
        name: unlike all others', as the page and the test have it.
        component: what fails: gateway, agent, Redis ...
        kind: how: killed, frozen, full, cut ... A component has at most three faults of a kind.
        promise: what holds all the same, in a sentence.
        part: of `make chaos`.
        begin, end: do and undo it; both return when it is done.
        lasts_s: between the two.
        end_takes_s: so long the replay goes on while `end` is under way.
        stops: nobody serves meanwhile, so that requests whose last attempt falls into that time are lost, `because` ...
        forgets: what was answered before its end may lack a record, too.
        waits_s: the longest that an answer may take to begin; None: nothing is promised of it.
        clocks: all GPUs of nodes that `begin` names in `Stand.unheld` are back at their default clock in time.
        look: more that is looked at, once all is back.
    """

    name: str
    component: str
    kind: str
    promise: str = SERVES
    part: int
    begin: Step
    end: Step = nothing
    lasts_s: float = 10.0
    end_takes_s: float = 0.0
    stops: bool = False
    forgets: bool = False
    because: str = ""
    waits_s: float | None = None
    clocks: bool = False
    look: tuple[Look, ...] = field(default=())

    def __post_init__(self) -> None:
        if (self.stops or self.forgets) != bool(self.because):
            raise ValueError(f"{self.name}: requests may be lost only for a reason, and a reason only of lost requests")
