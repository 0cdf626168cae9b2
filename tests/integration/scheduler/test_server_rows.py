"""What operators enter of a server's power, and what its rows say of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from core.ports import PermanentError
from pools import server_states
from pools.models import Node, PowerCycle, PowerPort
from pools.server_states import Phase
from scheduler.operations.configure import consequences
from scheduler.power import power_choice
from scheduler.power.redfish import RedfishPower
from scheduler.power.wake_on_lan import WakeOnLanPower

pytestmark = pytest.mark.django_db
BMC = "https://10.0.0.7/redfish/v1/Systems/1"


@pytest.fixture
def machine(demo_rows: None) -> Node:
    node = Node.objects.order_by("name")[0]
    node.simulated = False
    return node


@pytest.mark.parametrize(
    ("port", "fields", "field", "remedy"),
    [
        ("redfish", {}, "power_url", "Write the address of its BMC's system"),
        ("redfish", {"power_url": "http://10.0.0.7/redfish/v1/Systems/1"}, "power_url", "https://"),
        ("redfish", {"power_url": "https://169.254.169.254/"}, "power_url", "no address that anybody may be at"),
        ("webhook", {}, "power_url", "Write the address of the webhook"),
        ("webhook", {"power_url": "https://10.0.0.7/power"}, "power_url", "GREENSERVE_WEBHOOK_HOSTS"),
        ("wake_on_lan", {"power_url": "https://hooks.example.org/", "power_mac": "12:34"}, "power_mac", "12:34:56"),
        ("simulated", {}, "power_port", "choose what switches it"),
    ],
)
def test_field_that_cannot_be_is_named_with_its_remedy(
    machine: Node, port: str, fields: dict[str, str], field: str, remedy: str
) -> None:
    machine.power_port = port
    for name, value in fields.items():
        setattr(machine, name, value)
    (found,) = (one for one in consequences.of(machine) if one.level == "error")
    assert found.field == field
    assert remedy in found.text


def test_simulated_node_is_switched_by_itself_alone(machine: Node) -> None:
    machine.simulated, machine.power_port, machine.power_url = True, PowerPort.REDFISH, BMC
    assert [one.field for one in consequences.of(machine) if one.level == "error"] == ["power_port"]
    machine.power_port = PowerPort.SIMULATED
    assert not [one for one in consequences.of(machine) if one.level == "error"]


def test_port_needs_a_file_that_only_its_owner_can_read(machine: Node, tmp_path: Path, settings: Any) -> None:
    settings.GREENSERVE_SECRETS_DIR = tmp_path
    machine.power_port, machine.power_url = PowerPort.REDFISH, BMC
    with pytest.raises(PermanentError, match=r"power/.*No such file"):
        power_choice.power_of(machine)
    (tmp_path / "power").mkdir()
    shared = tmp_path / "power" / "default"
    shared.write_text("root:hunter2\n")
    shared.chmod(0o644)
    with pytest.raises(PermanentError, match="chmod 600"):
        power_choice.power_of(machine)
    shared.chmod(0o600)
    assert isinstance(power_choice.power_of(machine), RedfishPower)
    machine.power_port, machine.power_url = PowerPort.WAKE_ON_LAN, "https://hooks.example.org/power"
    machine.power_mac = "12:34:56:78:9a:bc"
    assert isinstance(power_choice.power_of(machine), WakeOnLanPower)


def test_server_goes_through_its_phases_and_its_boot_is_measured(machine: Node) -> None:
    at = datetime.fromisoformat("2026-03-01T12:00:00+00:00")
    machine.power_port, machine.boot_s = PowerPort.WEBHOOK, 300.0
    machine.save()

    def now(of: datetime = at) -> tuple[Phase, str]:
        own = server_states.of()[machine.name]
        return own.phase, own.words(of)

    own = server_states.of()[machine.name]
    assert (own.phase, own.boot_s, own.boot_source) == (Phase.ON, 300.0, "declared")
    cycle = PowerCycle.objects.create(node=machine, off_asked_at=at)
    assert now() == (Phase.GOES_OFF, "going off (by plan), boots in 5 min")
    cycle.off_at = at + timedelta(minutes=1)
    cycle.save()
    assert now() == (Phase.OFF, "off (by plan), boots in 5 min")
    cycle.on_asked_at = at + timedelta(minutes=10)
    cycle.save()
    assert now(at + timedelta(minutes=12)) == (Phase.BOOTS, "boots, ready in 3 min")
    assert not server_states.of()[machine.name].late(at + timedelta(minutes=25))
    assert now(at + timedelta(minutes=26)) == (Phase.BOOTS, "late to boot")
    cycle.ready_at = at + timedelta(minutes=14)
    cycle.save()
    own = server_states.of()[machine.name]
    assert (own.phase, own.boot_s, own.boot_source) == (Phase.ON, 240.0, "measured")


def test_boot_of_a_server_that_never_went_off_measures_nothing(machine: Node) -> None:
    at = datetime.fromisoformat("2026-03-01T12:00:00+00:00")
    machine.power_port = PowerPort.WEBHOOK
    machine.save()
    PowerCycle.objects.create(node=machine, off_asked_at=at, on_asked_at=at, ready_at=at + timedelta(seconds=3))
    own = server_states.of()[machine.name]
    assert (own.boot_s, own.boot_source) == (600.0, "assumed")


def test_server_that_is_off_keeps_its_port(machine: Node) -> None:
    machine.power_port = PowerPort.SIMULATED
    machine.simulated = True
    machine.save()
    PowerCycle.objects.create(node=machine, off_asked_at=datetime.fromisoformat("2026-03-01T12:00:00+00:00"))
    machine.power_port = PowerPort.NONE
    assert [one.field for one in consequences.of(machine) if one.level == "error"] == ["power_port"]
