"""Says to agents and gateways what was measured of engines: profiles by their versions, and residuals.

A profile's content is in PROFILES_KEY, and never changes under its version: each process reads it once.
"""

from __future__ import annotations

import msgspec

from core.engine.corrections import Configuration, Correction
from core.engine.profiles import Profile
from pools.wire.message_codec import Message


class MeasuredEngine(Message, frozen=True):
    """A configuration that something was measured of.

    Attributes:
        profile: The version that is published; empty: none is.
        time, power: Factors of its residual by clock; empty: it has none.
        at_s: When that was last measured, to some minutes.
    """

    shape: str
    gpu: str
    tp: int
    engine: str
    profile: str = ""
    time: tuple[float, ...] = ()
    power: tuple[float, ...] = ()
    at_s: float | None = None

    @property
    def configuration(self) -> Configuration:
        return Configuration(self.shape, self.gpu, self.tp, self.engine)

    @property
    def residual(self) -> Correction | None:
        """None: it has none. Raises ValueError: no factors that a correction may have."""
        return Correction(self.time, self.power, at_s=self.at_s) if self.time else None


def encode_profile(profile: Profile) -> bytes:
    """Writes a profile's content, with its version."""
    return msgspec.json.encode(profile)


def decode_profile(data: bytes) -> Profile:
    """Raises msgspec.DecodeError when `data` is no profile."""
    return msgspec.json.decode(data, type=Profile)
