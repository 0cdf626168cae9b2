"""`greenserve up`: lock, ports, PostgreSQL, Redis, migrations, the demo, and then every process, supervised."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import redis

from greenserve import env
from greenserve.process import Child, StartError, last_words, leash, tail
from greenserve.servers import embedded, postgres_server, server_checks
from greenserve.supervision import preflight, product_processes
from greenserve.supervision.database_setup import Plan
from greenserve.supervision.preflight import START_FAILED, Refusal
from greenserve.supervision.simulated_nodes import SimulatedNodes
from greenserve.supervision.supervisor import Supervisor
from greenserve.supervision.watchdog import Watchdog, database_excuse, signs_from
from pools import redis_address, wire
from pools.masking import masked
from pools.registration import authority

ANSWER_WITHIN_S = 120.0
SERVER_WITHIN_S = 60.0  # a crash recovery may take its time
PREPARE_WITHIN_S = 300.0
TABLE_TTL_S = 10
AGENTS = ("node.", "simnode.")  # processes that go by their node's name, whoever started them


class Stopped(Exception):
    """A stop was asked for while starting."""


def run(config: env.Env, report: Callable[[str], None], announce: Callable[[], None]) -> None:
    """Starts all, calls `announce` when the addresses answer, supervises until a stop is asked for, stops all.

    Raises Refusal with one line when it cannot start; whatever was started by then has been stopped.
    """
    lock = preflight.Lock.of(config.var_dir)
    lock.take()
    preflight.close_to_others(config.var_dir)
    try:
        preflight.write_state(config.var_dir, "starting")
        preflight.check_packages()
        preflight.check_room(config.var_dir)
        client = redis_address.connect(
            product_processes.redis_url(config), socket_timeout=0.5, socket_connect_timeout=0.5
        )
        watchdog = Watchdog(signs_from(client, config.plane), database_excuse(product_processes.database_url(config)))
        supervisor = Supervisor(config.var_dir, report, _publisher(client, config), watchdog.look)
        supervisor.catch_signals()
        supervisor.end_strays()
        preflight.check_port(config.web_host, config.web_port, "the dashboard", "GREENSERVE_WEB_PORT")
        preflight.check_port(config.gateway_host, config.gateway_port, "the gateway", "GREENSERVE_GATEWAY_PORT")
        for port, variable in (
            (config.relay_port, "GREENSERVE_RELAY_PORT"),
            (config.join_port, "GREENSERVE_JOIN_PORT"),
        ):
            if port is not None:
                preflight.check_port(config.nodes_host, port, "the relay for nodes", variable)
        if config.picker_port is not None:
            preflight.check_extra("picker", "grpc", "the endpoint picker", "GREENSERVE_PICKER_PORT")
            preflight.check_port(config.picker_host, config.picker_port, "the picker", "GREENSERVE_PICKER_PORT")
            if config.picker_metrics_port is not None:
                where = (config.picker_host, config.picker_metrics_port)
                preflight.check_port(*where, "the picker's metrics", "GREENSERVE_PICKER_METRICS_PORT")
        try:
            nodes = SimulatedNodes(config, supervisor, client, report)
            plan = _start(config, supervisor, nodes, client, report)
            preflight.write_state(config.var_dir, "ready", model=plan.model)
            announce()
            supervisor.run(nodes.follow if not config.plane else lambda: None)
        except Stopped:
            pass
        except StartError as error:
            raise Refusal(str(error), START_FAILED) from error
        finally:
            preflight.write_state(config.var_dir, "stopping")
            if supervisor.stop_asked:
                report(f"stopping ({supervisor.stop_asked}); once more to hurry")
            supervisor.stop()
    finally:
        preflight.write_state(config.var_dir, "stopped")
        lock.release()


def _start(
    config: env.Env,
    supervisor: Supervisor,
    nodes: SimulatedNodes,
    client: redis.Redis,
    report: Callable[[str], None],
) -> Plan:
    start_servers(config, supervisor, report)
    refuse_second(client, config)
    report("database: migrating" + (", and loading the demo fleet and its history" if config.demo else ""))
    env.keep_secret(product_processes.redis_url_file(config), product_processes.redis_url(config))
    keep_trust(config)
    if config.worker_token is not None:
        env.keep_secret(product_processes.worker_token_file(config), config.worker_token)
    if config.metrics_token is not None:
        env.keep_secret(product_processes.metrics_token_file(config), config.metrics_token.reveal())
    if (lengths := product_processes.lengths(config)) is not None:
        supervisor.start(lengths)
    gateways = [supervisor.start(spec) for spec in product_processes.gateways(config)]
    plan = prepare(config, supervisor)
    web = supervisor.start(product_processes.web(config))
    for spec in product_processes.background(config):
        supervisor.start(spec)
    if (relay := product_processes.node_relay(config)) is not None:
        supervisor.start(relay)
    if config.picker_port is not None:
        supervisor.start(product_processes.picker(config, config.picker_port))
    nodes.know(plan.gpu_types)
    if not config.plane:  # a node has one agent
        nodes.run(plan.simulated_nodes)
    if config.demo and config.demo_rps > 0 and plan.model:
        supervisor.start(product_processes.traffic(config, plan.model))
    _wait(supervisor, gateways[0], f"http://{config.gateway_host}:{config.gateway_port}/live")
    _wait(supervisor, web, f"http://{config.web_host}:{config.web_port}/login/")
    return plan


def start_servers(config: env.Env, supervisor: Supervisor, report: Callable[[str], None]) -> None:
    """Starts PostgreSQL and Redis, unless the environment names others."""
    started: list[Child] = []
    if config.database_url is None:
        report("PostgreSQL: starting (the first time its data folder is made)")
        started.append(supervisor.start(postgres_server.spec(config.var_dir)))
    else:
        report(server_checks.postgres(config.database_url, vouched=config.patched_servers))
        if config.database_owner_url is not None:
            report(server_checks.postgres(config.database_owner_url, env.OWNER_URL, config.patched_servers))
    if config.redis_url is None:
        started.append(supervisor.start(embedded.redis(config.var_dir)))
    else:
        report(server_checks.redis(config.redis_url, config.redis_insecure, config.patched_servers))
    for child in started:
        embedded.wait_ready(child, SERVER_WITHIN_S)
    _check_stop(supervisor)


def prepare(config: env.Env, supervisor: Supervisor) -> Plan:
    """Runs `greenserve.supervision.database_setup` as the tables' owner, and reads its plan. Supervises meanwhile.

    Raises StartError.
    """
    run_role = server_checks.role_of(product_processes.database_url(config))
    log = config.var_dir / "log" / "prepare.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "greenserve.supervision.database_setup", run_role],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=config.work_dir,
            env=env.for_child(GREENSERVE_VAR=str(config.var_dir), DATABASE_URL=product_processes.owner_url(config)),
            preexec_fn=leash(),
        )
    try:
        done = supervisor.wait_until(lambda: process.poll() is not None, PREPARE_WITHIN_S)
        _check_stop(supervisor)
        output = process.communicate()[0] if done else b""
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise StartError(f"the database could not be brought up to date: {last_words(tail(log, 5))} (log: {log})")
    return msgspec.json.decode(output, type=Plan)


def _wait(supervisor: Supervisor, child: Child, url: str) -> None:
    """Raises StartError when the process does not answer, with the last words of its log."""
    began = time.monotonic()
    if supervisor.wait_until(product_processes.answers(url), ANSWER_WITHIN_S):
        return
    _check_stop(supervisor)
    seconds = time.monotonic() - began
    last = last_words(child.log_tail())
    raise StartError(f"{child.spec.name} does not answer at {url} after {seconds:.0f} s: {last} (log: {child.log})")


def _check_stop(supervisor: Supervisor) -> None:
    if supervisor.stop_asked:
        raise Stopped


def keep_trust(config: env.Env) -> None:
    """Writes whom gateways believe: who signs snapshots, and who signs engines' certificates. Raises StartError."""
    if config.plane and not authority.is_made(config.secrets_dir):
        raise StartError(
            f"{config.secrets_dir} lacks the keys that all control planes share: copy there the folder "
            f"`{env.SECRETS}` of the first one (docs/standing.md)"
        )
    signer = authority.snapshot_signer(config.secrets_dir)
    env.keep_secret(product_processes.snapshot_key_file(config), signer.public_pem.decode())
    now = datetime.now(UTC)
    authority.Authority.open(config.secrets_dir, authority.CONTROL_PLANE, now)  # made now, for other control planes
    nodes = authority.Authority.open(config.secrets_dir, authority.NODES, now).certificate_pem
    try:
        more = "" if config.engine_authority is None else config.engine_authority.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"GREENSERVE_ENGINE_AUTHORITY: {config.engine_authority} cannot be read: {error}") from None
    env.keep_secret(product_processes.engine_authorities_file(config), nodes + more)


def refuse_second(client: redis.Redis, config: env.Env) -> None:
    """Raises StartError where another control plane of the same name runs with this Redis."""
    try:
        said: Any = client.get(wire.processes_key(config.plane))
    except redis.RedisError as error:
        raise StartError(masked(f"REDIS_URL: {error}", product_processes.redis_url(config))) from None
    owner = "" if said is None else wire.decode(said, wire.ProcessTable).owner
    if owner and owner != _owner(config):
        raise StartError(
            f"a GreenServe with {f'the name {config.plane!r}' if config.plane else 'no name'} runs with this Redis "
            f"already, at {owner}: give this one another name with GREENSERVE_PLANE (docs/standing.md), or wait "
            f"{TABLE_TTL_S} s if that one has just been stopped"
        )


def _owner(config: env.Env) -> str:
    return f"{socket.gethostname()}:{config.var_dir}"


def _publisher(client: redis.Redis, config: env.Env) -> Callable[[wire.ProcessTable], None]:
    """Puts the process table into Redis. Redis may be away, or be one of the processes that are down: then it waits
    for the next round; the table also stands in a file."""

    def full_name(row: wire.ProcessRow) -> str:
        return row.name if row.name.startswith(AGENTS) else wire.process_name(row.name, config.plane)

    def publish(table: wire.ProcessTable) -> None:
        rows = [msgspec.structs.replace(row, name=full_name(row)) for row in table.processes]
        message = wire.encode(wire.ProcessTable(table.at_s, rows, _owner(config)))
        try:
            client.set(wire.processes_key(config.plane), message, ex=TABLE_TTL_S)
        except redis.RedisError:
            client.close()

    return publish
