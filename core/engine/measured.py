"""Knows engines by the most trusted source that there is: a configuration's profile, else the closed form.

Profiles are published to a process as a whole, and so are residuals: by how much engines that serve differ from what
is predicted of them, profile or not (`calibration`). A residual corrects the profile's own figures too: what is served
heals a profile that has become wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from core.engine import parameter_caches
from core.engine.corrections import BOUNDS, KNOTS, Configuration, Correction, configuration, correct, knots_mhz
from core.engine.engine_model import EngineModel, closed_form, engine_model
from core.engine.engine_params import modelled_source
from core.engine.parameter_caches import cached
from core.engine.profiled_engine import ProfiledEngine
from core.engine.profiles import Profile
from core.types import Source

_profiles: dict[Configuration, Profile] = {}
_residuals: dict[Configuration, Correction] = {}


def publish(profiles: Iterable[Profile]) -> bool:
    """Makes these the profiles of this process, in place of those before; says whether anything changed.

    Of two of one configuration the later counts. Profiles of GPUs that no closed form knows are left aside.
    """
    new = {configuration(one.model, one.gpu, one.tp, one.engine): one for one in profiles}
    if _versions(new) == _versions(_profiles):
        return False
    _profiles.clear()
    _profiles.update(new)
    _renew()
    return True


def calibrate(residuals: Mapping[Configuration, Correction]) -> bool:
    """Makes these the residuals of this process, in place of those before; says whether any factor changed."""
    changed = residuals != _residuals
    _residuals.clear()
    _residuals.update(residuals)
    if changed:
        _renew()
    return changed


@contextmanager
def set_aside() -> Iterator[None]:
    """Lets the closed form alone answer meanwhile: for what is to come out alike wherever and whenever it runs."""
    before, residuals_before = tuple(_profiles.values()), dict(_residuals)
    publish(())
    calibrate({})
    try:
        yield
    finally:
        publish(before)
        calibrate(residuals_before)


def profile_of(key: Configuration) -> Profile | None:
    """Returns the profile in force; None: the configuration has none."""
    return _profiles.get(key)


def version_of(key: Configuration) -> str:
    """Returns the version of the profile in force; empty: the closed form answers."""
    profile = _profiles.get(key)
    return "" if profile is None else profile.version


def profiles() -> tuple[Profile, ...]:
    """Returns the profiles of this process."""
    return tuple(_profiles.values())


def residuals() -> Mapping[Configuration, Correction]:
    """Returns the residuals of this process."""
    return _residuals


def residual_of(key: Configuration) -> Correction | None:
    """Returns the residual in force; None: nothing was measured while serving."""
    return _residuals.get(key)


@dataclass(frozen=True, slots=True)
class Basis:
    """The ground of a configuration's figures. `measured_at_s`: Unix seconds; None: not known, or nothing measured."""

    source: Source
    measured_at_s: float | None

    @property
    def only_modelled(self) -> bool:
        """Says whether nothing was measured of the configuration."""
        return self.source in (Source.MODELLED, Source.DATA_SHEET)


def basis(key: Configuration) -> Basis:
    """Returns what predictions of a configuration rest on, inside what was measured, and of when that is."""
    profile, residual = _profiles.get(key), _residuals.get(key)
    if residual is not None:
        return Basis(residual.source, residual.at_s)
    if profile is not None:
        return Basis(profile.source, profile.measured_at_s)
    return Basis(modelled_source(key.engine, key.gpu), None)


def engine_costs(model: str, gpu: str, tp: int, engine: str) -> ProfiledEngine | EngineModel:
    """Returns what predicts a configuration's iterations best: its profile, else the closed form.

    Raises UnknownConfiguration.
    """
    return _costs(configuration(model, gpu, tp, engine))


@cached(maxsize=1024)
def _costs(key: Configuration) -> ProfiledEngine | EngineModel:
    if (profile := _profiles.get(key)) is not None:
        return ProfiledEngine(profile, _residuals.get(key))
    return engine_model(*key)


@cached(maxsize=1024)
def uncalibrated(key: Configuration) -> ProfiledEngine | EngineModel:
    """Returns what residuals are relative to. Raises UnknownConfiguration."""
    profile = _profiles.get(key)
    return closed_form(*key) if profile is None else ProfiledEngine(profile)


def _versions(given: Mapping[Configuration, Profile]) -> dict[Configuration, str]:
    return {key: one.version for key, one in given.items()}


def _renew() -> None:
    """Corrects the closed form by profiles and residuals together, and forgets what rested on those before."""
    parameter_caches.clear()
    found: dict[Configuration, Correction] = {}
    for key in _profiles.keys() | _residuals.keys():
        try:
            found[key] = _together(key)
        except ValueError:  # of a GPU that no closed form knows, or a profile without sense
            continue
    correct(found)


def _together(key: Configuration) -> Correction:
    residual = _residuals.get(key)
    time, power = [1.0] * KNOTS, [1.0] * KNOTS
    at_s = None
    if (profile := _profiles.get(key)) is not None:
        engine = ProfiledEngine(profile)
        scales = [engine.scale(mhz) for mhz in knots_mhz(engine.gpu_params)]
        time, power = [scale.time for scale in scales], [scale.power for scale in scales]
        at_s = profile.measured_at_s
    if residual is not None:
        time = [own * more for own, more in zip(time, residual.time, strict=True)]
        power = [own * more for own, more in zip(power, residual.power, strict=True)]
        at_s = residual.at_s
    return Correction(_bounded(time), _bounded(power), Source.CALIBRATED, at_s)


def _bounded(factors: Iterable[float]) -> tuple[float, ...]:
    low, high = BOUNDS
    return tuple(min(max(value, low), high) for value in factors)
