"""The state of a node and its instances now, from the agent to gateways and the scheduler."""

from __future__ import annotations

from core.ports import EngineLimits
from pools.wire.message_codec import Message


class InstanceState(Message, frozen=True):
    """An instance as its agent sees it now. Latencies are means of what ended in the last period; None: nothing."""

    uid: str
    pool_id: int
    url: str | None
    state: str  # starting | ready | sleeping | draining | failed
    model: str
    engine: str
    gpu_type: str
    tp: int
    sm_clock_mhz: float | None
    min_mhz: float
    max_mhz: float
    power_w: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    detail: str = ""
    progress: float | None = None  # of a start or a waking, 0 to 1
    engine_limits: EngineLimits | None = None  # in force
    shadow_of: str = ""
    laxity: bool = False  # it reads hints for an order by laxity (docs/plugin.md)
    kv_connector: str = ""  # through which it hands caches to engines of the same one; empty: it cannot
    start: str = ""  # warm: the weights were on the node | cold: they had to be fetched; empty: not known
    shape: str = ""  # the key by which the engine model knows the model; empty: by its name
    engine_key: str = ""  # what gateways send it as a bearer token, and nobody is shown; empty: it asks for none
    kv_address: str = ""  # HOST:PORT where it takes caches of other engines; empty: it takes none by the network
    paths: list[str] | None = None  # of its HTTP interface, where it serves requests; None: not known
    adapters: list[str] = []  # LoRA's that it has loaded, by the names that requests ask for them by
    reshards: bool = False  # it can go over to other GPUs while it serves
    asleep: bool = False  # it sleeps, and its GPUs' memory is free; `state` says so from when it begins to

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "engine_key")
        return f"InstanceState({', '.join(shown)})"

    @property
    def engine_model_name(self) -> str:
        return self.shape or self.model


class ModelOnDisk(Message, frozen=True):
    """Weights that engines of the node can be started with. `weights`: as a model card names them, by id or folder."""

    weights: str
    size_bytes: int


class NodeFinds(Message, frozen=True):
    """What the agent found on its machine for engines: vLLM's version, the options it lacks, and models' weights.

    `vllm` is empty and `fault` says why, where the program tells no version. `missing`: no engine is started then.
    """

    vllm: str = ""
    fault: str = ""
    missing: list[str] = []
    models: list[ModelOnDisk] = []


class AgentState(Message, frozen=True):
    node: str
    boot: str
    at_s: float
    desired_version: int | None
    instances: list[InstanceState]
    error: str = ""
    metrics_url: str | None = None  # where the agent shows its metrics; None: it does not
    measure_only: str = ""  # why no clock can be set on this node; empty: clocks can be set
    notices: list[str] = []  # what its meters lack or disagree about; nothing that stops it
    finds: NodeFinds | None = None  # None: it starts no engines, or has not looked yet
    version: str = ""  # of the agent's GreenServe; empty: 0.1.0, which does not say
    memory_free_bytes: int | None = None  # of the machine, for weights of engines that sleep; None: not known
