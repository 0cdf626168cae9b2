"""DynamoLLM's cluster on fleets of several sites and types of GPU."""

from __future__ import annotations

from core.controllers.fleet.shared_out import NodeView
from core.observations.fleet.dynamo_servers import Servers, layouts, server_mode, servers, servers_used, spread
from core.types import Mode, PoolKey

A100, H100 = "A100-80GB", "H100-SXM-80GB"
# FREESH's testbed, which is the demo's.
FLEET = [
    *(NodeView("one", gpu, 4) for gpu in (A100, H100)),
    *(NodeView("two", A100, gpus) for gpus in (8, 4)),
    NodeView("two", H100, 2),
    NodeView("three", A100, 8),
]


def anything(mode: Mode) -> bool:
    return True


def test_servers_are_of_the_type_that_there_is_most_of_at_all_sites() -> None:
    assert servers(FLEET, FLEET, anything) == Servers(Mode(A100, 4), {"one": 1, "two": 3, "three": 2})


def test_type_on_which_the_model_cannot_run_does_not_count() -> None:
    assert server_mode(FLEET, lambda mode: mode.gpu == H100) == Mode(H100, 2)
    assert server_mode(FLEET, lambda mode: False) is None


def test_servers_are_cut_from_what_others_leave_when_no_other_fits() -> None:
    left = [NodeView("one", A100, 2), NodeView("one", H100, 4)]
    assert servers(FLEET, left, anything) == Servers(Mode(H100, 4), {"one": 1})
    whole = [NodeView("two", A100, 4), *left]
    assert servers(FLEET, whole, anything) == Servers(Mode(A100, 4), {"one": 0, "two": 1})


def test_instances_of_other_kinds_are_on_no_server() -> None:
    cluster = Servers(Mode(A100, 4), {"one": 2})
    workers = {Mode(A100, 2): 3, Mode(A100, 8): 1, Mode(H100, 4): 1}
    assert servers_used(cluster, workers) == 2
    assert layouts(cluster, workers, {"a": (2,), "b": ()}) == {"a": (2, 2), "b": (2,)}


def test_servers_stay_where_they_are_when_a_class_gets_more() -> None:
    cluster = Servers(Mode(A100, 4), {"a": 2, "b": 3})
    present = {PoolKey("a", "S"): [(4,)], PoolKey("b", "S"): [], PoolKey("a", "L"): [], PoolKey("b", "L"): [(2, 2)]}
    found = spread(cluster, present, {"S": 2, "L": 2})
    assert (2, 2) in found[PoolKey("b", "L")]
    assert (4,) in found[PoolKey("a", "S")]
    assert {name: sum(len(own) for key, own in found.items() if key.request_class == name) for name in "SL"} == {
        "S": 2,
        "L": 2,
    }
    assert {site: sum(len(own) for key, own in found.items() if key.site == site) for site in "ab"} == {"a": 1, "b": 3}
    idle = {PoolKey("a", "S"): [(4,), ()]}
    assert spread(cluster, idle, {"S": 1}) == {PoolKey("a", "S"): [(4,)]}
    assert spread(cluster, idle, {"S": 0}) == {PoolKey("a", "S"): []}
    full = spread(cluster, present, {"S": 9})
    assert sum(len(own) for own in full.values()) == 5
