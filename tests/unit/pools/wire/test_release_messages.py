"""Messages as releases sent them: today's types read the same from them, and write what they read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from greenserve.env import ROOT
from pools import wire
from tests.fakes.release import messages

FIXTURES = ROOT / "tests" / "fixtures"
RECORDED: list[dict[str, Any]] = [
    record | {"release": file.parent.name}
    for file in sorted(FIXTURES.glob("release_*/messages.json"))
    for record in json.loads(file.read_text())
]
NOT_YET_RELEASED = {
    "DiskState",
    "EngineBoard",
    "EnginePaces",
    "FleetAdapter",
    "FleetIndex",
    "GatewayBoards",
    "GatewayUse",
    "HostSampleRow",
    "MeasuredEngine",
    "ModelOnDisk",
    "NodeFinds",
    "NodeCertificate",
    "OpenRequests",
    "RefusingBudget",
    "RequestLimits",
    "UnreachableEngine",
}  # types newer than the last release: the next one records them


def assert_said(now: Any, then: Any) -> None:
    """What was said then is said now; fields that came since are another matter."""
    if isinstance(then, dict):
        for name, value in then.items():
            assert_said(now[name], value)
    elif isinstance(then, list):
        assert len(now) == len(then)
        for one, other in zip(now, then, strict=True):
            assert_said(one, other)
    else:
        assert now == then


def read(record: dict[str, Any]) -> wire.Message:
    kind: type[wire.Message] = getattr(wire, record["kind"])
    return wire.decode(messages.sent(record), kind)


@pytest.mark.parametrize("record", RECORDED, ids=lambda record: f"{record['release']}-{record['kind']}")
def test_a_released_message_says_the_same_when_read_by_todays_types(record: dict[str, Any]) -> None:
    found = read(record)
    assert_said(messages.says(found), record["says"])
    assert wire.decode(wire.encode(found), type(found)) == found


def test_each_type_of_message_has_an_example_when_there_is_one() -> None:
    shown = {kind for message in messages.every().values() for kind in messages.kinds(message)}
    assert messages.all_kinds() - shown == set(), "show it in tests/fakes/release/messages.py"


def test_each_type_of_message_is_recorded_when_it_was_released() -> None:
    recorded = {kind.__name__ for record in RECORDED for kind in messages.kinds(read(record))}
    there = {kind.__name__ for kind in messages.all_kinds()}
    assert there - recorded == NOT_YET_RELEASED


def test_examples_leave_no_field_at_its_default_when_messages_are_recorded() -> None:
    """Else a later version could lose a field, and nobody would see it."""
    seen: dict[type, set[str]] = {kind: set() for kind in messages.all_kinds()}
    for message in messages.every().values():
        for part in messages.parts(message):
            for name, default in zip(
                reversed(part.__struct_fields__), reversed(part.__struct_defaults__), strict=False
            ):
                if getattr(part, name) != default:
                    seen[type(part)].add(name)
    unset = {
        kind.__name__: left
        for kind, found in seen.items()
        if (left := set(kind.__struct_fields__[len(kind.__struct_fields__) - len(kind.__struct_defaults__) :]) - found)
    }
    assert unset == {"SimulationUpdate": {"error"}}  # with figures there is no error
