"""Services of a node for systemd: the agent, and the actuator that alone runs as root. docs/nodes.md says why which
restriction is there, and why another is not.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from pools.actuator.actuator_protocol import DEFAULT_SOCKET, DEFAULT_STATE

from .join_fleet import GPU_NODE, agent_command

# What no process of GreenServe does, nor an engine that an agent starts.
SANDBOX = """\
NoNewPrivileges=yes
ProtectSystem=strict
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectProc=invisible
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM"""


def agent_unit(node: str, user: str, environment: Path, code: Path, more: Sequence[str] = GPU_NODE) -> str:
    """Returns the agent's unit. Its engines outlive it (KillMode), so all that is here holds for vLLM too.

    Args:
        environment: The file that the join wrote. In its folder the agent keeps what it writes.
        code: Folder that it runs in.
        more: What the node is, in options of the agent.
    """
    settings, keep = environment.resolve(), environment.resolve().parent
    return f"""[Unit]
Description=GreenServe agent of node {node}
After=network-online.target greenserve-actuator.service
Wants=network-online.target greenserve-actuator.service

[Service]
User={user}
WorkingDirectory={_escaped(code)}
EnvironmentFile={_escaped(settings)}
Environment="HOME={_escaped(keep)}"
ExecStart={quoted(agent_command(node, more))}
KillMode=process
Restart=always
RestartSec=2
TimeoutStopSec=30
LimitNOFILE=65536
UMask=0077
{SANDBOX}
ReadWritePaths="{_escaped(keep)}" /tmp /var/tmp
ProtectHome=read-only
CapabilityBoundingSet=
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallFilter=@system-service pidfd_getfd

[Install]
WantedBy=multi-user.target
"""


def actuator_unit(uid: int, python: Path) -> str:
    """Returns the clock actuator's unit: root, with two capabilities, no network, and a file system that it can only
    read. `python`: one that `root_only.fault_of_python` has no fault with. `uid`: of the agent.
    """
    command = (str(python), "-I", "-m", "pools.actuator", "--allow-uid", str(uid))
    places = ("--socket", str(DEFAULT_SOCKET), "--state", str(DEFAULT_STATE))
    return f"""[Unit]
Description=GreenServe clock actuator
StartLimitIntervalSec=0

[Service]
ExecStart={quoted((*command, *places))}
Restart=always
RestartSec=1
TimeoutStopSec=15
RuntimeDirectory={DEFAULT_SOCKET.parent.name}
RuntimeDirectoryPreserve=yes
{SANDBOX}
ProtectHome=yes
PrivateTmp=yes
PrivateNetwork=yes
CapabilityBoundingSet=CAP_SYS_ADMIN CAP_DAC_READ_SEARCH
RestrictAddressFamilies=AF_UNIX
SystemCallFilter=@system-service
SystemCallFilter=~@resources
MemoryDenyWriteExecute=yes
MemoryMax=256M

[Install]
WantedBy=multi-user.target
"""


def quoted(command: Sequence[str]) -> str:
    """Returns a command as a unit writes it."""
    return _escaped(shlex.join(command))


def _escaped(words: object) -> str:
    return str(words).replace("%", "%%")
