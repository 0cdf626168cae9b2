"""The background tasks that talk to Redis: the snapshot in, the rows and a heartbeat out. None is on a request's path.

Redis may go away at any time, be full or take no writes: the last snapshot stays in force, rows wait on disk, and each
task tries again. While the disk takes none they wait in memory.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import redis.asyncio as redis
from redis.exceptions import RedisError

from pools import redis_address, wire
from pools.wire.snapshot_signature import NotSigned, SnapshotVerifier

from .accounts.request_shipper import Shipper, StreamFull
from .fleet.kept_snapshot import KeptSnapshot
from .fleet.receipts import Receipts
from .fleet.snapshot_reader import SnapshotReader
from .fleet.view import FleetView
from .fleet.workers import Workers
from .placing.clock_requests import PendingClockRequest
from .placing.shared_boards import SharedBoards

log = logging.getLogger(__name__)

REFRESH_PERIOD_S = 0.5
SHIP_PERIOD_S = 0.3
FULL_PERIOD_S = 2.0  # between attempts while the stream is full: each sends a batch there
HEARTBEAT_PERIOD_S = 2.0
KEEP_PERIOD_S = 30.0
BOARDS_PERIOD_S = 0.1  # as clocks are looked at
REDIS_TIMEOUT_S = 2.0
STALE_WORKER_S = 60.0  # past its lease: it is forgotten


class FleetSource(Protocol):
    """Reads snapshots. Blocks for at most its time-out; raises RedisError or OSError."""

    async def read(self) -> tuple[wire.Fleet, Mapping[str, wire.AgentState]] | None:
        """Returns the fleet and its agents' states; None: no fleet has been published."""


class RedisLink:
    """One gateway's connection to Redis: FleetSource and BatchStream."""

    def __init__(
        self,
        url: str,
        most_batches: int = wire.REQUEST_STREAM_MOST,
        verifier: SnapshotVerifier | None = None,
    ) -> None:
        self._most_batches = most_batches
        self._redis: redis.Redis = redis_address.connect_async(
            url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S, health_check_interval=30
        )
        self._snapshots = SnapshotReader(self._redis, verifier)

    async def read(self) -> tuple[wire.Fleet, Mapping[str, wire.AgentState]] | None:
        fleet = await self._snapshots.read()
        if fleet is None:
            return None
        if not fleet.nodes:
            return fleet, {}
        values = await self._redis.mget([wire.agent_key(node) for node in fleet.nodes])
        states: dict[str, wire.AgentState] = {}
        for node, value in zip(fleet.nodes, values, strict=True):
            if value is None:
                continue
            try:
                state = wire.decode(value, wire.AgentState)
            except msgspec.DecodeError as error:
                log.error("the state of node %s cannot be read: %s", node, error)
                continue
            if state.node == node:
                states[node] = state
            else:
                log.error("the state of node %s says that it is of %r: it is left out", node, state.node)
        return fleet, states

    async def workers(self) -> tuple[list[wire.WorkerRegistration], set[str]]:
        """Returns the registrations whose lease lasts, and the ids that are listed without one."""
        uids = [uid.decode() for uid in await self._redis.zrange(wire.WORKERS_KEY, 0, -1)]  # type: ignore[union-attr]
        values = await self._redis.mget([wire.worker_key(uid) for uid in uids]) if uids else []
        found: list[wire.WorkerRegistration] = []
        ended: set[str] = set()
        for uid, value in zip(uids, values, strict=True):
            try:
                if value is None:
                    ended.add(uid)
                else:
                    found.append(wire.decode(value, wire.WorkerRegistration))
            except msgspec.DecodeError as error:
                log.error("the registration of worker %s cannot be read: %s", uid, error)
                ended.add(uid)
        return found, ended

    async def put_worker(self, worker: wire.WorkerRegistration) -> None:
        """Begins its lease, or begins it anew."""
        now_s = time.time()
        async with self._redis.pipeline() as pipe:
            pipe.set(wire.worker_key(worker.uid), wire.encode(worker), px=round(worker.lease_s * 1000.0))
            pipe.zadd(wire.WORKERS_KEY, {worker.uid: now_s + worker.lease_s})
            pipe.zremrangebyscore(wire.WORKERS_KEY, "-inf", now_s - STALE_WORKER_S)
            await pipe.execute()

    async def put_worker_back(self, worker: wire.WorkerRegistration, left_s: float) -> None:
        """Lists one that was lost for the rest of its lease, unless it is listed again."""
        async with self._redis.pipeline() as pipe:
            pipe.set(wire.worker_key(worker.uid), wire.encode(worker), px=max(1, round(left_s * 1000.0)), nx=True)
            pipe.zadd(wire.WORKERS_KEY, {worker.uid: time.time() + left_s}, nx=True)
            await pipe.execute()

    async def drop_worker(self, uid: str) -> bool:
        """Removes a registration; returns whether there was one. Its id stays listed until its lease would be over:
        what is not listed at all counts as lost, and comes back."""
        return bool(await self._redis.delete(wire.worker_key(uid)))

    async def measured_workers(self) -> wire.AgentState | None:
        """Returns what the ingester measured of workers last; None: nothing recently."""
        value = await self._redis.get(wire.MEASURED_WORKERS_KEY)
        try:
            return None if value is None else wire.decode(value, wire.AgentState)
        except msgspec.DecodeError as error:
            log.error("what was measured of workers cannot be read: %s", error)
            return None

    async def add(self, batch: wire.RequestBatch) -> None:
        data = wire.encode(batch)
        added: Any = self._redis.eval(wire.ADD_WHILE_ROOM, 1, wire.REQUEST_STREAM, self._most_batches, data)
        if not await added:
            raise StreamFull("the stream is full: its ingester is behind, or away")

    async def beat(
        self,
        process: str,
        detail: str,
        open_requests: wire.OpenRequests,
        disk: wire.DiskState | None = None,
        unreachable: Sequence[wire.UnreachableEngine] = (),
    ) -> int:
        """Leaves a sign of life, and which requests are open. Returns how many gateways have done so recently.

        Gateways of several machines count apart, though they go by one name.
        """
        now_s, gateway = time.time(), wire.gateway_member(process, socket.gethostname())
        heartbeat = wire.Heartbeat(process, now_s, HEARTBEAT_PERIOD_S, detail, disk, list(unreachable))
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(wire.alive_key(process), wire.encode(heartbeat), ex=wire.HEARTBEAT_TTL_S)
            pipe.set(wire.open_requests_key(gateway), wire.encode(open_requests), ex=wire.OPEN_REQUESTS_TTL_S)
            pipe.zadd(wire.GATEWAYS_KEY, {gateway: now_s})
            pipe.zremrangebyscore(wire.GATEWAYS_KEY, "-inf", now_s - 5 * HEARTBEAT_PERIOD_S)
            pipe.zcard(wire.GATEWAYS_KEY)
            found = await pipe.execute()
        return int(found[-1])

    async def share_use(self, process: str, use: wire.GatewayUse) -> list[wire.GatewayUse]:
        """Says what tenants have used here, and returns what gateways say, this one included."""
        key = wire.gateway_use_key(wire.gateway_member(process, socket.gethostname()))
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(key, wire.encode(use), ex=wire.GATEWAY_USE_TTL_S)
            pipe.zrange(wire.GATEWAYS_KEY, 0, -1)
            _, members = await pipe.execute()
        keys = [wire.gateway_use_key(member.decode()) for member in members]
        found = []
        for value in await self._redis.mget(keys) if keys else []:
            try:
                if value is not None:
                    found.append(wire.decode(value, wire.GatewayUse))
            except msgspec.DecodeError as error:
                log.error("what another gateway says of its tenants cannot be read: %s", error)
        return found

    async def share_boards(
        self, process: str, boards: wire.GatewayBoards | None
    ) -> dict[str, wire.GatewayBoards | None]:
        """Says what this gateway has at engines, and returns what each other one says; None: nothing, or nothing that
        can be read. While this gateway is not listed, nobody hears it: it is then among the others, with None.

        Args:
            boards: None: nothing is said.
        """
        own = wire.gateway_member(process, socket.gethostname())
        async with self._redis.pipeline(transaction=False) as pipe:
            if boards is not None:
                kept_ms = round(wire.GATEWAY_BOARDS_TTL_S * 1000.0)
                pipe.set(wire.gateway_boards_key(own), wire.encode(boards), px=kept_ms)
            pipe.zrange(wire.GATEWAYS_KEY, 0, -1)
            *_, listed = await pipe.execute()
        members = [member.decode() for member in listed]
        others = [member for member in members if member != own]
        found: dict[str, wire.GatewayBoards | None] = {} if own in members else {own: None}
        values = await self._redis.mget([wire.gateway_boards_key(member) for member in others]) if others else []
        for member, value in zip(others, values, strict=True):
            try:
                found[member] = None if value is None else wire.decode(value, wire.GatewayBoards)
            except msgspec.DecodeError as error:
                log.error("what gateway %s has at engines cannot be read: %s", member, error)
                found[member] = None
        return found

    async def ask_clock(self, process: str, ask: PendingClockRequest) -> None:
        """Tells an instance's agent; one that does not listen now hears the next renewal."""
        request = wire.ClockRequest(
            uid=ask.uid,
            gateway=wire.gateway_member(process, socket.gethostname()),
            at_s=time.time(),
            mhz=ask.mhz,
            lease_s=ask.lease_s,
            reason=ask.reason,
            summary=ask.summary,
        )
        await self._redis.publish(wire.clock_channel(ask.node), wire.encode(request))

    async def wait_for_change(self, changed: asyncio.Event) -> None:
        """Sets `changed` whenever a new fleet is announced; returns only by raising."""
        pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
        try:
            await pubsub.subscribe(wire.FLEET_CHANNEL)
            while True:
                if await pubsub.get_message(timeout=REDIS_TIMEOUT_S / 2) is not None:
                    changed.set()
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        await redis_address.close_async(self._redis)


class Refresher:
    """Keeps the view in step with its source. An agent that went silent keeps its last state: see `HealthChecks`."""

    def __init__(
        self,
        view: FleetView,
        source: FleetSource,
        workers: Workers | None = None,
        kept: KeptSnapshot | None = None,
    ) -> None:
        self._view = view
        self._source = source
        self._workers = workers
        self._kept = kept
        self._states: dict[str, wire.AgentState] = {}
        self._receipts = Receipts()
        self._fleet: wire.Fleet | None = None  # read since it was last kept

    def recall(self) -> None:
        """Takes in the snapshot of an earlier life, until another one is read. Blocks."""
        kept = None if self._kept is None else self._kept.read()
        if kept is not None:
            age_s = max(0.0, time.time() - kept.at_s)
            self._states = dict(kept.states)
            self._view.recall(kept.fleet, kept.states, time.monotonic() - age_s)
            log.info("the fleet as it was %.0f s ago is known: its instances are asked whether they serve", age_s)

    def keep(self) -> None:
        """Writes the snapshot for a later life, if one was read since. Blocks; raises OSError."""
        fleet, self._fleet = self._fleet, None
        if self._kept is not None and fleet is not None:
            self._kept.write(fleet, self._states)

    async def refresh(self) -> None:
        """Reads and applies a snapshot. Raises whatever the source raises; the view is then unchanged."""
        found = await self._source.read()
        if found is None:
            return
        fleet, states = found
        self._fleet = fleet
        now_s = time.monotonic()
        known = {node: state for node, state in self._states.items() if node in fleet.nodes}
        for node, state in states.items():
            self._receipts.note(node, state.at_s, now_s)
        states = self._states = known | dict(states)
        self._receipts.keep(states)
        if self._workers is not None:
            states = states | await self._workers.states(fleet)
        self._view.apply(fleet, states, now_s, heard_at_s=self._receipts.times())


class Repeated:
    """Runs a step for ever, at a period or when woken. Says once that it fails, and once that it works again."""

    def __init__(self, name: str, period_s: float) -> None:
        self._name = name
        self._period_s = period_s
        self._failing = False
        self.wake = asyncio.Event()

    def failed(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            log.warning("%s fails and will be tried again: %s", self._name, error or type(error).__name__)

    def worked(self) -> None:
        if self._failing:
            self._failing = False
            log.info("%s works again", self._name)

    async def pause(self) -> None:
        """Waits for the period to pass or for `wake`."""
        try:
            async with asyncio.timeout(self._period_s):
                await self.wake.wait()
        except TimeoutError:
            pass
        self.wake.clear()


async def keep_refreshing(refresher: Refresher, beat: Repeated) -> None:
    while True:
        try:
            await refresher.refresh()
            beat.worked()
        except (RedisError, OSError, msgspec.DecodeError, NotSigned) as error:
            beat.failed(error)
        await beat.pause()


async def keep_snapshot(refresher: Refresher) -> None:
    """Keeps the snapshot on disk, and says once when it cannot."""
    beat = Repeated("keeping the fleet snapshot on disk", KEEP_PERIOD_S)
    while True:
        await beat.pause()
        try:
            await asyncio.to_thread(refresher.keep)
            beat.worked()
        except OSError as error:
            beat.failed(error)


async def keep_listening(link: RedisLink, refreshing: Repeated) -> None:
    beat = Repeated("listening for fleet changes", 1.0)
    while True:
        try:
            await link.wait_for_change(refreshing.wake)
        except (RedisError, OSError) as error:
            beat.failed(error)
        await beat.pause()


async def keep_shipping(shipper: Shipper) -> None:
    beat = Repeated("shipping request rows", SHIP_PERIOD_S)
    while True:
        try:
            await shipper.ship()
            beat.worked()
        except StreamFull as error:
            beat.failed(error)
            await asyncio.sleep(FULL_PERIOD_S)
        except (RedisError, OSError) as error:
            beat.failed(error)
        await beat.pause()


async def keep_asking(link: RedisLink, process: str, asks: asyncio.Queue[PendingClockRequest]) -> None:
    """Sends clocks that are asked for. While Redis is away they are dropped: what still stands is renewed later."""
    beat = Repeated("asking for clocks", HEARTBEAT_PERIOD_S)
    while True:
        ask = await asks.get()
        try:
            await link.ask_clock(process, ask)
            beat.worked()
        except (RedisError, OSError) as error:
            beat.failed(error)


async def keep_beating(
    link: RedisLink,
    process: str,
    view: FleetView,
    open_requests: Callable[[], wire.OpenRequests],
    disk_state: Callable[[], wire.DiskState],
    unreachable: Callable[[], list[wire.UnreachableEngine]],
    beat: Repeated,
) -> None:
    """Tells of this gateway and its open requests at the beat's period, and at once when it is woken."""
    while True:
        try:
            engines = unreachable()
            detail = f"{view.ready_instances} instances ready"
            detail += f", {len(engines)} cannot be reached" if engines else ""
            detail += "".join(f", adapter '{name}': {why}" for name, why in sorted(view.unloadable.items()))
            view.gateways = max(1, await link.beat(process, detail, open_requests(), disk_state(), engines))
            beat.worked()
        except (RedisError, OSError) as error:
            beat.failed(error)
        await beat.pause()


async def keep_sharing(
    link: RedisLink,
    process: str,
    own: Callable[[], wire.GatewayUse],
    charge: Callable[[list[wire.GatewayUse]], None],
) -> None:
    """Tells other gateways what tenants used here, and hears what they used there."""
    beat = Repeated("sharing what tenants use", HEARTBEAT_PERIOD_S)
    while True:
        try:
            charge(await link.share_use(process, own()))
            beat.worked()
        except (RedisError, OSError) as error:
            beat.failed(error)
        await beat.pause()


async def keep_sharing_boards(
    link: RedisLink, process: str, boards: SharedBoards, published: Callable[[], wire.GatewayBoards | None]
) -> None:
    """Tells other gateways what this one has at engines, and hears what they have."""
    beat = Repeated("sharing what engines have", BOARDS_PERIOD_S)
    boards.expect()
    while True:
        try:
            boards.hear(await link.share_boards(process, published()), time.monotonic(), time.time())
            beat.worked()
        except (RedisError, OSError) as error:
            beat.failed(error)
        await beat.pause()
