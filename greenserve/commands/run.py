"""The commands up, down, status and logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from greenserve import env
from greenserve.cli import fail
from greenserve.process import tail
from greenserve.supervision import disk_room, preflight
from greenserve.supervision.preflight import Lock, Refusal

DETACH_WITHIN_S = 420.0
DOWN_WITHIN_S = 60.0


@click.command()
@click.option("--detach", is_flag=True, help="Run in the background; return once the addresses answer.")
@click.option("--json", "as_json", is_flag=True, help="Print addresses and sign-in as JSON (events go to stderr).")
def up(detach: bool, as_json: bool) -> None:
    """Start PostgreSQL, Redis, the dashboard, the gateway, the scheduler and the demo's nodes, and keep them running.

    A process that ends is started again. Ctrl-C stops all. Data stays in GREENSERVE_VAR from run to run.

    Exit status: 3 when it already runs, 4 when a port is taken, 5 when something did not start.
    """
    config = env.read()
    if detach:
        _up_detached(config, as_json)
        return
    from greenserve.supervision.up import run

    began = time.monotonic()

    def report(line: str) -> None:
        try:
            click.echo(f"{time.strftime('%H:%M:%S')} {time.monotonic() - began:6.1f} s  {line}", err=as_json)
        except BrokenPipeError:
            raise
        except OSError:
            pass  # a full disk under its log must not end the supervisor

    def announce() -> None:
        _announce(config, summary(config), as_json=as_json, seconds=time.monotonic() - began)

    try:
        run(config, report, announce)
    except Refusal as refusal:
        fail(str(refusal), refusal.status)


def _up_detached(config: env.Env, as_json: bool) -> None:
    lock = Lock.of(config.var_dir)
    if pid := lock.holder():
        fail(f"already running (pid {pid}): see `greenserve status`, stop it with `greenserve down`", 3)
    log = config.var_dir / "log" / "supervisor.log"
    preflight.close_to_others(config.var_dir)
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "greenserve", "up"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=config.work_dir,  # not where the caller stands: packages of our names may lie there
            env=env.for_child(owner=True, GREENSERVE_VAR=str(config.var_dir)),
        )
    while process.poll() is None:
        state = preflight.read_state(config.var_dir)
        if state.get("supervisor_pid") == process.pid and state.get("state") == "ready":
            _announce(config, summary(config), as_json=as_json, seconds=time.monotonic() - began)
            return
        if time.monotonic() - began > DETACH_WITHIN_S:
            process.terminate()
            fail(f"not ready after {DETACH_WITHIN_S:g} s, stopped again; see {log}", preflight.START_FAILED)
        time.sleep(0.1)
    click.echo(tail(log, 1) or f"greenserve: ended without a word; see {log}", err=True)
    raise SystemExit(process.returncode or 1)


@click.command()
def down() -> None:
    """Stop what `greenserve up` started, and wait until it is gone."""
    config = env.read()
    lock = Lock.of(config.var_dir)
    pid = lock.holder()
    if pid is None:
        click.echo(f"Nothing runs for {config.var_dir}.")
        return
    click.echo(f"Stopping (pid {pid}) ...")
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_WITHIN_S
    while lock.holder() == pid:
        if time.monotonic() > deadline:
            fail(f"pid {pid} still runs after {DOWN_WITHIN_S:g} s: `kill -9 {pid}` ends it and all its processes")
        time.sleep(0.1)
    click.echo("Stopped. Data is kept; `greenserve up` goes on with it.")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def status(as_json: bool) -> None:
    """Show which processes run, their restarts and logs, and disks that take nothing.

    Exit status 1 when nothing runs, or a disk of the product's folders is full or read-only.
    """
    config = env.read()
    pid = Lock.of(config.var_dir).holder()
    found = {
        "running": pid is not None,
        "supervisor_pid": pid,
        "state": preflight.read_state(config.var_dir).get("state") if pid else "stopped",
        **summary(config),
        "processes": _process_table(config.var_dir) if pid else [],
        "disk_faults": disk_room.faults(config),
    }
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif pid is None:
        click.echo(f"Nothing runs for {config.var_dir}. `greenserve up` starts it.")
    else:
        _print_status(found)
    if not as_json:
        for fault in found["disk_faults"]:
            click.secho(fault, fg="red")
    if pid is None or found["disk_faults"]:
        raise SystemExit(1)


@click.command()
@click.argument("name", required=False)
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(1, 100_000), help="How many lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on printing as lines come (Ctrl-C ends).")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def logs(name: str | None, lines: int, follow: bool, as_json: bool) -> None:
    """Show the log of process NAME, for example `gateway` or `node.loc1-a100`. Without a name: list the logs."""
    folder = env.read().var_dir / "log"
    known = sorted(path.stem for path in folder.glob("*.log"))
    if name is None:
        click.echo(json.dumps(known) if as_json else "\n".join(known) or "No logs yet: `greenserve up` makes them.")
        return
    if name not in known:
        fail(f"no log of {name!r}; there are: {', '.join(known) or 'none yet'}")
    path = folder / f"{name}.log"
    if as_json:
        click.echo(json.dumps({"name": name, "path": str(path), "lines": tail(path, lines).splitlines()}))
        return
    click.echo(tail(path, lines))
    if follow:
        _follow(path)


def _follow(path: Path) -> None:
    position = path.stat().st_size
    while True:
        size = path.stat().st_size
        position = 0 if size < position else position  # the log was capped
        if size > position:
            with path.open("rb") as file:
                file.seek(position)
                content = file.read()
            position += len(content)
            click.echo(content.decode(errors="replace"), nl=False)
        time.sleep(0.3)


def summary(config: env.Env) -> dict[str, Any]:
    """Returns addresses and the demo's sign-in. Secrets are the demo's own, made on this machine."""
    credentials = demo_credentials(config)
    return {
        "dashboard": f"http://{_reachable(config.web_host)}:{config.web_port}/",
        "gateway": f"http://{_reachable(config.gateway_host)}:{config.gateway_port}/v1",
        "var": str(config.var_dir),
        "model": preflight.read_state(config.var_dir).get("model"),
        "sign_in": credentials.get("admin"),
        "api_keys": credentials.get("api_keys", {}),
    }


def demo_credentials(config: env.Env) -> dict[str, Any]:
    """Returns what the demo wrote for people to sign in with; empty when there is no demo."""
    try:
        found = json.loads((config.var_dir / "demo-credentials.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _reachable(host: str) -> str:
    if host in ("0.0.0.0", "::"):  # noqa: S104 - read, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _process_table(var_dir: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads((var_dir / "run" / "processes.json").read_bytes())["processes"]
    except (OSError, ValueError, KeyError):
        return []
    return rows


def _print_status(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("process", "state", "pid", "up for", "restarts", "last exit"):
        table.add_column(column, justify="right" if column in ("pid", "up for", "restarts") else "left")
    for row in found["processes"]:
        up_s = time.time() - row["started_at_s"] if row["started_at_s"] else None
        seconds = "" if up_s is None else f"{up_s:.0f} s"
        cells = (row["name"], row["state"], str(row["pid"] or ""), seconds, str(row["restarts"]), row["last_exit"])
        table.add_row(*cells, style=None if row["state"] == "running" else "red")
    console = Console(soft_wrap=True)
    console.print(f"GreenServe is {found['state']} (supervisor's pid {found['supervisor_pid']})", highlight=False)
    console.print(f"dashboard {found['dashboard']}   gateway {found['gateway']}   logs {found['var']}/log/\n")
    console.print(table)


def _announce(config: env.Env, found: dict[str, Any], *, as_json: bool, seconds: float) -> None:
    if as_json:
        click.echo(json.dumps(found | {"seconds": round(seconds, 1)}))
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\n[bold green]GreenServe is up[/] after {seconds:.1f} s\n")
    sign_in = found["sign_in"]
    console.print(f"  Dashboard  [bold]{found['dashboard']}[/]")
    if sign_in:
        console.print(f"  Sign in    user [bold]{sign_in['user']}[/]  password [bold]{sign_in['password']}[/]")
    else:
        console.print("  Sign in    make yourself a user: greenserve user create NAME --role administrator")
    console.print(f"  Gateway    [bold]{found['gateway']}[/]  (OpenAI-compatible; {found['gateway'][:-3]}/ready)")
    for tenant, key in list(found["api_keys"].items())[:1]:
        body = json.dumps({"model": found["model"], "prompt": "Wind and sun", "max_tokens": 32, "stream": True})
        console.print(f"  API key    {key}  (tenant {tenant}; all of them: {found['var']}/demo-credentials.json)")
        console.print("\n  Try it, once the first instances are ready (some 30 s):")
        console.print(
            f"    curl -N {found['gateway']}/completions -H 'Authorization: Bearer {key}' "
            f"-H 'Content-Type: application/json' -d '{body}'",
            markup=False,
        )
    if config.demo:
        console.print(f"\n  {demo_note(config)}")
    console.print(
        "\n  Stop: Ctrl-C here, or `greenserve down`.  State: `greenserve status`.  Logs: `greenserve logs`.\n"
    )


def demo_note(config: env.Env) -> str:
    """Returns a sentence on what the demo does faster than life."""
    slow_s, speedup = 1800.0 / config.demo_speedup, config.demo_speedup
    return (
        f"This is the demo: nodes and the carbon curve are simulated, and time is pressed. Carbon epochs run every "
        f"{slow_s:g} s (30 min in earnest), and transition times are divided by {speedup:g}. The scale loop looks each "
        "10 s, as in earnest, and requests run in real time."
    )
