from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.fleet.gpu_parts import Ask, Share, gpu_parts

ALL = frozenset({"a100"})
SHARES = st.builds(
    lambda weight, floor, above: Share(weight, floor, None if above is None else max(1, floor) + above),
    st.sampled_from([0.5, 1.0, 2.0, 3.0]),
    st.integers(0, 12),
    st.none() | st.integers(0, 20),
)


def asks(needs: dict[str, int], **shares: Share) -> dict[str, Ask]:
    return {name: Ask(need, ALL, share=shares.get(name, Share())) for name, need in needs.items()}


@st.composite
def drawn(draw) -> dict[str, Ask]:
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
    return {name: Ask(draw(st.integers(0, 40)), ALL, share=draw(SHARES)) for name in names}


@given(st.integers(0, 60), drawn())
def test_everything_is_given_that_somebody_may_have(total, found):
    parts = gpu_parts({"a100": total}, found)
    assert sum(parts.values()) == min(total, sum(own.share.most(own.wanted) for own in found.values()))
    assert all(parts[name] <= own.share.most(own.wanted) for name, own in found.items())


@given(st.integers(0, 60), drawn())
def test_nobody_has_more_for_its_weight_than_one_that_lacks_more(total, found):
    """Beyond floors, one GPU less of another would leave it with less for its weight than this one."""
    parts = gpu_parts({"a100": total}, found)
    for name, own in found.items():
        if parts[name] >= own.share.most(own.wanted):
            continue
        for other, its in found.items():
            if other != name and parts[other] > max(1, its.share.min_gpus):
                assert (parts[other] - 1) / its.share.weight <= parts[name] / own.share.weight


@given(st.integers(0, 60), drawn())
def test_floors_come_before_anything_beyond_an_instance_of_others(total, found):
    promised = sum(min(max(1, own.share.min_gpus), own.share.most(own.wanted)) for own in found.values())
    if promised <= total:
        parts = gpu_parts({"a100": total}, found)
        for name, own in found.items():
            assert parts[name] >= min(own.share.min_gpus, own.share.most(own.wanted))


@given(st.integers(0, 60), drawn())
def test_order_of_services_has_no_effect(total, found):
    backwards = dict(reversed(found.items()))
    assert gpu_parts({"a100": total}, found) == gpu_parts({"a100": total}, backwards)


def test_weights_share_what_is_scarce():
    assert gpu_parts({"a100": 12}, asks({"a": 40, "b": 40}, b=Share(2.0))) == {"a": 4, "b": 8}


def test_what_one_does_not_need_is_the_others():
    assert gpu_parts({"a100": 12}, asks({"a": 40, "b": 2}, b=Share(9.0))) == {"a": 10, "b": 2}


def test_floor_that_is_not_needed_is_the_others():
    assert gpu_parts({"a100": 12}, asks({"a": 40, "b": 2}, b=Share(min_gpus=8))) == {"a": 10, "b": 2}


def test_ceiling_holds_where_gpus_are_free():
    assert gpu_parts({"a100": 12}, asks({"a": 40, "b": 2}, a=Share(max_gpus=4))) == {"a": 4, "b": 2}


def test_everybody_has_an_instance_before_anybody_has_its_floor():
    found = asks({"a": 40, "b": 40}, a=Share(min_gpus=8))
    found["b"] = replace(found["b"], unit=4)
    assert gpu_parts({"a100": 8}, found) == {"a": 4, "b": 4}


def test_gpus_of_which_no_instance_can_be_made_are_the_others():
    found = asks({"a": 40, "b": 40})
    found["a"] = replace(found["a"], unit=4)
    assert gpu_parts({"a100": 10}, found) == {"a": 4, "b": 6}


def test_service_of_one_kind_has_others_move_to_kinds_of_their_own():
    both = frozenset({"a100", "h100"})
    found = {"a": Ask(4, both), "b": Ask(4, frozenset({"a100"})), "c": Ask(4, frozenset({"h100"}))}
    assert gpu_parts({"a100": 6, "h100": 6}, found) == {"a": 4, "b": 4, "c": 4}
    assert gpu_parts({"a100": 4, "h100": 6}, found) == {"a": 4, "b": 3, "c": 3}


def test_instance_whose_gpus_are_not_all_there_leaves_everything_as_it_was():
    both = frozenset({"a100", "h100"})
    found = {"a": Ask(2, both), "b": Ask(8, frozenset({"a100"}), unit=4)}
    assert gpu_parts({"a100": 3, "h100": 1}, found) == {"a": 2, "b": 0}


@pytest.mark.parametrize(
    ("share", "words"),
    [
        ({"weight": 0.0}, "weight: 0 is not a weight; give a number above 0"),
        ({"min_gpus": -1}, "min_gpus: must be at least 0"),
        ({"min_gpus": 8, "max_gpus": 4}, "max_gpus: 4 is below min_gpus, 8; raise it, or lower min_gpus"),
        ({"max_gpus": 0}, "max_gpus: 0 is below 1; leave it out"),
    ],
)
def test_share_that_cannot_be_meant_names_its_field(share, words):
    with pytest.raises(ValueError, match=words):
        Share(**share)
