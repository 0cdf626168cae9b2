"""Each number that a policy can be given has limits at both ends."""

import typing
from dataclasses import fields

import pytest

from core.policy import presets
from core.policy.knobs import Knobs
from core.policy.tuning import Tuning
from core.policy.value_rules import checked, kinds, limits_of

RECORDS = (Knobs, *(typing.get_type_hints(Tuning)[item.name] for item in fields(Tuning)))
NUMBERS = [
    (record, item)
    for record in RECORDS
    for item in fields(record)
    if {int, float, dict} & set(kinds(record)[item.name]) or item.name == "group_gpus"
]


@pytest.mark.parametrize(("record", "item"), NUMBERS, ids=lambda one: getattr(one, "name", ""))
def test_number_has_both_limits(record, item):
    limits = limits_of(item)
    assert (limits["least"], limits["above"]) != (None, None), "say least or above, or end its name with its unit"
    assert (limits["most"], limits["below"]) != (None, None), "say most or below, or end its name with its unit"
    highest = limits["most"] if limits["most"] is not None else limits["below"]
    kind = kinds(record)[item.name]
    beyond = int(highest) * 10 + 10 if int in kind or tuple in kind else highest * 10.0 + 10.0
    value = {"tp1": beyond} if dict in kind else (beyond,) if tuple in kind else beyond
    with pytest.raises(ValueError, match=rf"{item.name}.*: must be (at most|below) "):
        checked(record, item, value)


def test_values_of_presets_are_within_their_limits():
    for preset in presets.PRESETS.values():
        for item in fields(Knobs):
            checked(Knobs, item, getattr(preset.knobs, item.name))
