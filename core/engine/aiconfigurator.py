"""A profile from aiconfigurator's database: latencies that NVIDIA measured, of vLLM and TensorRT-LLM on its GPUs.

https://github.com/ai-dynamo/aiconfigurator (Apache-2.0) times the kernels of an engine on a GPU and adds them up to an
iteration. So its figures have no host overhead in them, are for the clock that the GPU chose by itself (taken here as
the top clock), and know of no power. The package is an optional extra, imported when it is asked for; this module uses
the three calls in `Latencies`. It never lets the package reach out to the network for a model's shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Protocol

from core.engine.engine_model import MAX_SEQUENCES, EngineModel, engine_model
from core.engine.profiles import Point, Profile
from core.types import Source

_DISTRIBUTION = "aiconfigurator-core"
_MODULES = ("sdk", "sdk.common", "sdk.perf_database")
# Their serving engines and ours; their names of GPUs and of models (the same shape is enough).
ENGINES = {"vllm": "vllm-v1", "trtllm": "trtllm"}
SYSTEMS = {"H100-SXM-80GB": "h100_sxm", "A100-80GB": "a100_sxm"}
MODELS = {
    "Llama3-8B": "meta-llama/Meta-Llama-3.1-8B",
    "Llama3-70B": "meta-llama/Meta-Llama-3.1-70B",
    "Qwen3-8B": "Qwen/Qwen3-8B",
    "Qwen3-32B": "Qwen/Qwen3-32B",
    "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B",
}
_PREFILLS = (0, 128, 256, 512, 1024, 2048, 4096, 8192)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, MAX_SEQUENCES)
_CONTEXTS = (64, 512, 2048, 8192, 32768)  # of each sequence


class AiconfiguratorError(ValueError):
    """Nothing can be imported: says why."""


class AiconfiguratorMissing(AiconfiguratorError):
    """The package is not installed."""


class Latencies(Protocol):
    """The part of aiconfigurator's EngineHandle that is used here: iterations in milliseconds.

    A decoding sequence's context is isl + osl // 2 there.
    """

    def predict_prefill_latency(self, bs: int, isl: int, prefix: int = 0) -> float: ...

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float: ...

    def mixed_step_breakdown(
        self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int
    ) -> tuple[float, float, float, float]:
        """Returns the whole, then: all but attention, prefill's attention at isl, decodes' attention at isl +
        osl // 2."""
        ...


def import_profile(
    model: str, gpu: str, tp: int, backend: str = "vllm", version: str | None = None, shape: Path | None = None
) -> Profile:
    """Returns the profile of a configuration, as far as its KV cache goes.

    Args:
        model: One of `MODELS`, or any model of ours with `shape`.
        gpu: One of `SYSTEMS`.
        tp: Tensor-parallel degree; a mixture of experts is cut the same way.
        backend: One of `ENGINES`.
        version: Of the backend; None: the database's current one.
        shape: A folder with the model's config.json as Hugging Face has it.

    Raises:
        AiconfiguratorMissing: The package is not installed.
        AiconfiguratorError: The model, GPU, backend or version is not in its database, or the weights do not fit.
        UnknownConfiguration: We do not know the model, GPU or TP degree.
    """
    if backend not in ENGINES:
        raise AiconfiguratorError(f"backend '{backend}': known are {', '.join(ENGINES)}")
    instance = engine_model(model, gpu, tp, ENGINES[backend])
    if gpu not in SYSTEMS:
        raise AiconfiguratorError(f"gpu '{gpu}' is not in its database; of ours it has {', '.join(SYSTEMS)}")
    if shape is None and model not in MODELS:
        raise AiconfiguratorError(
            f"model '{model}' is not in its database; of ours it has {', '.join(MODELS)}. "
            "For another give the folder of its config.json"
        )
    if shape is not None:
        _check_shape(instance, shape)
    latencies, origin = _open(instance, backend, version, MODELS[model] if shape is None else str(shape))
    return profile_of(latencies, instance, origin)


def profile_of(latencies: Latencies, instance: EngineModel, origin: str) -> Profile:
    """Asks for every point of the grid that the instance's KV cache has room for. Raises AiconfiguratorError."""
    capacity = int(instance.kv_capacity_tokens)
    try:
        points = tuple(point for prefill in _PREFILLS for point in _points(latencies, instance, prefill, capacity))
    except Exception as error:  # a kernel that nobody timed shows only when it is asked for
        raise AiconfiguratorError(f"{instance.model} on {instance.tp} x {instance.gpu}, {origin}: {error}") from error
    if not points:
        raise AiconfiguratorError(f"{instance.model} does not fit on {instance.tp} x {instance.gpu}")
    return Profile(
        instance.model, instance.gpu, instance.tp, instance.engine, points, source=Source.PUBLISHED, origin=origin
    )


def _points(latencies: Latencies, instance: EngineModel, prefill: int, capacity: int) -> Iterator[Point]:
    mhz = instance.gpu_params.f_max
    if 0 < prefill <= capacity:
        yield Point(prefill, mhz, 0, 0.0, latencies.predict_prefill_latency(1, prefill) * 1e-3, None)
    for batch in _BATCHES:
        for each in _contexts((capacity - prefill) // batch):
            t_ms = _mixed_ms(latencies, prefill, batch, each)
            yield Point(prefill, mhz, batch, float(batch * each), t_ms * 1e-3, None)


def _contexts(room: int) -> Sequence[int]:
    """Returns the grid's contexts that a sequence has room for, the last cut to the room."""
    if room < _CONTEXTS[0]:
        return ()
    return sorted({min(each, room) for each in _CONTEXTS})


def _mixed_ms(latencies: Latencies, prefill: int, batch: int, each: int) -> float:
    """One iteration, its parts asked for one by one: isl is the prompt of the one and the context of the others."""
    if not prefill:
        return latencies.decode_step_latency(batch, each, 2)
    _, rest, prefill_attention, _ = latencies.mixed_step_breakdown(prefill, batch, prefill, 2)
    _, _, _, decode_attention = latencies.mixed_step_breakdown(prefill, batch, each, 2)
    return rest + prefill_attention + decode_attention


def _check_shape(instance: EngineModel, folder: Path) -> None:
    """A config.json of another model would make a profile that looks right and is not."""
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AiconfiguratorError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise AiconfiguratorError(f"{path}: not a JSON object")
    m = instance.model_params
    wanted = {
        "num_hidden_layers": m.layers,
        "hidden_size": m.hidden,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
    }
    for name, value in wanted.items():
        if found.get(name) != value:
            raise AiconfiguratorError(f"{path}: {name} is {found.get(name)}, {instance.model} has {value}")
    experts = found.get("num_local_experts", found.get("num_experts")) or 0
    if experts != m.experts:
        raise AiconfiguratorError(f"{path}: {experts} experts, {instance.model} has {m.experts}")


def _open(instance: EngineModel, backend: str, version: str | None, shape: str) -> tuple[Latencies, str]:
    try:
        sdk, common, database = (import_module(f"aiconfigurator_core.{name}") for name in _MODULES)
    except ImportError as error:
        raise AiconfiguratorMissing(f"aiconfigurator is not installed ({error})") from None
    package = f"aiconfigurator {installed_version(_DISTRIBUTION)}"
    if not Path(shape).is_dir() and shape not in common.DefaultHFModels:
        raise AiconfiguratorError(f"{shape} is not in the database of {package}")
    system = SYSTEMS[instance.gpu]
    experts = {"moe_tp_size": instance.tp} if instance.model_params.experts else {}
    try:
        resolved = database.resolve_query_version(system, backend, version or "current")
        handle: Latencies = sdk.EngineHandle.compile(
            shape, system, backend, backend_version=resolved, tp_size=instance.tp, **experts
        )
    except Exception as error:  # the package raises asserts, ValueErrors and its own alike
        what = f"{instance.model} on {instance.tp} x {instance.gpu}, {backend} {version or ''}".strip()
        raise AiconfiguratorError(f"{what}: {error}") from error
    return handle, f"{package}, {backend} {resolved} on {system}"
