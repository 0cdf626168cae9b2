from __future__ import annotations

import pytest

from core.simulator.lab.ablation import ALONE, HOUR, NOTHING, OFF, SEEDS, WHOLE, Estimate, chart, saving, share, table

FLEET, CLOCK = OFF[:2]
FLEET_ALONE = ALONE[0]


def run(energy_wh: float) -> dict[str, float]:
    return {"energy_wh": energy_wh, "slo_attainment": 0.99}


def results(noise: float = 0.0) -> dict[str, dict[str, float]]:
    """100 Wh with nothing of it, 60 with all; every seed takes more than the one before, all variants alike."""
    energies_wh = {own.label: 60.0 for own in OFF} | {own.label: 70.0 for own in ALONE}
    energies_wh |= {NOTHING.label: 100.0, WHOLE.label: 60.0, FLEET.label: 70.0, CLOCK.label: 90.0}
    return {
        own.named(seed): run(energies_wh[own.label] * (1.0 + noise * (seed or 0)))
        for own in (NOTHING, WHOLE, *OFF, *ALONE)
        for seed in (*HOUR, *SEEDS)
    }


def test_share_is_what_is_lost_without_an_idea_and_what_it_saves_alone() -> None:
    found = results()
    assert saving(found, SEEDS).mean == pytest.approx(40.0)
    assert [share(found, own, SEEDS).mean for own in (FLEET, CLOCK)] == pytest.approx([25.0, 75.0])
    assert share(found, FLEET_ALONE, SEEDS).mean == pytest.approx(75.0)


def test_seeds_are_compared_in_pairs_when_they_differ_in_load() -> None:
    assert share(results(noise=0.1), CLOCK, SEEDS).half == pytest.approx(0.0, abs=1e-9)


def test_interval_is_students_t_and_one_run_has_none() -> None:
    # Of 1 to 10: mean 5.5, standard deviation 3.0277, t of 9 degrees 2.2622 (tables of Student's t).
    assert str(Estimate.of([float(n) for n in range(1, 11)])) == "5.5 ± 2.2"
    # Of 1 to 5: mean 3, standard deviation 1.5811, t of 4 degrees 2.7764 (tables of Student's t).
    assert str(Estimate.of([float(n) for n in range(1, 6)])) == "3.0 ± 2.0"
    assert str(Estimate.of([5.0])) == "5.0"


def test_table_and_picture_have_all_ideas() -> None:
    rows = table(results()).rows
    assert len(rows) == 1 + len(OFF) + len(ALONE)
    assert rows[0] == ("greenserve", "40.0 ± 0.0", "0.9900", "40.0", "0.9900")
    assert [bar.label for bar in chart(results()).bars] == [own.label for own in (*OFF, *ALONE)]
