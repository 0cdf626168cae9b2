"""Laws of host shares: every microjoule is somebody's, in proportion, whatever the order of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.accounting.host_shares import HostShares, share_hosts

COLUMNS = ("gpu", "interval", "kind", "instance", "energy_uj", "gpu_us")
ENTRY = st.tuples(
    st.integers(1, 6),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(0, 10**10),
    st.integers(1, 10**7),
)
HOST = st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 10**10))


def of(entries: list[tuple[int, ...]], hosts: list[tuple[int, ...]]) -> HostShares:
    """GPUs 1 and 2 are of node 0, 3 and 4 of node 1, and so on."""
    table = np.array(entries, dtype=np.int64).reshape(-1, len(COLUMNS))
    columns = {name: table[:, at] for at, name in enumerate(COLUMNS)}
    other = np.array(hosts, dtype=np.int64).reshape(-1, 3)
    names = dict(zip(("node", "interval", "energy_uj"), other.T, strict=True))
    return share_hosts((columns["gpu"] - 1) // 2, columns, names)


@given(
    st.lists(ENTRY, max_size=30, unique_by=lambda row: row[:4]),
    st.lists(HOST, max_size=12, unique_by=lambda row: row[:2]),
)
def test_shares_add_up_to_the_hosts_to_the_last_microjoule(
    entries: list[tuple[int, ...]], hosts: list[tuple[int, ...]]
) -> None:
    found = of(entries, hosts)
    assert int(found.host_uj.sum()) + int(found.alone_uj.sum()) == sum(row[2] for row in hosts)
    assert np.all(found.host_uj >= 0)
    metered = {row[:2] for row in hosts}
    for row, host_uj, known_uj in zip(entries, found.host_uj.tolist(), found.known_uj.tolist(), strict=True):
        cell = ((row[0] - 1) // 2, row[1])
        assert known_uj == (row[4] if cell in metered else 0)
        assert host_uj == 0 or cell in metered
    taken = {((row[0] - 1) // 2, row[1]) for row in entries}
    assert sorted(found.alone_interval.tolist()) == sorted(row[1] for row in hosts if row[:2] not in taken)


@given(st.lists(ENTRY, min_size=1, max_size=12, unique_by=lambda row: row[:4]), st.integers(0, 10**10), st.randoms())
def test_share_of_an_entry_is_the_same_in_any_order(entries: list[tuple[int, ...]], uj: int, random: object) -> None:
    hosts = [(node, interval, uj) for node in range(3) for interval in range(4)]
    mixed = list(entries)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    there = dict(zip(entries, of(entries, hosts).host_uj.tolist(), strict=True))
    assert there == dict(zip(mixed, of(mixed, hosts).host_uj.tolist(), strict=True))


def test_entries_share_by_energy_and_by_time_where_there_is_none() -> None:
    by_energy = [(1, 0, 0, 5, 600, 10), (2, 0, 1, 0, 200, 10), (3, 0, 1, 0, 999, 10)]
    assert of(by_energy, [(0, 0, 80)]).host_uj.tolist() == [60, 20, 0]
    by_time = [(1, 0, 0, 5, 0, 30), (2, 0, 1, 0, 0, 10)]
    assert of(by_time, [(0, 0, 80)]).host_uj.tolist() == [60, 20]


def test_nothing_is_shared_when_there_is_nothing() -> None:
    found = of([], [])
    assert (len(found.host_uj), len(found.alone_uj)) == (0, 0)
    alone = of([], [(2, 7, 55)])
    assert (alone.alone_interval.tolist(), alone.alone_uj.tolist()) == ([7], [55])


@pytest.mark.parametrize("uj", [1, 7, 10**10 + 1])
def test_each_share_is_within_one_of_its_exact_value(uj: int) -> None:
    entries = [(1, 0, 0, n, 1 + 3 * n, 1) for n in range(7)]
    whole = sum(row[4] for row in entries)
    for row, share in zip(entries, of(entries, [(0, 0, uj)]).host_uj.tolist(), strict=True):
        assert abs(share - uj * row[4] / whole) <= 1.0
