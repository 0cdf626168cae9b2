from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.fleet.gpu_parts import EQUAL, Ask, Share, gpu_parts
from core.algorithms.fleet.sharing import Lack, NodeGpus, ServiceNeed, Shortage, claims
from core.types import Mode

A = "A100-80GB"
NODES = tuple(NodeGpus("here", f"n{n}", A, gpus) for n, gpus in enumerate((8, 4, 8)))
CARRIES = {("here", Mode(A, tp)): rps for tp, rps in ((1, 1.0), (2, 2.5), (4, 6.0))}
LARGE = {("here", Mode(A, 4)): 2.0}


def need(
    name: str, used: dict[str, int] | None = None, *lacks: float, carries=CARRIES, share: Share = EQUAL
) -> ServiceNeed:
    at = {("here", node, A): gpus for node, gpus in (used or {}).items()}
    return ServiceNeed(name, at, tuple(Lack(rps, carries) for rps in lacks), share)


def gpus(own) -> int:
    return sum(own.values())


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
    unit = {own.name: min((m.tp for lack in own.lacks for _, m in lack.carries), default=1) for own in services}
    asks = {own.name: Ask(20, frozenset({A}), unit[own.name], smallest[own.name]) for own in services}
    parts = gpu_parts({A: 20}, asks)  # those of real needs are no smaller
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


# -- shares, and what is short ---------------------------------------------------------------------


def left_to(found, name: str) -> int:
    return sum(node.gpus for node in found.left(name))


def test_heavier_service_takes_back_more():
    all_of_it = {"n0": 8, "n1": 4, "n2": 8}
    parts = [
        left_to(claims(NODES, [need("chat", all_of_it), need("code", {}, 60.0, share=Share(weight))]), "code")
        for weight in (0.5, 1.0, 3.0)
    ]
    assert parts == [7, 10, 15]


def test_what_a_service_has_more_than_enough_of_is_no_need():
    """It carries 36 requests/s with 24 too many: 16 GPUs at best."""
    every = {"n0": 8, "n1": 4, "n2": 8}
    found = claims(NODES, [need("chat", every, -24.0), need("code", {}, 24.0, carries=LARGE)])
    assert left_to(found, "code") == 16


def test_ceiling_binds_a_service_that_is_alone():
    found = claims(NODES, [need("chat", {"n2": 3}, 60.0, share=Share(max_gpus=6))])
    assert {node.node: node.gpus for node in found.left("chat")} == {"n2": 3, "n1": 3}
    above = claims(NODES, [need("chat", {"n0": 8, "n2": 3}, 60.0, share=Share(max_gpus=6))])
    assert left_to(above, "chat") == 6


def test_shortage_says_what_was_wanted_and_who_has_it():
    nodes = (NodeGpus("here", "n0", A, 8), NodeGpus("far", "n1", A, 8))
    chat = need("chat", {}, 12.0, carries={("here", Mode(A, 4)): 4.0})
    code = ServiceNeed("code", {("here", "n0", A): 4, ("far", "n1", A): 8}, (Lack(4.0, chat.lacks[0].carries),))
    code = replace(code, share=Share(min_gpus=12))
    found = claims(nodes, [chat, code])
    assert found.shortages["chat"] == Shortage(12, 4, 8.0, others={"code": 4})
    words = found.shortages["chat"].text("chat")
    assert words == (
        "chat gets 4 of the 12 GPUs that it needs, and 8 requests/s find no instance: of those that it can run on, "
        "code has 4."
    )


def test_shortage_by_its_own_ceiling_is_nobody_elses():
    found = claims(NODES, [need("chat", {}, 12.0, share=Share(max_gpus=4)), need("code", {"n0": 2}, 1.0)])
    assert found.shortages == {"chat": Shortage(8, 4, 7.5, max_gpus=4)}
    assert found.shortages["chat"].text("chat").endswith("requests/s find no instance: its ceiling is 4.")


def test_service_that_gives_back_what_it_needs_is_short():
    found = claims(NODES, [need("chat", {"n0": 8, "n1": 4, "n2": 8}), need("code", {}, 12.0)])
    assert found.shortages == {"chat": Shortage(20, 12, 0.0, others={"code": 8})}


def test_nothing_is_short_when_there_is_room():
    assert claims(NODES, [need("chat", {"n0": 5}, 1.0), need("code", {}, 7.0)]).shortages == {}


def test_shortage_without_anybody_else_is_the_fleets():
    found = claims(NODES, [need("chat", {}, 60.0), need("code", {})])
    assert "there are no more on which an instance of it fits" in found.shortages["chat"].text("chat")
