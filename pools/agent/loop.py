"""The agent's loop: one tick reads the node, brings it to its desired state, sets its clocks, and reports."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from core.engine import gpu_types
from core.engine.profiles import Profile
from core.ports import (
    AdapterError,
    EngineControl,
    EngineMetrics,
    EngineReading,
    FrequencyActuator,
    GpuMeter,
    GpuReading,
    InstanceRuntime,
)
from pools import release
from pools.measured_engines import put_in_force
from pools.wire import (
    AgentState,
    ClockDecision,
    DesiredInstance,
    DesiredNode,
    GpuSampleRow,
    Heartbeat,
    InstanceState,
    node_queue,
)

from .agent_metrics import Board, Picture
from .batch_outbox import Outbox
from .batch_spool import BatchSpool
from .clocks.clock_loop import ClockLoop
from .clocks.clock_requests import ClockRequests
from .clocks.clock_rules import look_period_s
from .clocks.engine_figures import Figures
from .clocks.engine_view import EngineView
from .devices.host.host_energy import HostEnergy
from .reconcile import Reconciler
from .redis_link import BadDesired, Link, LinkError
from .reports import NodeReport, View, gpu_rows, host_rows, instance_rows, instance_state, slowest, unreachable

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
_BATCHES_A_TICK = 50  # after an absence of Redis the backlog goes out at this pace


class AgentLoop:
    """Call `tick` each `period_s`; it never raises for a fault of node or Redis, but says it in `AgentState`.

    Call `glance` in between: at `glance_s`, and when a gateway has asked for a clock. `sampler` reads engines for clock
    rules that are faster than ticks; it is not `metrics`, whose means are of whole ticks.

    What cannot be read is left as it is: without a desired state nothing is started or stopped, without an answer
    from the runtime nothing is reconciled. `profiles`: own ones of this node, of configurations of which none is
    published.
    """

    def __init__(
        self,
        node: str,
        boot: str,
        *,
        meter: GpuMeter,
        actuator: FrequencyActuator,
        runtime: InstanceRuntime,
        metrics: EngineMetrics,
        link: Link,
        control: EngineControl | None = None,
        sampler: EngineMetrics | None = None,
        requests: ClockRequests | None = None,
        figures: Figures | None = None,
        profiles: Sequence[Profile] = (),
        board: Board | None = None,
        report: NodeReport | None = None,
        period_s: float = PERIOD_S,
        spool: BatchSpool | None = None,
        host: HostEnergy | None = None,
    ) -> None:
        self._node = node
        self._profiles = profiles
        self._period_s = period_s
        self._boot = boot
        self._meter = meter
        self._host = host
        self._runtime = runtime
        self._metrics = metrics
        self._sampler = sampler or metrics
        self._link = link
        self._reconciler = Reconciler(runtime, control)
        self._clocks = ClockLoop(actuator, requests, figures, period_s)
        self._clock_rows: list[ClockDecision] = []  # not yet in a batch
        self._ticked_s = 0.0  # Unix time of the last tick: a later one is earlier only where the clock was set back
        self._urls: dict[str, str] = {}  # of engines that are up, at the last tick
        self._busy: set[str] = set()  # instances in which requests ran or waited then
        self._outbox = Outbox(node, boot, spool=spool)
        self._room = True  # in the stream, at the last tick
        self._desired: DesiredNode | None = None
        self._gpus: dict[str, GpuReading] = {}  # last known, by uuid
        self._reported: dict[str, InstanceState] = {}
        self._listed_s = -math.inf  # when the runtime last answered
        self._link_down = False
        self._report_of_node = report
        self._measure_only = ""  # at the last tick
        self._version = release.version()
        self._board = board  # where scrapes find what the last tick saw
        self._ticks = 0

    def tick(self, now_s: float) -> AgentState:
        """Does one round. `now_s`: Unix seconds. Returns the state that it reported, or tried to."""
        view, began_s = View(now_s), time.monotonic()
        if now_s < self._ticked_s:
            self._reconciler.begin_anew(now_s)
            self._clocks.begin_anew()
        self._ticked_s = now_s
        reachable = self._read_desired(view)
        self._read_node(view)
        if self._desired is not None and view.statuses is not None:
            if self._reconciler.act(now_s, self._desired.instances, view.statuses, self._busy):
                self._list(view)
            view.errors += self._reconciler.errors
        self._scrape(view)
        self._measure_only = self._report_of_node.measure_only() if self._report_of_node else ""
        if self._desired is not None:
            if self._report_of_node is not None:
                self._report_of_node.prepare(self._desired.launches)
            # None where clocks cannot be set; none without Redis either: leases lapse, as if the agent had gone.
            engines = self._engine_views(view) if reachable and not self._measure_only else []
            view.mean_shares = self._clocks.mean_shares(now_s)
            self._clock_rows += self._clocks.tick(now_s, self._desired.clock, engines)
            view.errors += self._clocks.errors
        instances = self._instance_states(view)
        clock_rows, self._clock_rows = self._clock_rows, []
        rows = gpu_rows(view)
        self._outbox.add(now_s, rows, instance_rows(view, instances), clock_rows, host_rows(view))
        state = self._report(view, instances, reachable)
        self._show(view, state, rows, began_s)
        return state

    def glance(self, now_s: float) -> None:
        """Does what cannot wait for the next tick: reads samples that are due, sets clocks that gateways ask for."""
        samples: dict[str, EngineReading | None] = {}
        for uid in self._clocks.wanting(now_s):
            try:
                samples[uid] = self._sampler.scrape(uid, self._urls[uid])
            except AdapterError as error:
                samples[uid] = None
                logger.debug("no sample of instance %s: %s", uid, error)
        self._clock_rows += self._clocks.glance(now_s, samples)

    def glance_s(self) -> float | None:
        """Returns when a glance is worth its while, in Unix seconds; None: not before the next tick."""
        return self._clocks.next_s()

    # -- reading -----------------------------------------------------------------------------------

    def _read_desired(self, view: View) -> bool:
        """Says whether Redis answered."""
        try:
            desired = self._link.desired()
        except LinkError as error:
            self._note_link(str(error))
            return False
        except BadDesired as error:
            view.errors.append(f"{error}; what runs is kept")
            return True
        if desired is not None:
            self._desired = desired
            gpu_types.declare(desired.gpu_types)
            put_in_force(desired.measured, desired.profiles, _by_shape(self._profiles, desired))
        elif self._desired is None:
            view.errors.append("no desired state yet; what runs is kept")
        else:
            view.errors.append("the desired state has gone; the last one is kept")
        return True

    def _read_node(self, view: View) -> None:
        try:
            view.gpus = self._meter.read()
            self._gpus.update({reading.uuid: reading for reading in view.gpus})
        except AdapterError as error:
            view.errors.append(f"cannot read the GPUs: {error}")
        if self._host is not None:
            view.hosts = self._host.read(view.gpus)
            view.errors += self._host.errors
        self._list(view)

    def _list(self, view: View) -> None:
        try:
            view.statuses = self._runtime.list()
        except AdapterError as error:
            view.statuses = None
            view.errors.append(f"cannot list the instances: {error}")

    def _scrape(self, view: View) -> None:
        self._urls = {}
        for status in view.statuses or ():
            if status.state not in ("ready", "sleeping", "draining") or status.url is None:
                continue
            try:
                view.engines[status.uid] = self._metrics.scrape(status.uid, status.url)
                self._urls[status.uid] = status.url
            except AdapterError as error:
                view.errors.append(f"cannot measure instance {status.uid}: {error}")
                # That may have taken its whole time-out: what gateways asked for meanwhile has waited for long enough.
                self._clock_rows += self._clocks.glance(view.now_s, {})
        self._busy = {uid for uid, engine in view.engines.items() if engine.running or engine.waiting}

    def _sampled(self, view: View, item: DesiredInstance) -> EngineReading | None:
        """Returns the reading that an instance's clock rule goes by: the tick's, unless the rule is faster."""
        assert self._desired is not None
        period_s = look_period_s(item.clock or self._desired.clock)
        if item.uid not in self._urls or period_s is None or period_s >= self._period_s:
            return view.engines.get(item.uid)
        try:
            return self._sampler.scrape(item.uid, self._urls[item.uid])
        except AdapterError as error:
            view.errors.append(f"cannot sample instance {item.uid}: {error}")
            return None

    # -- views -------------------------------------------------------------------------------------

    def _engine_views(self, view: View) -> list[EngineView]:
        """Returns the engines whose clocks the clock loop is to lock: those that serve."""
        assert self._desired is not None
        wanted = {item.uid: item for item in self._desired.instances}
        views: list[EngineView] = []
        shadowed: set[str] = set()  # GPUs of which a shadow or its original has the clock: the one that is ready
        for status in sorted(view.statuses or (), key=lambda one: one.state != "ready"):
            item = wanted.get(status.uid)
            gpus = [self._gpus[uuid] for uuid in status.gpu_uuids if uuid in self._gpus]
            if item is None or status.state not in ("ready", "draining") or len(gpus) < len(status.gpu_uuids):
                continue
            if not shadowed.isdisjoint(status.gpu_uuids):
                continue
            if item.gpu_slices == 1:
                shadowed.update(status.gpu_uuids)
            mhz = slowest(gpus) if view.gpus else None
            views.append(EngineView.of(item, status, gpus, mhz, self._sampled(view, item)))
        return views

    def _instance_states(self, view: View) -> list[InstanceState]:
        """Returns a state for every instance that the desired state names and the node has, or should have."""
        if self._desired is None:
            return []
        if view.statuses is None:
            return [unreachable(state, view.now_s - self._listed_s) for state in self._reported.values()]
        self._listed_s = view.now_s
        statuses = {status.uid: status for status in view.statuses}
        states = []
        for item in self._desired.instances:
            status = statuses.get(item.uid)
            if status is not None or item.state != "draining":
                trouble = self._reconciler.trouble(item.uid)
                states.append(instance_state(item, status, trouble, self._gpus, view))
        self._reported = {state.uid: state for state in states}
        return states

    # -- reporting ---------------------------------------------------------------------------------

    def _report(self, view: View, instances: list[InstanceState], reachable: bool) -> AgentState:
        if self._outbox.dropped:
            view.errors.append(f"{self._outbox.dropped} batches of samples were dropped before they could be sent")
        state = AgentState(
            node=self._node,
            boot=self._boot,
            at_s=view.now_s,
            desired_version=None if self._desired is None else self._desired.version,
            instances=instances,
            error="; ".join(view.errors),
            metrics_url=None if self._board is None else self._board.url,
            measure_only=self._measure_only,
            notices=[
                *(self._report_of_node.notices() if self._report_of_node else ()),
                *(self._host.notices() if self._host else ()),
            ],
            finds=self._report_of_node.finds() if self._report_of_node else None,
            version=self._version,
            memory_free_bytes=self._report_of_node.memory_free_bytes() if self._report_of_node else None,
        )
        if not reachable:  # one time-out a tick is enough
            return state
        batches = self._outbox.pending(_BATCHES_A_TICK if self._room else 1)
        disk = self._outbox.disk_state()
        heartbeat = Heartbeat(node_queue(self._node), view.now_s, self._period_s, _detail(state), disk)
        try:
            accepted = self._link.send(state, heartbeat, batches)
        except LinkError as error:
            self._note_link(str(error))
            return state
        self._outbox.confirm(accepted)
        if self._room and accepted < len(batches):
            logger.warning("the stream is full: its ingester is behind, or away; samples are kept and sent later")
        self._room = accepted == len(batches)
        if self._link_down:
            self._link_down = False
            logger.info("Redis is back")
        return state

    def close(self) -> None:
        """Writes what has not been sent to the spool, once there are no more ticks."""
        self._outbox.spill()

    def _show(self, view: View, state: AgentState, rows: list[GpuSampleRow], began_s: float) -> None:
        self._ticks += 1
        if self._board is None:
            return
        self._board.picture = Picture(
            at_s=view.now_s,
            took_s=time.monotonic() - began_s,
            ticks=self._ticks,
            gpus=view.gpus,
            hosts=() if self._host is None else self._host.recent(view.now_s),
            instances=state.instances,
            allocated={row.gpu_uuid: row.instance_uid for row in rows if row.instance_uid is not None},
            waiting_batches=self._outbox.waiting,
            dropped_batches=self._outbox.dropped,
            link_up=not self._link_down,
            troubled=bool(view.errors),
        )

    def _note_link(self, message: str) -> None:
        if not self._link_down:
            self._link_down = True
            logger.warning("%s; samples are kept and sent later", message)


def _detail(state: AgentState) -> str:
    """Returns what health pages say of the agent."""
    only = f"measure only: {state.measure_only}" if state.measure_only else ""
    return "; ".join(filter(None, (state.error, only)))


def _by_shape(profiles: Sequence[Profile], desired: DesiredNode) -> list[Profile]:
    """Returns profiles under the shapes of their models, where the desired state has those."""
    shapes = {item.model: item.shape for item in desired.instances if item.shape}
    return [_named(one, shapes[one.model]) if one.model in shapes else one for one in profiles]


@lru_cache(maxsize=256)
def _named(profile: Profile, shape: str) -> Profile:
    """Returns the same measurements under a shape's key; made once, since ticks ask for it each second."""
    return replace(profile, model=shape)
