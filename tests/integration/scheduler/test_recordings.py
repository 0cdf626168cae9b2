"""Recorded epochs, taken again by the command: the same decisions, and a difference where a recording was altered."""

import json
import re

import pytest
from click.testing import CliRunner

from core.types import Loop
from greenserve.commands.decisions import decisions
from scheduler.control import epochs, service_policy
from scheduler.control.recordings import GIVEN_0_1
from scheduler.models import Epoch
from tests.fakes.house import requests_came
from tests.representatives import first

pytestmark = pytest.mark.django_db


@pytest.fixture
def recorded(service, now):
    """The first epochs of DynamoLLM's loops, each of which decides something."""
    service_policy.change(service, "dynamollm", {})
    requests_came(now, count=300, over_s=100)
    for loop in (Loop.CARBON, Loop.SCALE, Loop.SHARD):
        epochs.run(service, loop, now)
    return {epoch.kind: epoch for epoch in Epoch.objects.all()}


def replayed(*words):
    done = CliRunner().invoke(decisions, [*words, "--json"])
    return done.exit_code, json.loads(done.output)


def test_steps_decide_the_same_when_they_are_taken_again(recorded):
    code, found = replayed("--service", "llama3-70b")
    assert (code, found["differ"]) == (0, [])
    assert found["steps"] >= len(recorded) == 3


def test_recordings_of_version_0_1_are_read_when_they_have_the_key_of_then(recorded):
    for epoch in recorded.values():
        notes = [
            {GIVEN_0_1 if key == "given" else key: value for key, value in note.items()} for note in epoch.recording
        ]
        Epoch.objects.filter(pk=epoch.pk).update(recording=notes)
    code, found = replayed("--service", "llama3-70b")
    assert (code, found["differ"]) == (0, [])
    assert found["steps"] >= len(recorded)


def another_number(notes):
    """A command gives one GPU more."""
    text = json.dumps(notes[0]["commands"])
    altered = re.sub(r'\["A100-80GB", (\d+)\]', lambda found: f'["A100-80GB", {int(found[1]) + 1}]', text, count=1)
    assert altered != text
    notes[0]["commands"] = json.loads(altered)
    return notes


def one_command_less(notes):
    notes[0]["commands"]["$tuple"].pop()
    return notes


def another_reason(notes):
    notes[0]["reason"] = "emergency"
    return notes


def another_question(notes):
    """The same answer, but no class had a server."""
    nodes = notes[0]["given"]["$tuple"][1]["fields"]["nodes"]
    assert any(count for _, count in nodes["$map"])
    nodes["$map"] = [[key, 0] for key, _ in nodes["$map"]]
    return notes


@pytest.mark.parametrize(
    ("kind", "alter"),
    first(
        2,
        [
            ("carbon", another_number),
            ("scale", another_question),
            ("carbon", one_command_less),
            ("carbon", another_reason),
            ("scale", another_reason),
            ("shard", another_reason),
        ],
        "other alterations",
    ),
)
def test_difference_is_reported_when_a_recording_was_altered(recorded, kind, alter):
    epoch = recorded[kind]
    Epoch.objects.filter(pk=epoch.pk).update(recording=alter(epoch.recording))
    code, found = replayed()
    assert code == 1
    assert [(row["epoch_id"], row["kind"]) for row in found["differ"]] == [(epoch.pk, kind)]
    assert found["differ"][0]["then"] != found["differ"][0]["now"]
    in_words = CliRunner().invoke(decisions, [])
    assert in_words.exit_code == 1
    assert f"epoch {epoch.pk} ({kind}" in in_words.output
