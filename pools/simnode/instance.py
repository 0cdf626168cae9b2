"""One simulated engine process: its life from cold start to stop, and its own HTTP server."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from aiohttp import web

from scheduler.core.engine_model import EngineModel, Iteration, engine_model
from scheduler.core.ports import InstanceSpec, InstanceStatus

from .batching import Batcher, Generation
from .gpus import SimGpu
from .metrics import render
from .surface import Surface

# Cold start of an engine where the VM runs and the weights are on its disk: setting up the engine and installing
# weights and KV cache on the GPUs, as DynamoLLM measured them for Llama2-70B on 8 H100 (HPCA 2025, table V).
ENGINE_SETUP_S = 18.0
WEIGHTS_INSTALL_S = 15.0
COLD_START_S = ENGINE_SETUP_S + WEIGHTS_INSTALL_S


class GpuGroup:
    """The GPUs of one instance; they do the same work at the same time (`batching.Accelerator`)."""

    def __init__(self, gpus: Sequence[SimGpu], model: EngineModel) -> None:
        self._gpus = tuple(gpus)
        self._model = model

    @property
    def clock_mhz(self) -> float:
        """Tensor-parallel GPUs wait for each other: the slowest sets the pace."""
        return min(gpu.clock_mhz for gpu in self._gpus)

    def work(self, at_s: float, iteration: Iteration) -> None:
        for gpu in self._gpus:
            gpu.draw(at_s, iteration.gpu_watts, busy=True, effective_mhz=iteration.f_eff_mhz)

    def idle(self, at_s: float) -> None:
        for gpu in self._gpus:
            gpu.draw(at_s, self._model.idle_gpu_watts(gpu.clock_mhz))

    def hold(self, uid: str, on_clock: Callable[[float], None]) -> None:
        for gpu in self._gpus:
            gpu.held_by, gpu.on_clock = uid, on_clock

    def load(self, at_s: float) -> None:
        """Weights are being loaded. Modelled as a loaded GPU at its top clock: no measurement of it is published."""
        for gpu in self._gpus:
            gpu.draw(at_s, self._model.idle_gpu_watts(gpu.params.f_max))

    def release(self, at_s: float) -> None:
        for gpu in self._gpus:
            gpu.held_by, gpu.on_clock, gpu.loaded = None, None, False
            gpu.draw(at_s, gpu.params.idle_w)

    def loaded(self) -> None:
        for gpu in self._gpus:
            gpu.loaded = True


def misfit(spec: InstanceSpec, gpus: Sequence[SimGpu]) -> str:
    """Why the engine could not start on these GPUs; empty when it could. Raises UnknownConfiguration."""
    types = {gpu.params.name for gpu in gpus}
    if len(types) > 1:
        return f"GPUs of different types: {', '.join(sorted(types))}"
    model = engine_model(spec.model, types.pop(), spec.tp, spec.engine)
    where = f"{spec.tp} x {model.gpu}"
    if not model.fits:
        return f"out of memory: {spec.model} does not fit on {where}"
    if spec.max_model_len > model.kv_capacity_tokens:
        return (
            f"out of memory: the KV cache of {spec.model} on {where} holds {int(model.kv_capacity_tokens)} tokens, "
            f"max_model_len is {spec.max_model_len}"
        )
    return ""


class SimInstance:
    """An engine on its GPUs. States as `ports.InstanceStatus` has them; `gone` is called once, when it has ended."""

    def __init__(
        self, spec: InstanceSpec, gpus: Sequence[SimGpu], cold_start_s: float, gone: Callable[[str], None]
    ) -> None:
        self.spec = spec
        self.model = spec.model
        self.max_model_len = spec.max_model_len
        self.state = "starting"
        self._engine_model = engine_model(spec.model, gpus[0].params.name, spec.tp, spec.engine)
        self._group = GpuGroup(gpus, self._engine_model)
        self._cold_start_s = cold_start_s
        self._gone = gone
        self._started_at_s = time.time()
        self._batcher: Batcher | None = None
        self._surface = Surface(self)
        self._runner: web.AppRunner | None = None
        self._url: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._group.hold(spec.uid, self._on_clock)
        self._group.load(time.monotonic())

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Binds the HTTP server, which answers /health at once, and begins the cold start."""
        self._runner = web.AppRunner(
            self._surface.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self._url = f"http://{host}:{port}"
        self._timer = asyncio.get_running_loop().call_later(self._cold_start_s, self._become_ready)

    def _become_ready(self) -> None:
        self._timer = None
        self._batcher = Batcher(
            self._engine_model, self._group, self._engine_model.kv_capacity_tokens, time.monotonic()
        )
        self._group.loaded()
        self.state = "ready"

    def drain(self) -> None:
        """Takes no more requests and ends when the last one has ended."""
        self.state = "draining"
        self._settle()

    async def close(self) -> None:
        """Stops at once: what runs is cut off."""
        self.state = "stopped"
        self._batcher = None  # requests that end from here on must not touch the GPUs: others may hold them
        if self._timer is not None:
            self._timer.cancel()
        self._surface.close()
        await asyncio.sleep(0)  # lets the handlers see it before the server cancels them
        self._group.release(time.monotonic())
        if self._runner is not None:
            await self._runner.cleanup()

    def status(self) -> InstanceStatus:
        return InstanceStatus(
            self.spec.uid, self.state, self._url, self.spec.gpu_uuids, self._started_at_s, detail=self.health
        )

    # -- the engine as its surface sees it ---------------------------------------------------------

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    @property
    def health(self) -> str:
        if self.state == "starting":
            left_s = max(0.0, self._started_at_s + self._cold_start_s - time.time())
            return f"loading weights, ready in {left_s:.1f} s"
        return ""

    def submit(self, generation: Generation) -> None:
        assert self._batcher is not None, "the surface refuses requests until the engine is ready"
        self._batcher.submit(generation, time.monotonic())
        self._settle()

    def abort(self, generation: Generation) -> None:
        if self._batcher is not None:
            self._batcher.abort(generation, time.monotonic())
            self._settle()

    def metrics(self) -> str:
        if self._batcher is None:
            return ""
        self.advance(time.monotonic())
        batcher = self._batcher
        return render(batcher.counters, self.model, batcher.running, batcher.waiting, batcher.kv_usage)

    # -- time --------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        if self._batcher is not None:
            self._batcher.advance(now_s)

    def _on_clock(self, now_s: float) -> None:
        if self._batcher is not None:
            self._batcher.clock_changed(now_s)

    def _wake(self) -> None:
        self._timer = None
        self.advance(time.monotonic())
        self._settle()

    def _settle(self) -> None:
        """Sets the timer for the iteration in flight, or ends a drained engine."""
        if self.state == "stopped":
            return
        if self.state == "draining" and (self._batcher is None or self._batcher.empty):
            self._gone(self.spec.uid)
            return
        if self._timer is None and self._batcher is not None and self._batcher.next_s is not None:
            # Rounded up: uvloop counts whole milliseconds and would wake too early, and then again and again.
            delay_s = math.ceil(max(0.0, self._batcher.next_s - time.monotonic()) * 1e3) / 1e3
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)
