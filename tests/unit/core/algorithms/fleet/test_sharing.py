from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.fleet.sharing import Lack, NodeGpus, ServiceNeed, claims, fair_parts, whole_nodes
from core.types import Mode

A = "A100-80GB"
NODES = tuple(NodeGpus("here", f"n{n}", A, gpus) for n, gpus in enumerate((8, 4, 8)))
CARRIES = {("here", Mode(A, tp)): rps for tp, rps in ((1, 1.0), (2, 2.5), (4, 6.0))}
LARGE = {("here", Mode(A, 4)): 2.0}


def need(name: str, used: dict[str, int] | None = None, *lacks: float, carries=CARRIES) -> ServiceNeed:
    at = {("here", node, A): gpus for node, gpus in (used or {}).items()}
    return ServiceNeed(name, at, tuple(Lack(rps, carries) for rps in lacks))


def gpus(own) -> int:
    return sum(own.values())


NEEDS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 40), min_size=1)


@given(st.integers(0, 60), NEEDS)
def test_fair_parts_give_small_needs_in_full_and_the_rest_equally(total, needs):
    parts = fair_parts(total, needs, dict.fromkeys(needs, 0))
    assert sum(parts.values()) == min(total, sum(needs.values()))
    assert all(parts[name] <= needs[name] for name in needs)
    short = [parts[name] for name in needs if parts[name] < needs[name]]
    assert not short or max(parts.values()) - min(short) <= 1


@given(st.integers(0, 60), NEEDS, st.integers(0, 12))
def test_fair_parts_begin_with_what_everybody_needs_at_least(total, needs, least):
    parts = fair_parts(total, needs, dict.fromkeys(needs, least))
    if sum(min(least, need) for need in needs.values()) <= total:
        assert all(parts[name] >= min(least, need) for name, need in needs.items())
    assert sum(parts.values()) == min(total, sum(needs.values()))


def test_all_is_left_when_a_service_is_alone():
    assert claims(NODES, [need("chat", {"n0": 8}, 40.0)]).left("chat") == NODES


def test_instances_of_most_load_a_gpu_are_reserved_on_the_fullest_node():
    found = claims(NODES, [need("chat", {"n0": 5}), need("code", {}, 7.0)])
    assert dict(found.reserved["code"]) == {("here", "n1", A): 4, ("here", "n0", A): 1}
    assert {node.node: node.gpus for node in found.left("chat")} == {"n0": 7, "n2": 8}
    assert {node.node: node.gpus for node in found.left("code")} == {"n0": 3, "n1": 4, "n2": 8}


def test_service_above_its_fair_part_has_to_give_back_when_nothing_is_free():
    all_of_it = {"n0": 8, "n1": 4, "n2": 8}
    found = claims(NODES, [need("chat", all_of_it), need("code", {}, 12.0)])
    assert gpus(found.reserved["code"]) == 8
    assert sum(node.gpus for node in found.left("chat")) == 12
    assert sum(node.gpus for node in found.left("code")) == 8
    assert gpus(found.given_back["chat"]) == 8


def test_service_within_its_fair_part_gives_nothing_back():
    found = claims(NODES, [need("chat", {"n0": 8, "n1": 2}), need("code", {"n1": 2, "n2": 8}, 40.0)])
    assert found.reserved["code"] == {}


def test_instance_of_each_class_comes_before_equal_parts():
    """Of 6 GPUs 3 are an equal part, and an instance takes 4."""
    nodes = (NodeGpus("here", "n0", A, 6),)
    found = claims(nodes, [need("chat", {"n0": 6}, 9.0), need("code", {}, 1.0, carries=LARGE)])
    assert gpus(found.reserved["code"]) == 4
    assert [node.gpus for node in found.left("chat")] == [2]
    classes = claims(nodes, [need("chat", {}, 90.0), need("code", {}, 0.1, 0.1, 0.1, 0.1)])
    assert gpus(classes.reserved["code"]) == 4


def test_use_somewhere_at_a_site_is_taken_from_the_smallest_rooms():
    anywhere = ServiceNeed("chat", {("here", "", A): 5})
    assert claims(NODES, [anywhere]).used["chat"] == {("here", "n1", A): 4, ("here", "n0", A): 1}


def test_what_stands_on_a_node_comes_before_what_another_is_to_have_anywhere():
    anywhere = ServiceNeed("chat", {("here", "", A): 4})
    found = claims(NODES, [anywhere, need("code", {"n1": 4})]).used
    assert found["code"] == {("here", "n1", A): 4}
    assert found["chat"] == {("here", "n0", A): 4}


@st.composite
def drawn(draw) -> list[ServiceNeed]:
    free = {node.node: node.gpus for node in NODES}
    found = []
    for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True)):
        used = {node: draw(st.integers(0, left)) for node, left in free.items()}
        free = {node: left - used[node] for node, left in free.items()}
        lacks = draw(st.lists(st.floats(0.1, 30.0), max_size=4))
        found.append(need(name, used, *lacks, carries=draw(st.sampled_from([CARRIES, LARGE]))))
    return found


@given(drawn())
def test_claims_never_exceed_a_node(services):
    found = claims(NODES, services)
    for node in NODES:
        claimed = [own.get(node.place, 0) for held in (found.used, found.reserved) for own in held.values()]
        assert min(claimed) >= 0
        assert sum(claimed) <= node.gpus


@given(drawn())
def test_what_is_left_to_a_service_has_its_own_claims_in_it(services):
    found = claims(NODES, services)
    for own in services:
        left = {node.place: node.gpus for node in found.left(own.name)}
        mine = Counter(found.used[own.name]) + Counter(found.reserved[own.name])
        assert all(left.get(place, 0) >= count for place, count in mine.items())


@given(drawn())
def test_only_what_a_service_has_above_its_fair_part_is_taken_from_it(services):
    found = claims(NODES, services)
    smallest = {own.name: sum(min(m.tp for _, m in lack.carries) for lack in own.lacks) for own in services}
    parts = fair_parts(20, {own.name: 20 for own in services}, smallest)  # those of real needs are no smaller
    for own in services:
        assert gpus(found.used[own.name]) >= min(gpus(own.used), parts[own.name])


@given(drawn())
def test_order_of_services_has_no_effect(services):
    assert claims(NODES, services) == claims(NODES, list(reversed(services)))


@given(drawn())
def test_somebody_with_more_than_an_equal_part_leaves_nobody_without(services):
    found = claims(NODES, services)
    without = [own for own in services if own.lacks and not gpus(own.used) + gpus(found.reserved[own.name])]
    # What is left in no place makes one instance: every other one is within its fair part there.
    for own in without:
        fits = min(mode.tp for _, mode in own.lacks[0].carries)
        assert all(node.gpus < fits for node in found.left(own.name))


# -- whole nodes -----------------------------------------------------------------------------------


def share(nodes, needs, able=lambda name, node: True, lot=lambda node: node.site):
    return whole_nodes(nodes, needs, lambda name, node: float(node.gpus) if able(name, node) else 0.0, lot)


def test_nodes_of_one_site_go_to_the_service_that_is_carried_least():
    nodes = [NodeGpus("here", f"n{n}", A, 8) for n in range(6)]
    found = share(nodes, {"chat": 4.0, "code": 1.0})
    assert {name: len(own) for name, own in found.items()} == {"chat": 5, "code": 1}


def test_services_take_sites_of_their_own_when_there_are_several():
    nodes = [NodeGpus("large", "n0", A, 8), NodeGpus("large", "n1", A, 8), NodeGpus("small", "n2", A, 4)]
    found = share(nodes, {"chat": 1.0, "code": 4.0})
    assert found == {"code": tuple(nodes[:2]), "chat": (nodes[2],)}


def test_service_without_a_node_is_named():
    with pytest.raises(ValueError, match="code"):
        share([NodeGpus("here", "n0", A, 8)], {"chat": 4.0, "code": 1.0})
    with pytest.raises(ValueError, match="code"):
        share(NODES, {"chat": 4.0, "code": 1.0}, able=lambda name, node: name == "chat")
