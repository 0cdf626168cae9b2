"""Services of the control plane for systemd: the product, and a gateway on a machine apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pools.agent.systemd_units import SANDBOX, quoted

_APART = f"""\
UMask=0027
{SANDBOX}
ProtectHome=yes
ProtectClock=yes
PrivateTmp=yes
PrivateDevices=yes
CapabilityBoundingSet=
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
SystemCallFilter=@system-service
SystemCallFilter=~@privileged"""
_WANTED = """
[Install]
WantedBy=multi-user.target
"""


def control_plane_unit(user: str, python: Path, settings: Path) -> str:
    """Returns the unit of `greenserve up`, which supervises all other processes, gateways and embedded servers too."""
    return f"""[Unit]
Description=GreenServe
After=network-online.target
Wants=network-online.target

[Service]
User={user}
StateDirectory=greenserve
StateDirectoryMode=0750
WorkingDirectory=%S/greenserve
Environment=GREENSERVE_VAR=%S/greenserve HOME=%S/greenserve
EnvironmentFile=-{settings}
ExecStart={quoted((str(python), "-m", "greenserve", "up"))}
KillMode=mixed
Restart=on-failure
RestartSec=5
TimeoutStopSec=90
LimitNOFILE=65536
{_APART}
{_WANTED}"""


def gateway_unit(user: str, python: Path, redis_url: Path, more: Sequence[str]) -> str:
    """Returns the unit of one gateway on a machine of its own.

    Args:
        redis_url: File with the address of Redis; only root has to be able to read it.
        more: Options of the gateway.
    """
    own = ("--spool", "${STATE_DIRECTORY}/spool", "--state", "${STATE_DIRECTORY}/learned")
    return f"""[Unit]
Description=GreenServe gateway
After=network-online.target
Wants=network-online.target

[Service]
User={user}
StateDirectory=greenserve-gateway
StateDirectoryMode=0700
WorkingDirectory=%S/greenserve-gateway
Environment=HOME=%S/greenserve-gateway
LoadCredential=redis-url:{redis_url}
ExecStart={quoted((str(python), "-m", "pools.gateway"))} --redis-url-file ${{CREDENTIALS_DIRECTORY}}/redis-url \\
  {" ".join(own)} --name gateway-%l {quoted(more)}
Restart=always
RestartSec=2
TimeoutStopSec=30
LimitNOFILE=65536
{_APART}
{_WANTED}"""
