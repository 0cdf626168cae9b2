"""The simulated machine: its GPUs and the engines that run on them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from core.engine import gpu_slices
from core.engine.engine_model import EngineModel, UnknownConfiguration
from core.engine.overheads import Overheads
from core.ports import LONGEST_LEASE_S, EngineLimits, GpuReading, InstanceSpec, InstanceStatus

from .engine.engine_transitions import Durations
from .engine.resharding import way
from .engine.side_channel import KvLinks, KvNetwork
from .engine.sim_engine import SimInstance
from .gpu_group import misfit
from .gpus import GpuBank, SimGpu
from .machine import BOOT_S, Machine
from .truth import Truth, Truths

logger = logging.getLogger(__name__)


class BadOrder(Exception):
    """An order that makes no sense on this node: unknown GPU, clock out of range, no such model."""


class GpuBusy(Exception):
    """A GPU is allocated to another instance, or too few are free."""


class Unknown(Exception):
    """There is no such instance."""


class SimNode:
    """Runs on one event loop. Instances that could not start stay in the list as failed until they are stopped."""

    def __init__(
        self, bank: GpuBank, transition_speedup: float, links: KvLinks | None = None, truth: Truth | None = None
    ) -> None:
        self._bank = bank
        self.machine = Machine(BOOT_S / transition_speedup)
        self._speedup = transition_speedup
        self._truths = Truths(truth)
        self._network = KvNetwork(links or KvLinks(), lambda engine_id: engine_id in self._instances)
        self._instances: dict[str, SimInstance] = {}
        self._failed: dict[str, InstanceStatus] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._saved = True  # the counters, when it was last tried

    # -- GPUs --------------------------------------------------------------------------------------

    def read_gpus(self) -> list[GpuReading]:
        self.advance()
        return self._bank.read(time.time())

    def advance(self) -> None:
        """Brings engines and counters up to now, and gives clocks back whose lease is over."""
        now_s = time.monotonic()
        for instance in list(self._instances.values()):
            instance.advance(now_s)
        self._bank.advance(now_s)
        self._bank.lapse_leases(now_s)

    def save_counters(self) -> None:
        """Saves them if it can be done. While it cannot, the GPUs cannot be read, and engines go on."""
        self.advance()
        try:
            self._bank.save()
        except OSError as error:
            if self._saved:
                logger.error("the energy counters cannot be saved: %s; make room", error)
            self._saved = False
            return
        if not self._saved:
            logger.info("the energy counters are saved again")
        self._saved = True

    def lock_clock(self, uuids: Sequence[str], mhz: float, lease_s: float) -> None:
        gpus = self._gpus(uuids)
        for gpu in gpus:
            if not gpu.params.f_min <= mhz <= gpu.params.f_max:
                raise BadOrder(
                    f"{mhz:g} MHz is outside {gpu.params.f_min:g}..{gpu.params.f_max:g} MHz of {gpu.params.name}"
                )
        if not 0.0 < lease_s <= 3600.0:
            raise BadOrder(f"lease_s must be above 0 and at most 3600, got {lease_s:g}")
        self.advance()
        now_s = time.monotonic()
        for gpu in gpus:
            gpu.lock(mhz, now_s + min(lease_s, LONGEST_LEASE_S), now_s)

    def reset_clock(self, uuids: Sequence[str]) -> None:
        gpus = self._gpus(uuids)
        self.advance()
        for gpu in gpus:
            gpu.reset(time.monotonic())

    def _gpus(self, uuids: Sequence[str]) -> list[SimGpu]:
        if not uuids:
            raise BadOrder("no GPUs named")
        if len(set(uuids)) < len(uuids):
            raise BadOrder("a GPU is named twice")
        unknown = [uuid for uuid in uuids if uuid not in self._bank.gpus]
        if unknown:
            raise BadOrder(f"this node has no GPU {', '.join(unknown)}")
        return [self._bank.gpus[uuid] for uuid in uuids]

    # -- power -------------------------------------------------------------------------------------

    async def switch_off(self) -> None:
        """Ends all engines at once, as a machine does that is switched off. Off, it draws nothing."""
        if self.machine.on:
            self.machine.switch_off()
            logger.info("the machine is switched off")
            self._failed.clear()
            await asyncio.gather(*(self.stop(uid) for uid in list(self._instances)))
            self._give_power(False)

    def switch_on(self) -> None:
        """Begins to start the machine; it draws its idle power from now on."""
        if not self.machine.on:
            self.machine.switch_on()
            logger.info("the machine is switched on")
            self._give_power(True)

    def _give_power(self, has_power: bool) -> None:
        self.advance()
        for gpu in self._bank.gpus.values():
            gpu.has_power = has_power

    # -- instances ---------------------------------------------------------------------------------

    def list(self) -> tuple[InstanceStatus, ...]:
        return (*(instance.status() for instance in self._instances.values()), *self._failed.values())

    async def start(self, spec: InstanceSpec) -> InstanceStatus:
        """Begins a cold start; the same uid again changes nothing, but a failed one is tried again."""
        if (known := self._instances.get(spec.uid)) is not None:
            return known.status()
        if not spec.uid or spec.max_model_len < 1:
            raise BadOrder("an instance needs a uid and a max_model_len of at least 1")
        gpus = self._gpus(spec.gpu_uuids)
        if fault := gpu_slices.fault(gpu_slices.sliced(gpus[0].params.name, spec.gpu_slices), spec.tp):
            raise BadOrder(fault)
        if taken := [gpu for gpu in gpus if gpu.full_for(spec.gpu_slices)]:
            raise GpuBusy(", ".join(f"{gpu.uuid} is allocated to instance {', '.join(gpu.held)}" for gpu in taken))
        try:
            detail = misfit(spec, gpus)
        except UnknownConfiguration as error:
            raise BadOrder(str(error)) from None
        self._failed.pop(spec.uid, None)
        if detail:
            logger.warning("instance %s failed: %s", spec.uid, detail)
            self._failed[spec.uid] = InstanceStatus(spec.uid, "failed", None, spec.gpu_uuids, time.time(), detail)
            return self._failed[spec.uid]
        self.advance()
        durations = Durations(Overheads(), self._speedup, spec.engine_model_name, spec.tp)
        instance = SimInstance(spec, gpus, durations, self._network, self._end, self._true_engine(spec))
        self._instances[spec.uid] = instance
        await instance.open()
        logger.info("instance %s starts: %s on %s", spec.uid, spec.model, ", ".join(spec.gpu_uuids))
        return instance.status()

    async def start_shadow(self, of: str, uid: str, tp: int) -> InstanceStatus:
        """Begins a cold start of what is to replace the instance `of`: the same on `tp` free GPUs of its type.

        The one it is to replace serves on; nothing is switched here.
        """
        replaced = self._instance(of).spec
        gpu_type = self._bank.gpus[replaced.gpu_uuids[0]].params.name
        fits = (g for g in self._bank.gpus.values() if not g.full_for(replaced.gpu_slices))
        free = [g.uuid for g in fits if g.params.name == gpu_type]
        if uid in self._instances:
            return self._instances[uid].status()
        if len(free) < tp:
            raise GpuBusy(f"{len(free)} {gpu_type} are free on this node, the shadow of {of} needs {tp}")
        return await self.start(replace(replaced, uid=uid, gpu_uuids=tuple(free[:tp]), shadow_of=of))

    def tune(self, uid: str, limits: EngineLimits) -> None:
        logger.info("instance %s keeps %s from now on", uid, limits)
        self._instance(uid).tune(limits)

    def limits(self, uid: str) -> EngineLimits:
        return self._instance(uid).limits

    def sleep(self, uid: str, level: int, mode: str) -> None:
        """Begins to; raises Busy."""
        self._instance(uid).fall_asleep(level, mode)

    def wake(self, uid: str) -> None:
        """Begins to; raises Busy."""
        self._instance(uid).wake_up()

    def reshard(self, uid: str, gpu_uuids: Sequence[str]) -> None:
        """Begins to take an engine to other GPUs, as many as its next TP degree; raises Busy."""
        instance = self._instance(uid)
        spec, gpus = instance.spec, self._gpus(gpu_uuids)
        if set(gpu_uuids) == set(instance.taking or spec.gpu_uuids):
            return
        if spec.gpu_slices > 1:
            raise BadOrder(f"instance {uid} is on a slice of a GPU, and stays there; stop it and start another one")
        if taken := [gpu for gpu in gpus if uid not in gpu.held and gpu.full_for(1)]:
            raise GpuBusy(", ".join(f"{gpu.uuid} is allocated to instance {', '.join(gpu.held)}" for gpu in taken))
        if detail := misfit(replace(spec, gpu_uuids=tuple(gpu_uuids)), gpus):
            raise BadOrder(detail)
        self.advance()
        to = way(spec, gpus, self._true_engine(spec), Overheads(), self._true_engine)
        instance.reshard(to)
        logger.info("instance %s goes from TP%d to TP%d: %s", uid, spec.tp, to.spec.tp, to)

    def tell_truth(self, truth: Truth, model: str | None = None) -> None:
        """Makes engines take other times and watts than the engine model says, from their next iterations on."""
        self.advance()
        self._truths.tell(truth, model)
        for instance in self._instances.values():
            instance.become(self._true_engine(instance.spec))
        said = "engines of %s now take %g times as long as modelled, and draw %g times as much"
        logger.info(said, model or "all models", truth.time, truth.power)

    def truth(self, model: str = "") -> Truth:
        return self._truths.of(model)

    def _true_engine(self, spec: InstanceSpec) -> EngineModel:
        whole = self._bank.gpus[spec.gpu_uuids[0]].params.name
        gpu_type = gpu_slices.sliced(whole, spec.gpu_slices)
        return self._truths.engine(spec.model, spec.engine_model_name, gpu_type, spec.tp, spec.engine)

    def _instance(self, uid: str) -> SimInstance:
        if (instance := self._instances.get(uid)) is None:
            raise Unknown(f"this node runs no instance {uid}")
        return instance

    def drain(self, uid: str) -> bool:
        """Returns False when there is no such instance."""
        instance = self._instances.get(uid)
        if instance is None:
            return self._failed.pop(uid, None) is not None
        logger.info("instance %s drains", uid)
        instance.drain()
        return True

    async def stop(self, uid: str) -> None:
        """Stopping one that is not there is no error."""
        self._failed.pop(uid, None)
        instance = self._instances.pop(uid, None)
        if instance is not None:
            logger.info("instance %s stops", uid)
            self.advance()
            await instance.close()

    async def close(self) -> None:
        self.advance()
        await asyncio.gather(*(self.stop(uid) for uid in list(self._instances)))
        if self._closing:
            await asyncio.wait(self._closing)
        await self._network.close()
        self.save_counters()

    def _end(self, uid: str) -> None:
        task = asyncio.get_running_loop().create_task(self.stop(uid))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
