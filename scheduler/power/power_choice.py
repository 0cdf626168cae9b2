"""Makes the power port of a node's row, and says what is wrong with one that is to be stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

from core.ports import AdapterError, PermanentError, ServerPower
from pools.models import Node, PowerPort
from telemetry.alerts import webhook

from . import credentials
from .redfish import RedfishPower
from .sim_power import SimPower, control_of
from .wake_on_lan import WakeOnLanPower, magic_packet
from .webhook_power import WebhookPower


def power_of(node: Node) -> ServerPower:
    """Returns what switches the node. Raises AdapterError: it has nothing, or its files are not as they must be."""
    folder, port = Path(settings.GREENSERVE_SECRETS_DIR), node.power_port
    if port == PowerPort.SIMULATED:
        return SimPower(control_of(Path(settings.GREENSERVE_SIMULATED_NODES), node.name))
    if port == PowerPort.REDFISH:
        return RedfishPower(node.power_url, credentials.secret_of(folder, node.name), credentials.trust(folder))
    if port not in (PowerPort.WEBHOOK, PowerPort.WAKE_ON_LAN):
        raise PermanentError(f"{node.name} has no power port")
    secret, alerts = credentials.secret_of(folder, node.name), settings.GREENSERVE_ALERTS
    hook = WebhookPower(node.name, node.power_url, secret, alerts["webhook_private"], alerts["webhook_hosts"])
    if port == PowerPort.WEBHOOK:
        return hook
    try:
        return WakeOnLanPower(node.power_mac, node.power_broadcast, hook)
    except ValueError as error:
        raise PermanentError(str(error)) from None


def faults(node: Node) -> Iterator[tuple[str, str]]:
    """Yields fields that cannot be as they are, each with what to do about it."""
    port = node.power_port
    if node.simulated and port not in (PowerPort.NONE, PowerPort.SIMULATED):
        yield "power_port", "A simulated node is switched by itself: choose simulated, or none."
    if port == PowerPort.SIMULATED and not node.simulated:
        yield "power_port", "The node is a machine: choose what switches it, or none."
    if port in (PowerPort.REDFISH, PowerPort.WEBHOOK, PowerPort.WAKE_ON_LAN):
        yield from _faults_of_url(node)
    if port == PowerPort.WAKE_ON_LAN:
        try:
            magic_packet(node.power_mac)
        except ValueError:
            yield "power_mac", "Write the network card's MAC address, for example 12:34:56:78:9a:bc."


def _faults_of_url(node: Node) -> Iterator[tuple[str, str]]:
    if not node.power_url:
        what = "its BMC's system" if node.power_port == PowerPort.REDFISH else "the webhook that switches it off"
        yield "power_url", f"Write the address of {what}."
        return
    alerts = settings.GREENSERVE_ALERTS
    private = node.power_port == PowerPort.REDFISH or alerts["webhook_private"]
    try:
        found = webhook.target(node.power_url, private, alerts["webhook_hosts"])
    except ValueError as error:
        yield "power_url", f"The address cannot be used: {error}."
        return
    if node.power_port == PowerPort.REDFISH and not found.tls:
        yield "power_url", "A BMC's address must begin with https://, as its password goes there."


def needs_file(node: Node) -> str:
    """Says what file with a secret the node's port lacks; empty: none."""
    if node.power_port in (PowerPort.NONE, PowerPort.SIMULATED):
        return ""
    try:
        credentials.secret_of(Path(settings.GREENSERVE_SECRETS_DIR), node.name)
    except AdapterError as error:
        return str(error)
    return ""
