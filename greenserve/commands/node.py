"""node: machines with GPUs that join the fleet."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from greenserve.cli import fail

from .database import database
from .node_profile import profile
from .secret_files import secret_of_file

if TYPE_CHECKING:
    from pools.models import Cluster

if TYPE_CHECKING:
    from pools.agent.devices.driver_meter import Inventory

_MOST_SHOWN = 8  # models
CODE = Path(__file__).resolve().parents[2]


@click.group()
def node() -> None:
    """Machines with GPUs: make a token where GreenServe runs, join with it on the machine. docs/nodes.md says more."""


node.add_command(profile)


@node.command()
@click.option("--cluster", help="SITE/CLUSTER that the machine is to join; may be left out where there is only one.")
@click.option("--hours", type=click.FloatRange(0.1, 720.0), default=24.0, show_default=True, help="How long it holds.")
@click.option("--name", default="", help="The node's name in the line; the machine's own where it is left out.")
@database()
def token(cluster: str | None, hours: float, name: str) -> None:
    """Make a join token: good for one machine, once. It is shown only now, with the line to paste on the machine."""
    from pools.access.audit import Actor
    from pools.registration import join_tokens
    from pools.registration.join_line import join_line

    found = _cluster(cluster)
    made, secret = join_tokens.issue(Actor(channel="command"), found, timedelta(hours=hours))
    line = join_line(secret, name)
    click.echo(secret)
    until = f"{made.expires_at:%Y-%m-%d %H:%M} UTC"
    click.echo(f"Joins one machine to {found} until {until}. Paste this line on it:\n  {line.text}", err=True)
    if line.caveat:
        click.echo(line.caveat, err=True)


def _cluster(name: str | None) -> Cluster:
    from pools.models import Cluster

    rows = {f"{row.site.name}/{row.name}": row for row in Cluster.objects.select_related("site")}
    known = ", ".join(sorted(rows)) or "none yet: make a site and a cluster first"
    if name is None and len(rows) != 1:
        fail(f"say which cluster, by --cluster SITE/CLUSTER; there are: {known}", 2)
    if name is not None and name not in rows:
        fail(f"there is no cluster '{name}'; there are: {known}", 2)
    return rows[name] if name else next(iter(rows.values()))


@node.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--gpus", type=click.Choice(["nvml", "amd"]), default="nvml", help="Whose driver to ask.")
def inventory(as_json: bool, gpus: str) -> None:
    """Show this machine's GPUs as the driver tells them. Needs no right, and changes nothing."""
    found = _inventory(gpus)
    if as_json:
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(found)))
        return
    _show(found)


@node.command()
@click.argument("url")
@click.argument("token", required=False)
@click.option(
    "--token-file",
    "from_file",
    type=secret_of_file,
    metavar="FILE",
    help="File with the join token, - for standard input, in place of TOKEN.",
)
@click.option("--name", help="The node's name; the machine's where it is left out.")
@click.option("--user", help="Who runs the agent; you where it is left out.")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the agent's settings (GREENSERVE_VAR).")
@click.option(
    "--vllm",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The program `vllm` to start engines with.",
)
@click.option(
    "--engine-host", help="With --vllm: address that engines listen at; else the one towards the control plane."
)
@click.option("--engine-address", help="With --vllm: where gateways reach engines, if elsewhere than --engine-host.")
@click.option(
    "--model-folder", multiple=True, type=click.Path(exists=True, file_okay=False), help="Folder with models' weights."
)
@click.option(
    "--cpu", metavar="TYPE:COUNT", help="For a machine without GPUs: what stands for them, to try GreenServe on."
)
@click.option(
    "--gpus",
    type=click.Choice(["nvml", "amd"]),
    default="nvml",
    show_default=True,
    help="Whose driver meters the GPUs; AMD's clocks are not set.",
)
@click.option(
    "--power", default="20:65", show_default=True, help="With --cpu: the machine's watts, IDLE:FULL, declared."
)
@click.option("--plain-http", is_flag=True, help="Join by http:// although others could read along.")
def join(
    url: str,
    token: str | None,
    from_file: str | None,
    name: str | None,
    user: str | None,
    keep: Path | None,
    vllm: Path | None,
    engine_host: str | None,
    engine_address: str | None,
    model_folder: tuple[str, ...],
    cpu: str | None,
    gpus: str,
    power: str,
    plain_http: bool,
) -> None:
    """Make this machine a node of the GreenServe whose dashboard is at URL, with a TOKEN made there.

    All on the machine can read TOKEN while this runs: `-` reads it from standard input, and without it
    GREENSERVE_JOIN_TOKEN has it.

    Its GPUs are registered, the agent's settings written, and its systemd units printed. Nothing is started.
    """
    from core.ports import AdapterError
    from greenserve import env
    from pools import own_address
    from pools.actuator import root_only
    from pools.agent import join_fleet, systemd_units
    from pools.agent.node_identity import NodeIdentity, names_of_machine

    secret = _join_token(token, from_file)
    runs_as = account(user)
    called = name or re.sub(r"[^a-zA-Z0-9_-]+", "-", socket.gethostname().split(".")[0]).strip("-")
    found = _inventory(gpus) if cpu is None else _declared(called, cpu, power)
    _show(found)
    folder = (keep or env.read().var_dir).absolute()
    given = {"engine_host": engine_host, "engine_address": engine_address, "model_folder": model_folder}
    engine_words = _engine_words(vllm, folder / "engines", given)
    if vllm is not None:
        arguments = join_fleet.CPU_ARGUMENTS if cpu is not None else ()
        values = {**given, "vllm": str(vllm), "engines": str(folder / "engines"), "vllm_argument": arguments}
        _show_engines(values, by_uuid=cpu is None)
    identity = NodeIdentity.of(folder, called)
    engine_names = [one for one in (engine_address, engine_host) if one and not own_address.is_wildcard(one)]
    request = identity.request(called, [*engine_names, *names_of_machine(urlsplit(url).hostname or "")])
    try:
        joined = join_fleet.send(url, join_fleet.offer(secret, called, found, request), plain_http=plain_http)
        settings = join_fleet.keep(folder, joined)
    except AdapterError as error:
        fail(str(error))
    runs = "It runs engines when it is opened to planning" if vllm else "It is metered"
    click.echo(f"Joined {joined.cluster} as node {joined.node}. {runs}; no plan counts on it yet.")
    for note in joined.notes:
        click.echo(note)
    click.echo(f"The agent's settings are in {settings}; only you can read them.")
    if why := join_fleet.unreachable(joined.broker_url):
        click.echo(f"But {why}.")
    if vllm is not None:
        click.echo(join_fleet.engine_notice(joined, engine_host, engine_address))
    more: tuple[str, ...] = join_fleet.GPU_NODE if gpus == "nvml" else ("--gpus", gpus)
    if cpu is not None:
        more = ("--gpus", "cpu", "--devices", cpu, "--power", power)
    more = (*more, "--spool", str(folder / "spool" / "agents" / joined.node), "--identity", str(identity.folder))
    more = (*more, *engine_words, *(() if vllm is None else join_fleet.engine_trust(identity)))
    if vllm is not None and cpu is not None:
        more = (*more, *join_fleet.CPU_ENGINES)
    units = {"greenserve-agent.service": systemd_units.agent_unit(joined.node, runs_as.pw_name, settings, CODE, more)}
    how_many = "A service, for systemd (as root: save it under this name, then `systemctl enable --now` it)."
    python, fault = root_only.safe_python(Path(sys.executable), root_only.PYTHON)
    if cpu is None and gpus == "nvml" and python is None:
        click.echo(f"No service for the actuator, which would run as root what others can change: {fault}.")
        click.echo(f"Clocks stay as they are until there is one: {root_only.REMEDY}.")
    elif cpu is None and gpus == "nvml" and python is not None:
        units = {"greenserve-actuator.service": systemd_units.actuator_unit(runs_as.pw_uid, python), **units}
        how_many = (
            "Two services, for systemd (as root: save them under these names, then `systemctl enable --now` both)."
        )
    kept = folder / "greenserve-agent.service"
    kept.write_text(units["greenserve-agent.service"])
    click.echo(f"{how_many} That of the agent is kept in {kept}, too.")
    for unit, text in units.items():
        click.echo(f"\n# /etc/systemd/system/{unit}\n{text}", nl=False)


def _engine_words(vllm: Path | None, engines: Path, given: dict[str, Any]) -> tuple[str, ...]:
    """Returns the agent's options for engines. `given`: of those, what was said on this command line."""
    words = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value and vllm is None:
            fail(f"{option} is for engines, which the agent starts with --vllm only", 2)
        for one in (value,) if isinstance(value, str) else value or ():
            words += [option, os.path.abspath(one) if name == "model_folder" else one]
    return () if vllm is None else ("--vllm", str(vllm.absolute()), "--engines", str(engines), *words)


def _show_engines(values: dict[str, Any], by_uuid: bool) -> None:
    """Shows the version of vLLM and the weights that are here; a vLLM that lacks options ends the join."""
    from core.ports import AdapterError
    from pools.agent.vllm import models_on_disk, vllm_program
    from pools.agent.vllm.vllm_options import vllm_options

    try:
        # Where engines listen is found when the control plane's Redis is known: here it does not matter.
        options = vllm_options(values, by_uuid)
    except click.UsageError as error:
        fail(error.message, 2)
    except AdapterError as error:
        fail(str(error))
    assert options is not None
    found = vllm_program.ask(options)
    if found.fault:
        fail(found.fault)
    known = (
        "" if found.version in vllm_program.KNOWN else ", not tried with GreenServe; it has the options that we need"
    )
    click.echo(f"vLLM {found.version or 'of a version that it does not tell'}{known}")
    models = models_on_disk.find(options.folder / "weights", options.model_folders, os.environ)
    for model in models[:_MOST_SHOWN]:
        click.echo(f"  weights {model.weights}, {model.size_bytes / 1e9:.1f} GB")
    if len(models) > _MOST_SHOWN:
        click.echo(f"  and {len(models) - _MOST_SHOWN} more")


def _join_token(token: str | None, from_file: str | None) -> str:
    from greenserve import env

    given = secret_of_file("-") if token == "-" else token or from_file
    if given is None:
        kept = env.read().join_token
        given = None if kept is None else kept.reveal()
    return given or fail("give the join token: by --token-file FILE, by - and standard input, or as TOKEN", 2)


@node.command()
@click.argument("name")
@database()
def revoke(name: str) -> None:
    """Let the node NAME in no more, from now on: its certificate and its user in Redis. It may join again."""
    from django.utils import timezone

    from pools.access.audit import Actor
    from pools.models import Node
    from pools.registration import node_identities

    found = Node.objects.filter(name=name).first()
    if found is None:
        fail(f"there is no node '{name}'", 2)
    count = node_identities.revoke(Actor(channel="command"), found, timezone.now())
    if not count:
        fail(f"node {name} has no certificate that holds: there is nothing to revoke")
    click.echo(f"Node {name} is let in no more. What runs on the machine goes on until you end it.")


def account(user: str | None) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(os.getuid()) if user is None else pwd.getpwnam(user)
    except KeyError:
        fail(f"there is no user '{user or os.getuid()}' on this machine", 2)


def _declared(node: str, devices: str, power: str) -> Inventory:
    from pools.agent.devices.declared import Declaration, inventory

    try:
        return inventory(node, Declaration.read(devices, power))
    except ValueError as error:
        fail(f"--cpu {devices} --power {power}: {error}", 2)


def _inventory(gpus: str) -> Inventory:
    from core.ports import AdapterError
    from pools.agent.devices.amd import AmdGpuMeter
    from pools.agent.devices.nvml import NvmlGpuMeter

    meter = (NvmlGpuMeter if gpus == "nvml" else AmdGpuMeter)(timeout_s=30.0)  # waking GPUs takes a while
    try:
        return meter.inventory()
    except AdapterError as error:
        fail(str(error))
    finally:
        meter.close()


def _show(found: Inventory) -> None:
    click.echo(f"Driver {found.driver}, {len(found.gpus)} GPU{'' if len(found.gpus) == 1 else 's'}:")
    for gpu in found.gpus:
        clocks = f"{gpu.clocks_mhz[0]:.0f} to {gpu.clocks_mhz[-1]:.0f} MHz" if gpu.clocks_mhz else "clocks unknown"
        parts = [
            gpu.gpu_type + ("" if gpu.catalogued else " (not in the catalogue)"),
            f"{gpu.memory_bytes / 1e9:.0f} GB",
        ]
        parts += [clocks, "TDP unknown" if gpu.tdp_w is None else f"{gpu.tdp_w:.0f} W"]
        if gpu.nvlinks:
            parts.append(f"{gpu.nvlinks} NVLinks")
        if gpu.mig_slices is not None:
            parts.append(f"MIG, {gpu.mig_slices} instances")
        click.echo(f"  {gpu.index}  {', '.join(parts)}  {gpu.uuid}")
        if gpu.sheet is not None:
            flops, bandwidth = gpu.sheet.peak_flops / 1e12, gpu.sheet.hbm_bw / 1e9
            click.echo(f"     by the driver's figures: {flops:.3g} TFLOP/s at 16 bit, {bandwidth:.4g} GB/s, assumed")
        elif gpu.lacking:
            click.echo(f"     the driver does not tell its {', '.join(gpu.lacking)}")
