"""The GPUs of one simulated instance, which work in step; or the slice of one that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.engine.engine_model import EngineModel, closed_form, gpu
from core.engine.gpu_slices import sliced
from core.engine.iteration import Iteration
from core.ports import InstanceSpec

from .gpus import SimGpu


class GpuGroup:
    """`engine.batching.Accelerator`. With nothing to do they draw what their memory holds lets them: weights, or
    nothing.
    """

    def __init__(self, gpus: Sequence[SimGpu], model: EngineModel) -> None:
        self._gpus = tuple(gpus)
        self._coming: tuple[SimGpu, ...] = ()  # of the next layout, while weights go there
        self._params = gpu(model.gpu)  # a slice's own, where that is what it has
        self._uid, self._slices = "", 1
        self._on_clock: Callable[[float], None] = self.idle
        self.model = model  # another one counts from the next draw on
        self._idle_w: Callable[[], float] = self._loading_w

    @property
    def clock_mhz(self) -> float:
        """Tensor-parallel GPUs wait for each other: the slowest sets the pace."""
        return min(device.clock_mhz for device in self._gpus)

    def work(self, at_s: float, iteration: Iteration) -> None:
        for device in self._gpus:
            device.draw(self._uid, at_s, iteration.gpu_watts, busy=True, effective_mhz=iteration.f_eff_mhz)

    def idle(self, at_s: float) -> None:
        for device in self._gpus:
            if self._uid in device.held:  # not while its engine sleeps
                device.draw(self._uid, at_s, self._idle_w())

    def allocate(self, uid: str, at_s: float, on_clock: Callable[[float], None], slices: int = 1) -> None:
        self._uid, self._on_clock, self._slices = uid, on_clock, slices
        self._hold(at_s)

    def _hold(self, at_s: float) -> None:
        for device in self._gpus:
            device.hold(self._uid, at_s, self._on_clock, self._slices)

    def move_weights(self, at_s: float) -> None:
        """Weights come or go. Modelled as a loaded GPU at its top clock: no measurement of it is published."""
        self._become(at_s, self._loading_w, loaded=False)

    def loaded(self, at_s: float) -> None:
        self._become(at_s, self._loaded_w, loaded=True)

    def sleep(self, at_s: float) -> None:
        """Removes what is in their memory, which others may have until `wake`."""
        self.release(at_s)

    def wake(self, at_s: float) -> str:
        """Takes their memory again. Returns who has it, where it is not free; empty: it was."""
        mine = [device for device in self._gpus if self._uid in device.held]
        full = [device for device in self._gpus if device not in mine and device.full_for(self._slices)]
        if not full and not mine:
            self._hold(at_s)
        return ", ".join(f"{device.uuid} is allocated to instance {', '.join(device.held)}" for device in full)

    def take(self, gpus: Sequence[SimGpu], at_s: float) -> None:
        """Holds the GPUs of the next layout beside its own: weights go there while it works."""
        self._coming = tuple(device for device in gpus if device not in self._gpus)
        for device in self._coming:
            device.hold(self._uid, at_s, self._on_clock)
            device.draw(self._uid, at_s, self._loading_w())

    def turn_to(self, gpus: Sequence[SimGpu], model: EngineModel, at_s: float) -> None:
        """Works on the GPUs of the next layout from now on; those that are not among them are free."""
        for device in self._gpus:
            if device not in gpus:
                device.let_go(self._uid, at_s)
        self._gpus, self._coming, self.model = tuple(gpus), (), model
        self.loaded(at_s)

    def release(self, at_s: float) -> None:
        for device in (*self._gpus, *self._coming):
            device.let_go(self._uid, at_s)

    def _become(self, at_s: float, idle_w: Callable[[], float], *, loaded: bool) -> None:
        self._idle_w = idle_w
        for device in self._gpus:
            device.held[self._uid].loaded = loaded
        self.idle(at_s)

    def _loading_w(self) -> float:
        return self.model.idle_gpu_watts(self._params.f_max)

    def _loaded_w(self) -> float:
        return self.model.idle_gpu_watts(self.clock_mhz)


def misfit(spec: InstanceSpec, gpus: Sequence[SimGpu]) -> str:
    """Why the engine could not start on these GPUs; empty when it could. Raises UnknownConfiguration."""
    types = {gpu.params.name for gpu in gpus}
    if len(types) > 1:
        return f"GPUs of different types: {', '.join(sorted(types))}"
    model = closed_form(spec.engine_model_name, sliced(types.pop(), spec.gpu_slices), spec.tp, spec.engine)
    where = f"{spec.tp} x {model.gpu}"
    if not model.fits:
        return f"out of memory: {spec.model} does not fit on {where}"
    if spec.max_model_len > model.kv_capacity_tokens:
        return (
            f"out of memory: the KV cache of {spec.model} on {where} holds {int(model.kv_capacity_tokens)} tokens, "
            f"max_model_len is {spec.max_model_len}"
        )
    return ""
