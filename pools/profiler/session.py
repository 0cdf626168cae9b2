"""Profiles a node: for each TP degree an engine, its sweep, then its classes' loads; files of what came of it.

Beside the profile `NAME.csv` lie `NAME.run.csv` (each repeat: `engine import run` reads it), `NAME.loads.csv` (each
rate) and, while it goes on and after, `NAME.journal`.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from core.cells import write_csv
from core.engine.engine_launch import EngineLaunch
from core.engine.engine_model import UnknownConfiguration, engine_model
from core.engine.profiles import write_profile
from core.policy.dynamo_classes import request_classes
from core.policy.request_classes import ClassBounds
from core.ports import FrequencyActuator, GpuMeter, GpuReading, InstanceRuntime, InstanceSpec, PermanentError
from pools.agent.http_client import HttpClient
from pools.agent.vllm.vllm_metrics import VllmMetrics

from .calls import Calls
from .counter_watch import Watch
from .measurements import Effort, EngineEndpoint, idle_watts
from .plan import (
    CONTEXT_PROMPTS,
    DECODE,
    LOAD,
    MOST_SEQUENCES,
    PREFILL,
    SWEEP_OUTPUT_TOKENS,
    Bounds,
    Step,
    loads,
    sweep,
)
from .plan_runner import ProgressCallback, go_through, started
from .profiling_journal import Journal
from .result import ProfilingResult, evaluate

_TIMEOUT_S = 5.0
Key = tuple[str, str, int, str]  # model, GPU, TP, engine
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProfiledNode:
    """The adapters of a node. `meter` None: timed only; `actuator` None: default clocks; `runtime` None: only by `url`.

    `watts_by`: in words, what the meter is.
    """

    meter: GpuMeter | None
    actuator: FrequencyActuator | None = None
    runtime: InstanceRuntime | None = None
    watts_by: str = "the GPUs' counters"


@dataclass(frozen=True, slots=True)
class Order:
    """An order to profile a model.

    Attributes:
        gpu: Type; None: what the meter says.
        shape: Key of the model's shape, which the profile is then of; empty: the model is known by its name.
        url: Of an engine that runs already, on the node's first `tp` GPUs; None: started here for each TP degree.
        clocks_mhz: None: some from half the top clock up where clocks can be set, else the default clock.
        max_model_len, launch: Of engines started here.
        minutes: Loads are not begun after it.
        batches: Of the sweep; None: up to a full KV cache.
        prompts: Of the sweep, a short and a long one; `output_tokens`: how many follow each.
    """

    model: str
    out: Path
    gpu: str | None = None
    engine: str = "vllm-v1"
    url: str | None = None
    key: str = "none"
    tps: tuple[int, ...] = (1,)
    clocks_mhz: tuple[float, ...] | None = None
    minutes: float = 30.0
    batches: tuple[int, ...] | None = None
    prompts: tuple[int, int] = CONTEXT_PROMPTS
    output_tokens: int = SWEEP_OUTPUT_TOKENS
    most_sequences: int = MOST_SEQUENCES
    max_model_len: int = 4096
    launch: EngineLaunch = field(default_factory=EngineLaunch)
    with_loads: bool = True
    classes: tuple[ClassBounds, ...] = request_classes()
    effort: Effort = field(default_factory=Effort)
    shape: str = ""

    def beside(self, suffix: str, tp: int | None = None) -> Path:
        """Returns the path of a file that goes with the profile; with `tp`, of one that each TP degree has."""
        own = f".tp{tp}" if tp is not None and len(self.tps) > 1 else ""
        return self.out.with_suffix(f"{own}{suffix}")


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a TP degree. `repeats`: each row of the sweep. `missed`: what was not measured, and why."""

    outcome: ProfilingResult
    repeats: tuple[Mapping[str, Any], ...]
    loads: tuple[Mapping[str, Any], ...]
    missed: tuple[str, ...]


async def profile(order: Order, node: ProfiledNode, on_progress: ProgressCallback) -> list[Found]:
    """Profiles each TP degree, and writes the files of `order.out`.

    What the journal has is not measured again. Cancelled, it gives clocks back and ends the engines that it started.

    Raises:
        AdapterError: Meter, clocks or engine fail.
        ProfileError, JournalError: What was measured makes no profile, or the journal is of another run.
        OSError: A file cannot be written.
    """
    with Calls() as calls:
        return await _profile(order, node, calls, on_progress)


async def _profile(order: Order, node: ProfiledNode, calls: Calls, on_progress: ProgressCallback) -> list[Found]:
    gpus = await calls(node.meter.read) if node.meter is not None else ()
    gpu = order.gpu or (gpus[0].gpu_type if gpus else None)
    if gpu is None:
        raise PermanentError("no meter says what GPUs these are: give their type")
    clocks = _clocks(order, node, gpus)
    head: dict[str, Any] = {
        "model": order.model,
        "gpu": gpu,
        "engine": order.engine,
        "tps": list(order.tps),
        "clocks_mhz": clocks,
    }
    if order.shape:
        head["shape"] = order.shape
    head |= {"batches": order.batches, "prompts": order.prompts, "watts": node.watts_by if node.meter else None}
    journal = Journal(order.beside(".journal"), head)
    until_s = time.monotonic() + 60.0 * order.minutes
    found = []
    try:
        for tp in order.tps:
            key = (order.shape or order.model, gpu, tp, order.engine)
            uuids = [one.uuid for one in gpus[:tp]]
            if gpus and len(uuids) < tp:
                raise PermanentError(f"TP {tp} needs {tp} GPUs, and the node has {len(gpus)}")
            async with _engine(order, node, calls, key, uuids) as (url, asked):
                found.append(
                    await _one(order, node, calls, key, url, asked, uuids, clocks, journal, on_progress, until_s)
                )
    finally:
        journal.close()
    _write(order, found)
    return found


def _clocks(order: Order, node: ProfiledNode, gpus: Sequence[GpuReading]) -> list[float]:
    top = gpus[0].max_mhz if gpus else None
    if node.actuator is None:
        if order.clocks_mhz and (len(order.clocks_mhz) > 1 or order.clocks_mhz[0] != top):
            raise PermanentError("clocks cannot be set on this node: without --mhz the default clock is profiled")
        if top is None:
            raise PermanentError("no meter says at what clock this machine runs")
        return [top]
    if order.clocks_mhz:
        return sorted(order.clocks_mhz)
    assert top is not None, "who can set clocks can read GPUs"
    return [round(top * share) for share in (0.5, 0.65, 0.8)] + [top]


@asynccontextmanager
async def _engine(
    order: Order, node: ProfiledNode, calls: Calls, key: Key, uuids: Sequence[str]
) -> AsyncIterator[tuple[str, str]]:
    """Yields the address of an engine that serves, and the API key that it asks for."""
    if order.url is not None:
        yield order.url, order.key
        return
    if node.runtime is None:
        raise PermanentError("this node starts no engines: give the URL of one that runs, or say where vLLM is")
    tp = key[2]
    spec = InstanceSpec(
        f"profile-tp{tp}", order.model, order.engine, tuple(uuids), order.max_model_len, launch=order.launch
    )
    spec = replace(spec, shape=order.shape)
    async with started(calls, node.runtime, spec) as (url, asked):
        yield url, asked or order.key


async def _one(
    order: Order,
    node: ProfiledNode,
    calls: Calls,
    key: Key,
    url: str,
    asked: str,
    uuids: Sequence[str],
    clocks: Sequence[float],
    journal: Journal,
    on_progress: ProgressCallback,
    until_s: float,
) -> Found:
    """Profiles one TP degree, on an engine that serves."""
    served, bounds = await calls(_asked, url, asked, order.model, key)
    metrics = VllmMetrics(timeout_s=_TIMEOUT_S)
    watch = Watch(calls, node.meter, uuids, metrics, url)
    seed, most = order.effort.seed, order.most_sequences
    steps: tuple[Step, ...] = sweep(bounds, clocks, order.batches, seed, most, order.prompts, order.output_tokens)
    if order.with_loads:
        steps += loads(order.classes, bounds, clocks)
    prefix = f"tp{key[2]} "
    try:
        if prefix + "idle" not in journal.done:
            journal.add(prefix + "idle", [{"watts": await idle_watts(watch, order.effort.idle_s)}])
        engine = EngineEndpoint(url, served, asked)
        missed = await go_through(
            steps, engine, watch, order.effort, calls, journal, prefix, node.actuator, uuids, on_progress, until_s
        )
    finally:
        metrics.close()
    rows = {step: journal.done.get(prefix + step.key, []) for step in steps}
    repeats, holes = whole([row for step in steps if step.kind in (DECODE, PREFILL) for row in rows[step]])
    origin = "greenserve node profile, " + (f"watts by {node.watts_by}" if node.meter else "timed only")
    outcome = evaluate(repeats, key, origin, journal.done[prefix + "idle"][0]["watts"], journal.written_at_s)
    named = [{"tp": key[2], **row} for step in steps if step.kind == LOAD for row in rows[step]]
    said = dict(zip(("model", "gpu", "tp", "engine"), key, strict=True))
    return Found(outcome, tuple({**said, **row} for row in repeats), tuple(named), (*missed, *holes))


def whole(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Leaves out batches that not every clock has, since a profile has no holes; says which."""
    clocks = {row["mhz"] for row in rows}
    have: dict[tuple[int, int], set[float]] = {}
    for row in rows:
        have.setdefault((row["prefill_tokens"], row["batch"]), set()).add(row["mhz"])
    partial = {shape for shape, at in have.items() if at != clocks}
    kept = [row for row in rows if (row["prefill_tokens"], row["batch"]) not in partial]
    return kept, [f"left out, not measured at every clock: prefill {p}, batch {b}" for p, b in sorted(partial)]


def _asked(url: str, asked: str, model: str, key: Key) -> tuple[str, Bounds]:
    """Asks an engine for the name that it serves, and what it can take. `asked`: its API key. Raises AdapterError."""
    client = HttpClient(url, _TIMEOUT_S, {"Authorization": f"Bearer {asked}"})
    try:
        models = msgspec.json.decode(client.call("GET", "/v1/models"))["data"]
        text = client.call("GET", "/metrics").decode(errors="replace")
    finally:
        client.close()
    names = [one["id"] for one in models]
    served = next((one for one in models if one["id"] == model), models[0])
    if model not in names and len(models) > 1:
        raise PermanentError(f"{url} serves {', '.join(names)}, not {model}")
    return served["id"], Bounds(int(served["max_model_len"]), _kv_tokens(text, key))


def _kv_tokens(metrics: str, key: Key) -> int | None:
    """Returns the cache's tokens by the engine's own word, else the closed form's; None: neither knows."""
    if (found := _CACHE_CONFIG.search(metrics)) is not None:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', found[1]))
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if blocks.isdigit() and size.isdigit():
            return int(blocks) * int(size)
    try:
        return int(engine_model(*key).kv_capacity_tokens)
    except UnknownConfiguration:
        return None


def _write(order: Order, found: Sequence[Found]) -> None:
    write_profile(order.out, *(one.outcome.profile for one in found))
    for one in found:
        _write_rows(order.beside(".run.csv", one.outcome.profile.tp), one.repeats)
    _write_rows(order.beside(".loads.csv"), [row for one in found for row in one.loads])


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        header = list(dict.fromkeys(name for row in rows for name in row))
        write_csv(file, header, ([row.get(name) for name in header] for row in rows))
