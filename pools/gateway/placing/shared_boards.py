"""Keeps what the other gateways tell of engines, so that each gateway judges the whole batch of an engine.

Several gateways that send to one engine each decide for all that it has. While the requests of any of them are not
known, nothing below the top clock is: `unknown` says why.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from pools.wire import GATEWAY_BOARDS_TTL_S, EngineBoard, EnginePaces, GatewayBoards

NOTHING = EngineBoard(0, None, [], [], [], [], [], [], [], [])


@dataclass(frozen=True, slots=True)
class BoardElsewhere:
    """Another gateway's board of an engine. `offset_s`: from its clock to this host's monotonic one. `published_s`:
    when it was published, by the latter."""

    board: EngineBoard
    offset_s: float
    published_s: float


@dataclass(frozen=True, slots=True)
class PacesElsewhere:
    """The same as `BoardElsewhere`, for a clock by deadlines."""

    paces: EnginePaces
    offset_s: float
    published_s: float


@dataclass(frozen=True, slots=True)
class _Published:
    message: GatewayBoards
    published_s: float

    @property
    def offset_s(self) -> float:
        return self.published_s - self.message.clock_s


class SharedBoards:
    """The boards of all other gateways. Without `expect` there are no others."""

    def __init__(self) -> None:
        self._others: dict[str, _Published] = {}
        self._missing: list[str] = []
        self._heard_s = math.inf

    def expect(self) -> None:
        """From now on there may be others."""
        self._heard_s = -math.inf

    def hear(self, published: Mapping[str, GatewayBoards | None], now_s: float, wall_s: float) -> None:
        """Takes in what each other gateway tells; None: nothing.

        A message's age is the time since it was written, by both hosts' clocks where these agree: taken for too old a
        message makes deadlines earlier, and clocks higher. It is never older than Redis keeps it.

        Args:
            now_s: Monotonic.
            wall_s: The same moment, Unix time.
        """
        others: dict[str, _Published] = {}
        for gateway, message in published.items():
            if message is None:
                continue
            known = self._others.get(gateway)
            if known is not None and known.message.clock_s == message.clock_s:
                others[gateway] = known
            else:
                age_s = min(max(0.0, wall_s - message.at_s), GATEWAY_BOARDS_TTL_S)
                others[gateway] = _Published(message, now_s - age_s)
        self._others, self._heard_s = others, now_s
        self._missing = sorted(gateway for gateway, message in published.items() if message is None)

    @property
    def alone(self) -> bool:
        """Nobody else was there when others were last asked."""
        return not self._others and not self._missing

    def unknown(self, now_s: float) -> str:
        """Says why it is not known what others have sent; empty: it is.

        One that was alone when it last heard stays so: who has come since does not hear of it either, and says so.

        Args:
            now_s: Monotonic.
        """
        stays_alone = self.alone and math.isfinite(self._heard_s)
        if now_s - self._heard_s > GATEWAY_BOARDS_TTL_S and not stays_alone:
            return "what other gateways have sent is not heard"
        if self._missing:
            some = len(self._missing) > 1
            names = ", ".join(self._missing)
            return f"{names} {'have' if some else 'has'} not published what {'they' if some else 'it'} sent there"
        return ""

    def boards(self, uid: str) -> list[BoardElsewhere]:
        """Returns what each other gateway has at an engine, be it nothing."""
        return [
            BoardElsewhere(its.message.boards.get(uid, NOTHING), its.offset_s, its.published_s)
            for its in self._others.values()
        ]

    def paces(self, uid: str) -> list[PacesElsewhere]:
        """Returns the same of those that have anything there, for clocks by deadlines."""
        return [
            PacesElsewhere(paces, its.offset_s, its.published_s)
            for its in self._others.values()
            if (paces := its.message.paces.get(uid)) is not None
        ]

    def newest(self, uid: str) -> dict[str, float]:
        """Returns when each other gateway sent its last request there, by its own clock."""
        return {
            gateway: board.sent_s[-1]
            for gateway, its in self._others.items()
            if (board := its.message.boards.get(uid)) is not None and board.sent_s
        }


def sent_since(board: EngineBoard, then_s: float) -> EngineBoard:
    """Returns the rows of requests that were sent after a moment."""
    first = bisect_right(board.sent_s, then_s)
    columns = {
        name: column[first:] for name in board.__struct_fields__ if isinstance(column := getattr(board, name), list)
    }
    return replace(board, answers=len(columns["sent_s"]), **columns)
