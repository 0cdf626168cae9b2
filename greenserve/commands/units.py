"""units: services for systemd, printed. Those of an agent are printed by `greenserve node join`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from greenserve.cli import fail

from .node import account

KINDS = ("control-plane", "gateway", "actuator")


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.option(
    "--user", default="greenserve", show_default=True, help="Who runs it; of an actuator, who runs the agent."
)
@click.option(
    "--settings",
    type=click.Path(path_type=Path),
    default=Path("/etc/greenserve/greenserve.env"),
    show_default=True,
    help="Of the control plane: file with its variables.",
)
@click.option(
    "--redis-url-file",
    type=click.Path(path_type=Path),
    default=Path("/etc/greenserve/redis-url"),
    show_default=True,
    help="Of a gateway: file with the address of Redis.",
)
@click.option(
    "--engine-authority", type=click.Path(path_type=Path), help="Of a gateway: who signs engines' certificates."
)
@click.option(
    "--snapshot-key-file", type=click.Path(path_type=Path), help="Of a gateway: the public key of who signs the fleet."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where a gateway listens.")
@click.option("--port", type=click.IntRange(1024, 65535), default=8080, show_default=True, help="And at which port.")
def units(
    kind: str,
    user: str,
    settings: Path,
    redis_url_file: Path,
    engine_authority: Path | None,
    snapshot_key_file: Path | None,
    host: str,
    port: int,
) -> None:
    """Print a service for systemd: of the control plane, of a gateway on a machine of its own, or of a node's actuator.

    Nothing is written or started. Run it by the Python that the service is to run by: docs/nodes.md says how root
    installs that.
    """
    from greenserve.supervision import service_units
    from pools.actuator import root_only
    from pools.agent import systemd_units

    if kind == "actuator":
        python, fault = root_only.safe_python(Path(sys.executable), root_only.PYTHON)
        if python is None:
            fail(f"an actuator runs as root, and others can change what it would run: {fault}; {root_only.REMEDY}")
        text = systemd_units.actuator_unit(account(user).pw_uid, python)
    elif kind == "gateway":
        more: tuple[str, ...] = ("--host", host, "--port", str(port))
        if engine_authority is not None:
            more = (*more, "--engine-authority", str(engine_authority.absolute()))
        if snapshot_key_file is not None:
            more = (*more, "--snapshot-key-file", str(snapshot_key_file.absolute()))
        text = service_units.gateway_unit(user, Path(sys.executable), redis_url_file.absolute(), more)
    else:
        text = service_units.control_plane_unit(user, Path(sys.executable), settings.absolute())
    name = "greenserve" if kind == "control-plane" else f"greenserve-{kind}"
    click.echo(f"# /etc/systemd/system/{name}.service\n{text}", nl=False)
