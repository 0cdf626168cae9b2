"""What throttLL'eM's autoscaler is given, from plain values."""

from __future__ import annotations

import pytest

from core.controllers.fleet.autoscale import EngineSize
from core.engine.measured import Basis
from core.observations.fleet.autoscale_given import largest_tp, observation, profiled, sizes
from core.types import ClassDemand, Mode, ModeProfile, PartitionOption, Source

A, H = "A100-80GB", "H100-SXM-80GB"
RATES = {Mode(A, 8): 9.0, Mode(A, 1): 0.0, Mode(A, 2): 4.0, Mode(A, 4): 3.0, Mode(H, 1): 0.0, Mode(H, 2): 5.0}
MODELLED = Basis(Source.MODELLED, None)
SPAWN_S = {mode: 10.0 * mode.tp for mode in RATES}


@pytest.mark.parametrize(
    ("most_tp", "caps", "expected"),
    [
        (8, {}, {A: [(2, 4.0), (8, 9.0)], H: [(2, 5.0)]}),
        (4, {}, {A: [(2, 4.0)], H: [(2, 5.0)]}),
        (1, {}, {A: [(2, 4.0)], H: [(2, 5.0)]}),
        (8, {1: 1.0, 4: 6.0}, {A: [(1, 1.0), (2, 4.0), (4, 6.0), (8, 9.0)], H: [(1, 1.0), (2, 5.0)]}),
    ],
)
def test_sizes_rise_in_what_they_carry(
    most_tp: int, caps: dict[int, float], expected: dict[str, list[tuple[int, float]]]
) -> None:
    found = sizes(RATES, caps, most_tp, SPAWN_S, dict.fromkeys(RATES, MODELLED))
    assert found == {
        gpu: tuple(
            EngineSize(Mode(gpu, tp), rps, 10.0 * tp, None if tp in caps else MODELLED)  # a set rate rests on nothing
            for tp, rps in own
        )
        for gpu, own in expected.items()
    }


def test_engines_have_equal_parts_of_the_load() -> None:
    assert observation(5.0, "one", Mode(A, 2), None, 6.0, 3).rps == 2.0
    assert observation(5.0, "one", Mode(A, 2), Mode(A, 4), None, 3).rps is None


def test_first_engines_are_as_large_as_the_model_needs_and_carry_what_was_profiled() -> None:
    def profile(rps: float) -> ModeProfile:
        return ModeProfile(rps, 100.0, None, None, None, Source.MODELLED)

    rates = {("ALL", Mode("A", tp)): profile(rps) for tp, rps in ((2, 0.0), (4, 3.0), (8, 7.0))}
    option = PartitionOption("whole", (ClassDemand("ALL", (1.0,)),), rates)
    assert [largest_tp(option, tp) for tp in (2, 4, 8)] == [4, 4, 8]
    found = profiled(option, {2: 1.5, 4: 2.5}).profiles
    assert {mode.tp: own.max_rps for (_, mode), own in found.items()} == {2: 1.5, 4: 2.5, 8: 7.0}
