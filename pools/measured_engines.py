"""Puts in force what messages say was measured of engines: for agents and gateways, which have no database."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from core.engine import measured
from core.engine.corrections import Configuration, Correction
from core.engine.profiles import Profile
from pools import wire

logger = logging.getLogger(__name__)


class ReadProfiles:
    """Keeps the profiles that messages name: each is read once, since its content never changes."""

    def __init__(self) -> None:
        self._read: dict[str, Profile | None] = {}  # None: it cannot be read

    def missing(self, named: Sequence[wire.MeasuredEngine]) -> list[str]:
        """Returns the versions that are named and not read yet; forgets those that are no longer named."""
        wanted = dict.fromkeys(one.profile for one in named if one.profile)
        self._read = {version: profile for version, profile in self._read.items() if version in wanted}
        return [version for version in wanted if version not in self._read]

    def add(self, contents: Mapping[str, bytes | None]) -> None:
        """Takes over the contents of versions. What is not there has gone since: the next message says so."""
        for version, data in contents.items():
            if data is None:
                continue
            try:
                self._read[version] = wire.decode_profile(data)
            except (msgspec.DecodeError, ValueError) as error:
                self._read[version] = None
                logger.warning("the profile %s cannot be read: %s", version[:8], error)

    def profiles(self) -> list[Profile]:
        """Returns those that were read."""
        return [profile for profile in self._read.values() if profile is not None]


def put_in_force(
    named: Sequence[wire.MeasuredEngine], profiles: Sequence[Profile], own: Iterable[Profile] = ()
) -> bool:
    """Makes the engine model of this process follow what was measured; says whether anything changed.

    Args:
        profiles: Those that `named` names.
        own: Profiles that this process was started with: of configurations of which none is published.
    """
    residuals: dict[Configuration, Correction] = {}
    for one in named:
        try:
            found = one.residual
        except ValueError as error:
            logger.warning("the residual of %s is left aside: %s", one.configuration, error)
            continue
        if found is not None:
            residuals[one.configuration] = found
    changed = measured.publish((*own, *profiles))
    return measured.calibrate(residuals) or changed
