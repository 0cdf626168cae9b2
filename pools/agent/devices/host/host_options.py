"""The agent's options for the energy of its host, and the meters that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from core.ports import HostMeter, PermanentError

from . import zeusd
from .bmc import ipmi_meter, redfish_meter
from .host_energy import HostEnergy
from .polled_power import DeclaredPowerMeter
from .powercap import PowercapMeter

PROCESSORS = ("auto", "zeusd", "powercap", "none")
WHOLE = "the declared power of a machine without GPUs is the whole machine's: its host is in it"


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The meters that a node is to have of its host. `overhead`: `ipmi`, Redfish's address, NAME:WATTS, or None."""

    processors: str = "auto"
    socket: Path | None = None  # of zeusd; None: where it listens by default
    overhead: str | None = None
    login: Path | None = None
    trust: Path | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> HostOptions:
        """Returns those among the worker's options."""

        def path(name: str) -> Path | None:
            return Path(values[name]) if values.get(name) else None

        return cls(
            values.get("host_meter") or "auto",
            path("zeusd"),
            values.get("overhead"),
            path("bmc_login"),
            path("bmc_trust"),
        )


def host_energy(options: HostOptions, gpus: str) -> HostEnergy | None:
    """Returns the meters of a node whose GPUs are `gpus` (the agent's option); None: it is to have none.

    A simulated node has no processors to meter, and a host only where one is declared.

    Raises:
        ValueError, PermanentError: What was asked for cannot be metered here.
    """
    asked = options.processors not in ("auto", "none") or options.overhead is not None
    if gpus == "cpu":
        if asked:
            raise ValueError(WHOLE)
        return None
    if gpus == "sim" and not asked:
        return None
    meters: list[HostMeter] = []
    lacks: list[str] = []
    if not (gpus == "sim" and options.processors == "auto"):
        _add_processors(options, meters, lacks)
    if options.overhead is not None:
        meters.append(_overhead(options, options.overhead))
    if not meters and not lacks:
        lacks.append("host energy is not metered, since the agent's options say so")
    return HostEnergy(meters, lacks)


def _add_processors(options: HostOptions, meters: list[HostMeter], lacks: list[str]) -> None:
    socket = options.socket or zeusd.listening()
    if options.processors == "zeusd" and socket is None:
        raise ValueError(f"zeusd listens at none of {', '.join(map(str, zeusd.SOCKETS))}; name its socket with --zeusd")
    if options.processors == "zeusd" or (options.processors == "auto" and socket is not None):
        assert socket is not None
        meters.append(zeusd.ZeusdMeter(socket))
    elif options.processors == "powercap":
        meters.append(PowercapMeter())
    elif options.processors == "auto":
        try:
            meters.append(PowercapMeter())
        except PermanentError as error:
            lacks.append(f"energy of the processors is not metered: {error}")


def _overhead(options: HostOptions, overhead: str) -> HostMeter:
    if overhead == "ipmi":
        return ipmi_meter()
    if overhead.startswith(("http://", "https://")):
        return redfish_meter(overhead, options.login, options.trust)
    return DeclaredPowerMeter.parse(overhead)


def click_options() -> tuple[click.Option, ...]:
    return (
        click.Option(
            ["--host-meter"],
            type=click.Choice(PROCESSORS),
            default="auto",
            help="What meters processors and memory: zeusd, powercap, whichever there is (auto), or nothing.",
        ),
        click.Option(["--zeusd"], help="Socket of the Zeus daemon, where it is not at its default."),
        click.Option(
            ["--overhead"],
            help="The rest of the node: ipmi, a baseboard controller's https://HOST (Redfish), or NAME:WATTS declared.",
        ),
        click.Option(["--bmc-login"], help="File with USER:PASSWORD for Redfish, which only its owner may read."),
        click.Option(["--bmc-trust"], help="PEM file with the baseboard controller's certificate, or its issuer's."),
    )
