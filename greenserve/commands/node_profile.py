"""node profile: measures an engine of this machine, and makes a profile of it."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenserve.cli import fail

from .secret_files import secret_of_file

if TYPE_CHECKING:
    from pools.agent.real_node import RealNode
    from pools.profiler.plan_runner import Progress
    from pools.profiler.session import Found, Order, ProfiledNode

_PLAIN_EVERY_S = 10.0
_CONTROL_TIMEOUT_S = 5.0  # the agent's is shorter: it has its own pace to keep


def _numbers(kind: type[int] | type[float]) -> Callable[..., Any]:
    """Reads 1,4,16: numbers above 0."""

    def read(_: click.Context, __: click.Parameter, text: str | None) -> tuple[float, ...] | None:
        if text is None:
            return None
        try:
            found = tuple(kind(part) for part in text.split(","))
        except ValueError:
            found = ()
        if not found or min(found) <= 0:
            raise click.BadParameter(f"'{text}' is not a list of numbers above 0, such as 1,4,16")
        return found

    return read


def _out(_: click.Context, __: click.Parameter, value: Path) -> Path:
    if value.suffix.lower() not in (".csv", ".json"):
        raise click.BadParameter(f"'{value}' ends neither in .csv nor in .json")
    return value


@click.command()
@click.option("--model", required=True, help="Such as Llama3-8B: the catalogue's name, where it has one.")
@click.option("--config", metavar="PLACE", help="Its config.json: a file, its folder, or owner/name of the hub.")
@click.option("--url", help="Of an engine that runs on this machine.  [default: one is started for each TP degree]")
@click.option("--tp", "tps", default="1", show_default=True, callback=_numbers(int), help="TP degrees, such as 1,2,4.")
@click.option("--mhz", callback=_numbers(float), help="SM clocks.  [default: four, from half the top clock up]")
@click.option("--minutes", default=30.0, show_default=True, type=click.FloatRange(0.1), help="Then no load is begun.")
@click.option("--out", default="profile.csv", show_default=True, type=click.Path(path_type=Path), callback=_out)
@click.option("--gpu", help="Type of the GPUs.  [default: what the meter says]")
@click.option("--engine", default="vllm-v1", show_default=True, help="Serving engine.")
@click.option("--declare", metavar="IDLE:FULL", help="Watts of a machine without a meter, idle and busy.")
@click.option("--control", help="A simulated node's control API, http://HOST:PORT, in place of this machine.")
@click.option("--batches", callback=_numbers(int), help="Of the sweep.  [default: 1,4,16 ... up to a full KV cache]")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Of each point of the sweep.")
@click.option("--window", default=10.0, show_default=True, type=click.FloatRange(1.0), help="Seconds of each load.")
@click.option("--loads/--no-loads", default=True, help="Loads of the nine classes too, or the sweep alone.")
@click.option(
    "--ttft", type=click.FloatRange(0.0, min_open=True), help="Limit in seconds, p90, above which a load is too high."
)
@click.option("--tpot", type=click.FloatRange(0.0, min_open=True), help="The same of the time per output token.")
@click.option(
    "--key-file",
    "key",
    type=secret_of_file,
    metavar="FILE",
    help="File with the API key of the engine, - for standard input.",
)
@click.option("--max-model-len", default=8192, show_default=True, type=click.IntRange(64), help="Of engines started.")
@click.option("--vllm", help="The program `vllm` that starts engines here.")
@click.option("--engines", default="var/profiler", show_default=True, help="Folder for logs and weights; no agent's.")
@click.option("--weights", default="", help="Of engines started: a Hugging Face id, or a folder.")
@click.option("--vllm-argument", multiple=True, help="For engines started, a word each: --vllm-argument=--seed=1.")
@click.option("--vllm-env", multiple=True, help="Variable of engines started, NAME=VALUE; may be repeated.")
@click.option("--vllm-offline", is_flag=True, help="Fetch nothing: the weights are on this machine.")
@click.option("--publish", is_flag=True, help="Publish it then at GREENSERVE_URL, with GREENSERVE_TOKEN.")
def profile(
    model: str,
    config: str | None,
    url: str | None,
    tps: tuple[int, ...],
    mhz: tuple[float, ...] | None,
    minutes: float,
    out: Path,
    gpu: str | None,
    engine: str,
    declare: str | None,
    control: str | None,
    batches: tuple[int, ...] | None,
    repeats: int,
    window: float,
    loads: bool,
    ttft: float | None,
    tpot: float | None,
    key: str | None,
    max_model_len: int,
    vllm: str | None,
    engines: str,
    weights: str,
    vllm_argument: tuple[str, ...],
    vllm_env: tuple[str, ...],
    vllm_offline: bool,
    publish: bool,
) -> None:
    """Measure an engine: a sweep of batches, clocks and TP degrees, then rising loads of the nine classes.

    Beside the profile NAME.csv come NAME.run.csv (every repeat), NAME.loads.csv (every rate) and the picture
    NAME.html. What was finished is in NAME.journal: the same command goes on from there. Ctrl-C gives the clocks back.

    \b
    greenserve node profile --model Llama3-8B --tp 1,2 --minutes 60 --out llama8b.csv
    greenserve node profile --model our-tuned --config ./our-tuned --tp 2 --publish
    greenserve node profile --model tiny --url http://127.0.0.1:8000 --declare 20:65
    """
    from core.engine.engine_launch import EngineLaunch
    from core.engine.engine_params import split_fault
    from core.types import Limits
    from pools.profiler.measurements import Effort
    from pools.profiler.session import Order

    if url is not None and len(tps) > 1:
        raise click.UsageError("--url is of one engine: give its TP degree alone")
    shape = "" if config is None else _shape(config, vllm_argument)
    for tp in tps:
        if fault := split_fault(shape or model, gpu or "", tp):
            raise click.UsageError(f"--tp: {fault}")
    if publish:
        _check_that_it_answers()
    order = Order(
        model=model,
        out=out,
        gpu=gpu,
        engine=engine,
        url=url,
        key=key or "none",
        tps=tps,
        clocks_mhz=mhz,
        minutes=minutes,
        batches=batches,
        max_model_len=max_model_len,
        launch=EngineLaunch(weights=weights),
        with_loads=loads,
        effort=Effort(repeats, window, limits=Limits(ttft, tpot) if ttft or tpot else None),
        shape=shape,
    )
    options: dict[str, Any] = {"vllm": vllm, "engines": engines, "vllm_offline": vllm_offline}
    options |= {"vllm_argument": vllm_argument, "vllm_env": vllm_env}
    with _node(control, declare, options) as node:
        found = _run(order, node)
    _show(order, found)
    if publish:
        from greenserve.commands.engine import publish as publishing

        click.echo(f"Publishing {out}; where that fails: greenserve engine publish {out}", err=True)
        publishing.show(publishing.send(out, publish=True))


def _shape(config: str, vllm_argument: Sequence[str]) -> str:
    """Returns the key of the shape that a config.json describes, with the KV cache that the engine's arguments set."""
    from core.engine.model_config import BadConfig
    from pools.model_files.hugging_face import kv_bits_of, shape_from

    try:
        return shape_from(config, kv_bits_of(vllm_argument)).key
    except BadConfig as error:
        raise click.UsageError(f"--config: {error}") from None


def _check_that_it_answers() -> None:
    """Asks GreenServe for a profile: who has measured for an hour should not learn then that the address is wrong."""
    from greenserve.client import GreenServeError
    from greenserve.commands.apply import client_of
    from greenserve.commands.engine.publish import LABEL

    try:
        with client_of(None, None, None, LABEL) as api:
            next(iter(api.engine_profiles.list(page_size=1)), None)
    except GreenServeError as error:
        fail(f"--publish: {error}. Set GREENSERVE_URL and GREENSERVE_TOKEN, or publish later; nothing was measured")


@contextmanager
def _node(control: str | None, declare: str | None, engines: dict[str, Any]) -> Iterator[ProfiledNode]:
    """Yields the simulated node, the machine's GPUs, or its processors with declared power."""
    from core.ports import AdapterError
    from pools.agent.devices.sim import SimFrequencyActuator, SimGpuMeter, SimInstanceRuntime
    from pools.agent.http_client import HttpClient
    from pools.profiler.session import ProfiledNode

    if control is not None:
        try:
            client = HttpClient(control, _CONTROL_TIMEOUT_S)
        except ValueError as error:
            raise click.UsageError(f"--control: {error}") from error
        yield ProfiledNode(
            SimGpuMeter(client), SimFrequencyActuator(client), SimInstanceRuntime(client), "simulated counters"
        )
        client.close()
        return
    try:
        machine, watts_by = _machine(declare, engines)
    except (AdapterError, ValueError) as error:
        fail(f"{error}; a machine without GPUs is profiled with --declare IDLE:FULL watts")
    if refusal := machine.measure_only():
        click.echo(f"The default clock is profiled: {refusal}", err=True)
    yield ProfiledNode(machine.meter, None if refusal else machine.actuator, machine.engines, watts_by)
    machine.close()


def _machine(declare: str | None, engines: dict[str, Any]) -> tuple[RealNode, str]:
    """Returns this machine, and in words what its meter is. Raises AdapterError and ValueError."""
    from pools.actuator.actuator_protocol import DEFAULT_SOCKET
    from pools.agent.devices.declared import Declaration
    from pools.agent.real_node import declared_node, nvml_node
    from pools.agent.vllm.vllm_options import vllm_options

    if declare is None:
        found = nvml_node(DEFAULT_SOCKET, vllm_options(engines, by_uuid=True))
        found.meter.read()
        return found, "NVML's counters"
    power = Declaration.read("CPU:1", declare)
    node = declared_node("profile", power, vllm_options(engines, by_uuid=False))
    return node, f"declared power: {power.idle_w:g} W idle, {power.full_w:g} W with all processors busy"


def _run(order: Order, node: ProfiledNode) -> list[Found]:
    from core.ports import AdapterError
    from pools.profiler.session import profile as run_profile

    journal = order.beside(".journal")
    with _progress() as on_progress:
        try:
            found = asyncio.run(run_profile(order, node, on_progress))
            write_pictures(order, found)
            return found
        except KeyboardInterrupt:
            click.echo(f"Stopped. What was finished is in {journal}; the same command goes on from there.", err=True)
            sys.exit(130)
        except (AdapterError, ValueError, OSError) as error:
            fail(str(error))


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """Shows progress: a bar with the time left on a terminal, else a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _plain()
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"), TextColumn("{task.description}"))
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("", total=None, left="")

        def on_progress(at: Progress) -> None:
            bar.update(task, completed=at.done, total=at.total, description=at.step, left=_left(at))
            if at.note:
                bar.console.print(at.note, markup=False)

        yield on_progress


def _plain() -> Callable[[Progress], None]:
    last_s = -_PLAIN_EVERY_S

    def on_progress(at: Progress) -> None:
        nonlocal last_s
        if at.note:
            click.echo(at.note, err=True)
        if time.monotonic() - last_s >= _PLAIN_EVERY_S or at.done == at.total:
            last_s = time.monotonic()
            click.echo(" ".join(part for part in (f"{at.done}/{at.total}", _left(at), at.step) if part), err=True)

    return on_progress


def _left(at: Progress) -> str:
    if at.left_s is None or at.done == at.total:
        return ""
    minutes, seconds = divmod(round(at.left_s), 60)
    return f"{minutes}:{seconds:02d} left"


def write_pictures(order: Order, found: list[Found]) -> None:
    """Writes a page with a picture of each TP degree, if Plotly is there to make it. Raises OSError."""
    if not _has_plotly():
        click.echo("No picture is made: a node's installation has no Plotly; `pip install plotly` adds it.", err=True)
        return
    from frontend.charts.figure_page import write_page
    from frontend.charts.value_figures import panels
    from pools.profiler.profile_picture import profile_panels

    for one in found:
        write_page(order.beside(".html", one.outcome.profile.tp), partial(panels, profile_panels(one.outcome)))


def _has_plotly() -> bool:
    return importlib.util.find_spec("plotly") is not None


def _show(order: Order, found: list[Found]) -> None:
    from pools.profiler.result import words

    for one in found:
        for line in words(one.outcome):
            click.echo(line)
        for line in one.missed:
            click.echo(f"not measured: {line}")
        _show_rates(one)
    written = [order.out, order.beside(".html")] if _has_plotly() else [order.out]
    click.echo(f"Written: {', '.join(map(str, written))} and beside it .run.csv, .loads.csv, .journal")


def _show_rates(found: Found) -> None:
    """Writes for each class and clock the highest rate that did not saturate."""
    best: dict[tuple[str, float], Any] = {}
    for row in found.loads:
        if not row["saturated"] and row["rate_rps"] > 0.0:
            best[row["class"], row["mhz"]] = max(best.get((row["class"], row["mhz"]), 0.0), row["rate_rps"])
    for (name, mhz), rps in sorted(best.items()):
        click.echo(f"load {name} at {mhz:g} MHz: {rps:.3g} requests a second")
