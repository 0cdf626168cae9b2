"""Published overheads: DynamoLLM's tables V and VI, clock switches, and what follows from them."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.engine.overheads import (
    LAYOUTS,
    TABLE_VI,
    Overheads,
    clock_switch_s,
    cold_start_s,
    neediest_units,
    reshard_s,
    reshard_units,
    transition,
    weight_bytes,
)

H100, A100 = "H100-SXM-80GB", "A100-80GB"
PUBLISHED = """
        TP2 4TP2 TP4 TP2+TP4 2TP4 TP8
TP2     0   4    2   2       2    1
4TP2    0   0    0   0       0    0
TP4     2   2    0   2       2    1
TP2+TP4 0   2    0   0       1    1
2TP4    1   1    0   1       0    0
TP8     1   1    1   1       1    0
"""


def degrees(layout: str) -> list[int]:
    """Of TP2+TP4 or 4TP2."""
    parts = [part.partition("TP") for part in layout.split("+")]
    return [int(tp) for count, _, tp in parts for _ in range(int(count or 1))]


def cells():
    header, *rows = PUBLISHED.strip().splitlines()
    for row in rows:
        source, *values = row.split()
        for target, value in zip(header.split(), values, strict=True):
            yield source, target, int(value)


@pytest.mark.parametrize(("source", "target", "units"), list(cells()))
def test_units_are_those_of_table_vi_when_it_has_the_cell(source, target, units):
    assert reshard_units(degrees(source), degrees(target)) == units


def test_table_is_whole():
    assert len(TABLE_VI) == len(LAYOUTS) ** 2 == 36


@pytest.mark.parametrize("cell", list(TABLE_VI))
def test_estimate_is_never_less_than_the_table(cell):
    assert neediest_units(*cell) >= TABLE_VI[cell] or cell[0] == cell[1]


@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4), st.sampled_from([1, 2, 4, 8]))
def test_units_are_finite_and_nothing_moves_when_nothing_changes(source, tp):
    assert 0.0 <= reshard_units(source, [tp]) <= 8.0
    assert reshard_units(source, list(reversed(source))) == 0.0


def test_units_are_refused_when_a_layout_is_empty():
    with pytest.raises(ValueError, match="at least one instance"):
        reshard_units([], [8])


def test_t_is_about_50_ms_when_llama2_70b_moves_over_nvlink():
    assert reshard_s([4], [8], weight_bytes("Llama2-70B")) == pytest.approx(0.05, rel=0.2)


def test_start_takes_6_to_8_minutes_when_nothing_is_ready():
    cold_s = cold_start_s(Overheads(), warm=False, weights_cached=False)
    assert 6 * 60 <= cold_s <= 8 * 60
    assert cold_s == sum(astuple(Overheads().start))


def test_start_skips_steps_when_the_server_is_warm_and_weights_are_cached():
    o = Overheads()
    assert cold_start_s(o) == 33.0
    assert cold_start_s(o, warm=True, weights_cached=False) == 33.0 + 180.0
    assert cold_start_s(o, warm=False, weights_cached=True) == 33.0 + 210.0


def test_start_moves_fewer_bytes_when_the_model_is_smaller():
    o = Overheads()
    assert cold_start_s(o, model_name="Llama2-70B") == 33.0
    assert 18.0 < cold_start_s(o, model_name="Llama2-13B") < 22.0


def test_clock_switch_is_the_published_one_by_gpu_type():
    o = Overheads()
    assert clock_switch_s(o, H100, 8) == 0.065
    assert clock_switch_s(o, A100, 8) == 0.2
    assert clock_switch_s(o, "V100-16GB", 1) == 0.2  # not published: the slowest that is


def test_clock_switch_is_bound_by_its_calls_when_there_are_many_gpus():
    assert clock_switch_s(Overheads(), H100, 16) == pytest.approx(16 * 0.008)


def test_old_instance_loses_nothing_when_tp_grows():
    found = transition("Llama2-70B", H100, [4], [8], Overheads())
    assert (found.kv_share, found.sync_s) == (1.0, 0.0)
    assert found.transfer_s == pytest.approx(0.05 + 0.95, rel=0.02)


def test_old_instance_has_less_cache_when_tp_shrinks():
    found = transition("Llama2-70B", H100, [8], [4], Overheads())
    assert 0.0 < found.kv_share < 1.0
    assert found.sync_s == 0.0  # weights of both fit on a GPU: it serves through


def test_nobody_serves_during_synchronisation_when_both_do_not_fit():
    found = transition("Llama2-70B", H100, [2, 2], [4], replace(Overheads(), sync_s=2.0))
    assert found.sync_s == 2.0
    assert found.kv_share == 1.0


def test_old_instance_is_gone_first_when_the_weights_do_not_fit_beside_it():
    found = transition("Llama2-70B", H100, [4], [2, 2], Overheads())
    assert 0.0 < found.kv_share < 1.0
    small = transition("Falcon-180B", H100, [8], [4, 4], Overheads())
    assert small.transfer_s == 0.0
    assert small.sync_s > Overheads().sync_s
