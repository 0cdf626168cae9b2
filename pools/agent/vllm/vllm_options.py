"""The agent's command line for engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from core.ports import PermanentError
from pools import own_address, redis_address
from pools.vllm_scheduler.key_guard import KEY_VARIABLE

from .engine_access import EngineTls
from .launch import VllmOptions

DEFAULT_FOLDER = "var/engines"
_TLS = ("tls_certificate", "tls_key", "tls_authority")
DEFAULT_PORTS = "18400-18499"


def click_options() -> list[click.Option]:
    return [
        click.Option(["--vllm"], help="The program `vllm` that starts engines here; without it GPUs are only metered."),
        click.Option(["--engines"], default=DEFAULT_FOLDER, help="Folder for engines' logs, records and weights."),
        click.Option(
            ["--engine-host"],
            help="Address that engines listen at, best one that gateways alone reach; else that of the interface which "
            "leads to the control plane.",
        ),
        click.Option(
            ["--engine-address"],
            help="Address or name by which gateways reach engines, where it is another than --engine-host.",
        ),
        click.Option(["--tls-certificate"], help="PEM file: the node's certificate, which its engines show gateways."),
        click.Option(["--tls-key"], help="PEM file: the key of that certificate."),
        click.Option(["--tls-authority"], help="PEM file: the certificate of who signed it."),
        click.Option(["--engine-ports"], default=DEFAULT_PORTS, help="Ports that engines may listen at, FIRST-LAST."),
        click.Option(
            ["--vllm-argument"], multiple=True, help="For every engine, a word each: --vllm-argument=--seed=1."
        ),
        click.Option(["--vllm-env"], multiple=True, help="Variable of every engine, NAME=VALUE; may be repeated."),
        click.Option(
            ["--model-folder"],
            multiple=True,
            help="Folder with models' weights, itself or one level below, that the node's page lists; may be repeated.",
        ),
        click.Option(
            ["--weights-keep-free-gb"],
            type=click.FloatRange(0.0),
            default=50.0,
            help="Of the disk, when weights are fetched ahead of need.",
        ),
        click.Option(["--vllm-offline"], is_flag=True, help="Fetch nothing: weights are in the folder, or in a cache."),
        click.Option(
            ["--vllm-sleep"], is_flag=True, help="Let engines sleep; opens vLLM's development endpoints on their ports."
        ),
        click.Option(
            ["--vllm-scheduler"],
            type=click.Choice(["vllm", "greenserve"]),
            default="vllm",
            help="greenserve: its scheduler inside vLLM, whose limits can be changed live (docs/plugin.md).",
        ),
        click.Option(
            ["--vllm-kv-store"], help="Folder, as /dev/shm/greenserve, through which engines here serve split requests."
        ),
        click.Option(
            ["--vllm-kv-ports"],
            help="Ports, FIRST-LAST, by which engines serve split requests with engines of other nodes, by NIXL "
            "(docs/plugin.md): the first half for side channels, one for each GPU of each of --engine-ports, the "
            "second half for UCX.",
        ),
        click.Option(
            ["--vllm-kv-staging-gib"],
            type=click.FloatRange(0.01),
            default=4.0,
            help="Memory of the CPU for KV caches that go to other nodes or come from there, for each GPU.",
        ),
        click.Option(
            ["--engine-start-s"], type=click.FloatRange(1.0), default=3600.0, help="Longest start of an engine."
        ),
        click.Option(
            ["--engine-drain-s"], type=click.FloatRange(0.0), default=900.0, help="Longest drain of an engine."
        ),
    ]


def engine_addresses(redis_url: str, host: str | None, address: str | None) -> tuple[str, str]:
    """Returns where engines listen, and where gateways reach them. `host` and `address`: as given; None: not.

    By default both are the address of the interface that leads to the control plane's Redis, where `redis_url` says.
    Raises PermanentError: no address can be found, with the remedy.
    """
    if host and (address or not own_address.is_wildcard(host)):
        return host, address or host
    # A socket: the control plane is on this machine.
    control = next((host for host, _ in redis_address.hosts(redis_url)), own_address.LOOPBACK)
    try:
        found = own_address.towards(control)
    except OSError as error:
        raise PermanentError(
            f"the control plane's Redis: this machine knows no address of '{control}' ({error})"
        ) from error
    if found is None:
        raise PermanentError(f"no route leads to the control plane's Redis at {control}; give --engine-host")
    return host or found, address or found


def vllm_options(values: dict[str, Any], by_uuid: bool, redis_url: str = "") -> VllmOptions | None:
    """None: the node starts no engines. `redis_url`: the control plane's; empty: engines serve this machine alone.

    Raises click.UsageError, PermanentError.
    """
    if not values.get("vllm"):
        return None
    variables = {}
    for item in values.get("vllm_env") or ():
        name, sign, value = item.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--vllm-env {item}: write it as NAME=VALUE")
        if name == KEY_VARIABLE:
            raise click.UsageError(f"--vllm-env {name}=...: leave it out, each engine gets a key of its own")
        variables[name] = value
    names = {word.partition("=")[0].replace("_", "-") for word in values.get("vllm_argument") or ()}
    if "--api-key" in names:
        raise click.UsageError("--vllm-argument --api-key: leave it out, each engine gets a key of its own")
    if "--scheduling-policy" in names:
        raise click.UsageError(
            "--vllm-argument --scheduling-policy: leave it out, each engine schedules by priority; for first come, "
            "first served inside engines set the policy's knob engine_priority=false"
        )
    for option in ("engine_host", "engine_address"):
        if (given := values.get(option)) and not own_address.is_host(given):
            raise click.UsageError(f"--{option.replace('_', '-')} {given}: give an address or a name, without a port")
    if values.get("vllm_kv_store") and values.get("vllm_kv_ports"):
        raise click.UsageError(
            "--vllm-kv-store and --vllm-kv-ports: give one; by ports engines of one node meet as well"
        )
    host, address = engine_addresses(redis_url, values.get("engine_host"), values.get("engine_address"))
    tls, kv_ports = _tls(values), None
    if values.get("vllm_kv_ports"):
        kv_ports = _ports("--vllm-kv-ports", values["vllm_kv_ports"])
        if tls is None and not own_address.is_loopback(host):
            raise click.UsageError(
                f"--vllm-kv-ports: engines at {host} would take KV caches of anybody; give --tls-certificate, "
                "--tls-key and --tls-authority"
            )
    return VllmOptions(
        program=Path(values["vllm"]).absolute(),
        folder=Path(values.get("engines") or DEFAULT_FOLDER).absolute(),
        host=host,
        address=address,
        tls=tls,
        ports=_ports("--engine-ports", values.get("engine_ports") or DEFAULT_PORTS),
        arguments=tuple(values.get("vllm_argument") or ()),
        environment=variables,
        by_uuid=by_uuid,
        offline=bool(values.get("vllm_offline")),
        sleep=bool(values.get("vllm_sleep")),
        plugin=values.get("vllm_scheduler") == "greenserve",
        model_folders=tuple(Path(folder).absolute() for folder in values.get("model_folder") or ()),
        kv_store=Path(values["vllm_kv_store"]).absolute() if values.get("vllm_kv_store") else None,
        kv_ports=kv_ports,
        kv_staging_bytes=int(float(values.get("vllm_kv_staging_gib") or 4.0) * (1 << 30)),
        start_within_s=float(values.get("engine_start_s") or 3600.0),
        keep_free_bytes=1e9 * float(50.0 if (gb := values.get("weights_keep_free_gb")) is None else gb),
        drain_within_s=float(900.0 if values.get("engine_drain_s") is None else values["engine_drain_s"]),
    )


def _tls(values: dict[str, Any]) -> EngineTls | None:
    files = [values.get(name) for name in _TLS]
    if not any(files):
        return None
    if not all(files):
        raise click.UsageError("--tls-certificate, --tls-key and --tls-authority: give all three, or none")
    return EngineTls(*(Path(str(file)).absolute() for file in files))


def _ports(option: str, text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    try:
        found = int(first), int(last or first)
    except ValueError:
        found = (0, 0)
    if not 1 <= found[0] <= found[1] <= 65535:
        raise click.UsageError(f"{option} {text}: write it as FIRST-LAST, from 1 to 65535")
    return found
