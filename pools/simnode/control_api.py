"""The control API of a simulated node: what NVML and a process manager are on a real one. Loopback only."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from core.ports import InstanceSpec

from .engine.sim_engine import Busy
from .node import BadOrder, GpuBusy, SimNode, Unknown
from .truth import Truth


class ClockOrder(msgspec.Struct):
    uuids: list[str]
    mhz: float
    lease_s: float


class ClockReset(msgspec.Struct):
    uuids: list[str]


class LimitsOrder(msgspec.Struct):
    """What is left out stays as it is."""

    max_num_batched_tokens: int | msgspec.UnsetType = msgspec.UNSET
    max_num_seqs: int | msgspec.UnsetType = msgspec.UNSET
    itl_limit_s: float | msgspec.UnsetType | None = msgspec.UNSET
    chunk_tokens: int | msgspec.UnsetType = msgspec.UNSET
    preempts_s: float | msgspec.UnsetType = msgspec.UNSET
    margin_s: float | msgspec.UnsetType = msgspec.UNSET
    window_factor: float | msgspec.UnsetType = msgspec.UNSET


class SleepOrder(msgspec.Struct):
    level: Literal[1, 2] = 1
    mode: Literal["abort", "wait", "keep"] = "abort"


class PowerOrder(msgspec.Struct):
    on: bool


class ReshardOrder(msgspec.Struct):
    """The GPUs that an engine is to be on, as many as its next TP degree."""

    gpu_uuids: list[str]


class TruthOrder(msgspec.Struct):
    """`model` None: of all models."""

    time: float = 1.0
    power: float = 1.0
    model: str | None = None


class ShadowOrder(msgspec.Struct):
    uid: Annotated[str, msgspec.Meta(min_length=1)]
    tp: Annotated[int, msgspec.Meta(ge=1)]


T = TypeVar("T")
POWER = "/power"  # what a BMC is on a real machine


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


async def _body(request: web.Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadOrder(str(error)) from None


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadOrder as error:
        return _json({"error": str(error)}, 400)
    except Unknown as error:
        return _json({"error": str(error)}, 404)
    except (GpuBusy, Busy) as error:
        return _json({"error": str(error)}, 409)


class Control:
    def __init__(self, node: SimNode) -> None:
        self._node = node

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_errors, self._while_it_runs])
        app.router.add_get(POWER, self._power)
        app.router.add_post(POWER, self._switch)
        app.router.add_get("/gpus", self._gpus)
        app.router.add_post("/gpus/clock", self._lock)
        app.router.add_post("/gpus/clock/reset", self._reset)
        app.router.add_get("/truth", self._truth)
        app.router.add_post("/truth", self._tell_truth)
        app.router.add_get("/instances", self._instances)
        app.router.add_post("/instances", self._start)
        app.router.add_post("/instances/{uid}/drain", self._drain)
        app.router.add_delete("/instances/{uid}", self._stop)
        app.router.add_post("/instances/{uid}/shadow", self._shadow)
        app.router.add_get("/instances/{uid}/limits", self._limits)
        app.router.add_post("/instances/{uid}/limits", self._tune)
        app.router.add_post("/instances/{uid}/sleep", self._sleep)
        app.router.add_post("/instances/{uid}/wake", self._wake)
        app.router.add_post("/instances/{uid}/reshard", self._reshard)
        return app

    @web.middleware
    async def _while_it_runs(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Nothing but its power can be asked of a machine that is off or starts."""
        if self._node.machine.runs or request.path == POWER:
            return await handler(request)
        return _json({"error": "the machine is off" if not self._node.machine.on else "the machine starts"}, 503)

    async def _power(self, _: web.Request) -> web.Response:
        machine = self._node.machine
        return _json({"state": "on" if machine.on else "off", "runs": machine.runs})

    async def _switch(self, request: web.Request) -> web.Response:
        if (await _body(request, PowerOrder)).on:
            self._node.switch_on()
        else:
            await self._node.switch_off()
        return await self._power(request)

    async def _gpus(self, _: web.Request) -> web.Response:
        try:
            return _json(self._node.read_gpus())
        except OSError as error:
            return _json({"error": f"the energy counters cannot be saved: {error}; make room"}, 503)

    async def _lock(self, request: web.Request) -> web.Response:
        order = await _body(request, ClockOrder)
        self._node.lock_clock(order.uuids, order.mhz, order.lease_s)
        return _json({})

    async def _reset(self, request: web.Request) -> web.Response:
        self._node.reset_clock((await _body(request, ClockReset)).uuids)
        return _json({})

    async def _truth(self, request: web.Request) -> web.Response:
        return _json(self._node.truth(request.query.get("model", "")))

    async def _tell_truth(self, request: web.Request) -> web.Response:
        order = await _body(request, TruthOrder)
        try:
            truth = Truth(order.time, order.power)
        except ValueError as error:
            raise BadOrder(str(error)) from None
        self._node.tell_truth(truth, order.model)
        return _json({})

    async def _instances(self, _: web.Request) -> web.Response:
        return _json(self._node.list())

    async def _start(self, request: web.Request) -> web.Response:
        return _json(await self._node.start(await _body(request, InstanceSpec)), 201)

    async def _drain(self, request: web.Request) -> web.Response:
        uid = request.match_info["uid"]
        if not self._node.drain(uid):
            return _json({"error": f"this node runs no instance {uid}"}, 404)
        return _json({})

    async def _stop(self, request: web.Request) -> web.Response:
        await self._node.stop(request.match_info["uid"])
        return _json({})

    async def _shadow(self, request: web.Request) -> web.Response:
        order = await _body(request, ShadowOrder)
        return _json(await self._node.start_shadow(request.match_info["uid"], order.uid, order.tp), 201)

    async def _limits(self, request: web.Request) -> web.Response:
        return _json(self._node.limits(request.match_info["uid"]))

    async def _tune(self, request: web.Request) -> web.Response:
        """vLLM has nothing like it: there the token budget is an argument of the process."""
        order, uid = await _body(request, LimitsOrder), request.match_info["uid"]
        given = {name: value for name, value in msgspec.structs.asdict(order).items() if value is not msgspec.UNSET}
        try:
            limits = replace(self._node.limits(uid), **given)
        except ValueError as error:
            raise BadOrder(str(error)) from None
        self._node.tune(uid, limits)
        return _json(limits)

    async def _sleep(self, request: web.Request) -> web.Response:
        order = await _body(request, SleepOrder)
        self._node.sleep(request.match_info["uid"], order.level, order.mode)
        return _json({}, 202)

    async def _wake(self, request: web.Request) -> web.Response:
        self._node.wake(request.match_info["uid"])
        return _json({}, 202)

    async def _reshard(self, request: web.Request) -> web.Response:
        """vLLM has nothing like it: there the GPUs are those of the process."""
        order = await _body(request, ReshardOrder)
        self._node.reshard(request.match_info["uid"], order.gpu_uuids)
        return _json({}, 202)
