"""What messages say of measurements is put in force: profiles by version, residuals by clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.engine import measured
from core.engine.corrections import KNOTS, configuration
from core.engine.profiles import Profile, profiles_of
from core.types import Source
from pools import wire
from pools.measured_engines import ReadProfiles, put_in_force
from tests.fakes.engine_profiles import ENGINE, GPU, MODEL, rows

KEY = configuration(MODEL, GPU, 1, ENGINE)


@pytest.fixture(autouse=True)
def _nothing_measured() -> Iterator[None]:
    yield
    measured.publish(())
    measured.calibrate({})


def profile(slower: float = 1.25) -> Profile:
    (found,) = profiles_of(rows(slower, measured_at="2026-11-02T08:30:00Z"))
    return found


def named(version: str = "", *factors: float) -> list[wire.MeasuredEngine]:
    time, power = ((factor,) * KNOTS for factor in factors) if factors else ((), ())
    return [wire.MeasuredEngine(*KEY, version, time, power, 300.0 if factors else None)]


def test_a_profile_travels_whole() -> None:
    sent = profile()
    found = wire.decode_profile(wire.encode_profile(sent))
    assert found == sent
    assert (found.version, found.measured_at_s, found.source) == (sent.version, sent.measured_at_s, Source.MEASURED)


def test_a_version_is_read_once_while_it_is_named() -> None:
    sent, read = profile(), ReadProfiles()
    assert read.missing(named(sent.version)) == [sent.version]
    read.add({sent.version: None})
    assert read.missing(named(sent.version)) == [sent.version]
    read.add({sent.version: wire.encode_profile(sent)})
    assert (read.missing(named(sent.version)), read.profiles()) == ([], [sent])
    assert (read.missing(named()), read.profiles()) == ([], [])


def test_what_cannot_be_read_is_left_aside_and_not_asked_for_again() -> None:
    read = ReadProfiles()
    read.missing(named("v"))
    read.add({"v": b"{"})
    assert (read.missing(named("v")), read.profiles()) == ([], [])


def test_published_profiles_count_before_own_ones_and_residuals_beside_them() -> None:
    own, sent = profile(2.0), profile()
    assert put_in_force((), (), (own,))
    assert measured.profile_of(KEY) == own
    assert put_in_force(named(sent.version, 1.1, 0.9), (sent,), (own,))
    assert measured.profile_of(KEY) == sent
    assert measured.basis(KEY) == measured.Basis(Source.CALIBRATED, 300.0)
    assert not put_in_force(named(sent.version, 1.1, 0.9), (sent,), (own,))
    assert put_in_force((), ())
    assert measured.basis(KEY) == measured.Basis(Source.MODELLED, None)


def test_a_residual_beyond_reason_is_left_aside() -> None:
    assert not put_in_force(named("", 9.0, 1.0), ())
