"""Orders of a queue of requests (FREESH section 3.3 and appendix C).

With Lat = N x TPOT + TTFT, the time alone of a request of N predicted output tokens, a request is due at

    arrival + W,  W = alpha_LLF x Lat,  alpha_LLF = 1.4

and has the laxity l(t) = arrival + W - t - T_remain (6), the time for which it could still wait. Least laxity first
(LLF, Algorithm 1) serves the smallest, at each tick anew. The server's own objective is looser, 5 x Lat (C.2).

Laxity below 0 counts as 0: a request that cannot be in time any more is as urgent as can be, and not the more so the
later it is. Of those, whose laxity is the same, the one with the least work left goes first. While all can be in time
this is the order of (6). When more comes than is carried no order has all in time, and (6) as it stands would serve
them nearly as they came, so that all are late; shortest first leaves the fewest late and the least time in the mean.

Keys (`fair_queue.key`) leave the present time out: it is the same for all, so that the order by due time less work
left is the order by laxity. It is when a request has to begin at the latest: one whose key has passed is late. The key
of a waiting request is constant, while a running one's grows with the work done; so it can be handed to an engine as a
fixed priority.

A running request gives way to a waiting one only if it can afford it: if it still has laxity, by more than a margin,
when the other's work is done and what it loses of its own is computed again, and only to one that, with this loss,
takes less time than its own rest. Then neither misses its window for the other, and the mean is no later.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WINDOW_FACTOR = 1.4  # alpha_LLF: W = 1.4 x Lat (FREESH C.2)
LEAST_WINDOW_FACTOR = 1.0  # a window shorter than the request by itself could never be kept


class Order(StrEnum):
    FCFS = "fcfs"  # by arrival
    SJF = "sjf"  # by predicted tokens, with aging
    SPF = "spf"  # by the prompt's tokens, with aging
    SRTF = "srtf"  # by work left
    EDF = "edf"  # by due time
    LLF = "llf"  # by laxity


@dataclass(frozen=True, slots=True)
class OrderConfig:
    """`window_factor`: alpha_LLF, the window in which a request is due over what it takes alone."""

    order: Order = Order.LLF
    aging_tokens_per_s: float = 20.0
    window_factor: float = WINDOW_FACTOR

    def __post_init__(self) -> None:
        Order(self.order)
        if not self.window_factor >= LEAST_WINDOW_FACTOR:
            raise ValueError(f"an order needs window_factor from {LEAST_WINDOW_FACTOR:g}")
        if self.aging_tokens_per_s < 0.0:
            raise ValueError("an order needs aging_tokens_per_s from 0")
