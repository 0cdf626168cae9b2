"""Kinds of changes: with shadows where free GPUs hold what starts, else a restart."""

from __future__ import annotations

from core.observations.fleet.change_kinds import change_kinds
from core.types import ChangeKind, Mode, PoolKey

A100 = "A100-80GB"
FREE = {"east": {1: {A100: 8}, 2: {A100: 4}}, "west": {3: {A100: 4}}}
SHADOW, RESTART = ChangeKind.SHADOW, ChangeKind.RESTART


def kinds(free, *needs):
    """Returns the kinds of pools at one site, in the order of their names."""
    pools = {PoolKey("east", f"{n}"): {Mode(A100, tp): count} for n, (tp, count) in enumerate(needs)}
    return list(change_kinds(free, pools).values())


def test_all_restart_when_no_gpus_are_free():
    assert kinds({}, (1, 1), (8, 1)) == [RESTART, RESTART]


def test_a_pool_has_shadows_when_free_gpus_hold_all_that_starts():
    assert kinds(FREE, (4, 3)) == [SHADOW]
    assert kinds(FREE, (4, 4)) == [RESTART]
    assert kinds(FREE, (16, 1)) == [RESTART]


def test_gpus_that_one_pool_needs_are_not_free_for_the_next():
    assert kinds(FREE, (4, 1), (8, 1), (1, 1)) == [SHADOW, SHADOW, RESTART]
    assert kinds(FREE, (16, 1), (8, 1)) == [RESTART, SHADOW], "none is taken for what does not fit"


def test_what_is_free_is_as_it_was_afterwards():
    before = {site: {node: dict(gpus) for node, gpus in nodes.items()} for site, nodes in FREE.items()}
    assert kinds(FREE, (4, 1)) == [SHADOW]
    assert before == FREE
