"""The messages of agent and actuator: one JSON object a packet of a unix SEQPACKET socket, and one answer to each.

The kernel keeps packets apart and tells who is at the other end, so there is no framing and no password. Times are
seconds, clocks MHz.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

DEFAULT_SOCKET = Path("/run/greenserve/actuator.sock")
DEFAULT_STATE = Path("/run/greenserve/actuator.json")
MESSAGE_BYTES = 16384


class Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="lock"):
    """Hold these GPUs' clocks at `mhz` (the nearest clock offered at or above it), or renew the lease on them."""

    gpus: list[str]
    mhz: float
    lease_s: float


class Reset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="reset"):
    """Give these GPUs' clocks back."""

    gpus: list[str]


class Status(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="status"):
    """Asks for the actuator's state, and changes nothing."""


Request = Lock | Reset | Status


class ClockLease(msgspec.Struct, frozen=True):
    """A lease. `left_s` below 0: it is over, and the clock could not be given back yet. `mhz` None: unknown."""

    gpu: str
    mhz: float | None
    left_s: float
    pid: int


class ActuatorAnswer(msgspec.Struct, frozen=True):
    """`error` empty: done. `refusal`: why clocks cannot be set on this node at all; empty: they can, as far as known.

    `lease_s`: the lease that was given, which may be shorter than the one asked for.
    """

    error: str = ""
    permanent: bool = False
    lease_s: float | None = None
    refusal: str = ""
    held: list[ClockLease] = []
