"""What each gateway has at engines, from each to the others: together they know the whole batch of an engine.

Times are by the monotonic clock of the gateway that tells them; `GatewayBoards` says what time that is.
"""

from __future__ import annotations

from typing import ClassVar

from pools.wire.message_codec import Message

GATEWAY_BOARDS_TTL_S = 1.0


class EngineBoard(Message, frozen=True):
    """A gateway's requests at an engine as columns, an entry each, in the order in which they were sent.

    For projections of batch and KV cache, and for ReTail's clock.

    Attributes:
        answers: That the engine generates for them, some of them side by side.
        tpot_s: The strictest of their limits; None: none has one.
        max_tokens: Of output, that each may generate.
        begun: Its first token has come.
        deadline_s: Of its end; infinite: none.
        lost: It was admitted as lost.
    """

    answers: int
    tpot_s: float | None
    sent_s: list[float]
    prompt_tokens: list[int]
    predicted_tokens: list[int]
    max_tokens: list[int]
    generated_tokens: list[int]
    begun: list[bool]
    deadline_s: list[float]
    lost: list[bool]


class EnginePaces(Message, frozen=True):
    """A gateway's requests at an engine as a clock by deadlines sees them.

    Attributes:
        decodes, context_tokens: Answers under way, and the sum of their tokens in the cache.
        slack_s: The least time by which one of them is ahead of its limit at this moment; infinite: there is none.
        tpot_s: The strictest limit on the time between tokens; infinite: there is none.
        sent_s, prompt_tokens, due_s, priority: Of prompts that wait, an entry each in the order sent: `due_s` of the
            first token, infinite: no limit; `priority` inside the engine, lower first.
    """

    decodes: int
    context_tokens: int
    slack_s: float
    tpot_s: float
    sent_s: list[float]
    prompt_tokens: list[int]
    due_s: list[float]
    priority: list[int]


class GatewayBoards(Message, frozen=True):
    """All that a gateway has in flight at engines whose clocks gateways ask for, by the instance's uid.

    Attributes:
        clock_s: When it is published, by the gateway's monotonic clock.
        at_s: The same moment, Unix time.
    """

    packed: ClassVar[bool] = True

    clock_s: float
    at_s: float
    boards: dict[str, EngineBoard] = {}
    paces: dict[str, EnginePaces] = {}
