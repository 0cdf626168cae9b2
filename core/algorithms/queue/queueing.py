"""Orders of a queue of requests (FREESH section 3.3 and appendix C).

With Lat = N x TPOT + TTFT, the time alone of a request of N predicted output tokens, a request is due at

    arrival + W,  W = alpha_LLF x Lat,  alpha_LLF = 1.4

and has the laxity l(t) = arrival + W - t - T_remain (6), the time for which it could still wait. Least laxity first
(LLF, Algorithm 1) serves the smallest, at each tick anew. The server's own objective is looser, 5 x Lat (C.2).

Keys (`fair_queue.key`) leave the present time out: it is the same for all, so that the order by due time less work
left is the order by laxity. The key of a waiting request is then constant, while a running one's grows with the work
done; so it can be handed to an engine as a fixed priority.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WINDOW_FACTOR = 1.4  # alpha_LLF: W = 1.4 x Lat (FREESH C.2)


class Order(StrEnum):
    FCFS = "fcfs"  # by arrival
    SJF = "sjf"  # by predicted tokens, with aging
    SPF = "spf"  # by the prompt's tokens, with aging
    SRTF = "srtf"  # by work left
    EDF = "edf"  # by due time
    LLF = "llf"  # by laxity


@dataclass(frozen=True, slots=True)
class OrderConfig:
    order: Order = Order.LLF
    aging_tokens_per_s: float = 20.0

    def __post_init__(self) -> None:
        Order(self.order)
        if self.aging_tokens_per_s < 0.0:
            raise ValueError("an order needs aging_tokens_per_s from 0")
