"""DynaServe on the simulated fleet, and its two ends: prefill and decode together, and apart.

Global (section 4.1): each request is cut at the token at which the two instances of a pair are done at the same time,
by `core.algorithms.split.split_point`, which also knows the ends. Local (4.2): an instance's batches keep the limit on
the gap between tokens. Transfer (4.3): what is computed is sent while more is computed. All three can be switched off.

The paper has two groups of as many instances, for the first parts and for the second ones. With more than one instance
in each, a request goes to those that will be done first with what they have.

`pd_coloc` and `pd_disagg` are the paper's baselines: vLLM with whole requests by turns, and a group that prefills for
another one that decodes, by turns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace

from core.algorithms.split.request_mix import RequestMix
from core.algorithms.split.split_point import SplitConfig, SplitPolicy, total_tokens
from core.engine.engine_model import engine_model
from core.observations.demand.class_view import partition_option
from core.observations.fleet.autoscale_given import largest_tp
from core.observations.request.request_configs import first_parts, groups, itl_limit_s
from core.observations.request.split_configs import SPLITS, split_config
from core.observations.request.split_given import Looks, Place, place
from core.observations.step_configs import shared_out_config
from core.policy.knobs import USUAL_S, WHOLE
from core.policy.presets import PRESETS, Policy
from core.policy.tuning import SplitTuning
from core.simulator.kernel.commands import SERVING, Answer, Decision, FleetView, Placement, RequestView
from core.simulator.kernel.simulated import Handover, InstanceSpec, Scheduling
from core.simulator.policies.config import Reads, any_of
from core.simulator.policies.dynaserve.load_tracker import LoadTracker, Placed, PredictedInstance
from core.simulator.policies.gpu_cut import first_instances
from core.simulator.policies.view_observations import cells_of, class_view, first_view
from core.simulator.policies.world import Member, Plan, PoolPlan, World
from core.types import Loop, Reason

FIRST, SECOND = "first", "second"
_TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class DynaserveConfig:
    """`cut`: where requests are cut. `routing`: predicted (to whom will be done first) | round_robin.

    `itl_limit_s`: that batches are composed for, less the share `itl_margin`; None: the strictest objective of the
    classes, or else the paper's 100 ms; 0: batches take the whole token budget. `chunked`: the KV cache is sent while
    more of it is computed. `calibrate_s`: how often predictions are held against the clock; 0: never. `candidates`: of
    each group, those with the fewest micro-requests are looked at. `first_share`: of the instances, for first parts.
    `link_gb_per_s`: between two instances; 25 is one of the paper's 200 Gbit/s NICs. `tp`: the largest TP degree of an
    instance, where one so small can serve.
    """

    name: str = "dynaserve"
    cut: SplitConfig = field(default_factory=SplitConfig)
    routing: str = "predicted"
    itl_limit_s: float | None = None
    itl_margin: float = 0.0
    chunked: bool = True
    calibrate_s: float = 1.0
    gain: float = 0.1
    candidates: int = 2
    first_share: float = 0.5
    link_gb_per_s: float = 25.0
    latency_s: float = 0.001
    report_s: float = 60.0
    tp: int = 4


READS = Reads(
    {**any_of("itl_limit_s", "tp"), "split": tuple(SPLITS), "route": ("predicted", "round_robin")},
    tuple(f"split.{item.name}" for item in fields(SplitTuning) if item.name != "by_rates"),
)


def of(policy: Policy) -> DynaserveConfig:
    """Returns what the policy comes to."""
    knobs, tuned = policy.knobs, policy.tuning.split
    return DynaserveConfig(
        name=policy.name,
        cut=split_config(knobs.split, tuned.max_probes, tuned.margin_tokens, tuned.tolerance),
        routing=knobs.route,
        itl_limit_s=knobs.itl_limit_s,
        itl_margin=tuned.itl_margin,
        chunked=tuned.chunked,
        calibrate_s=tuned.calibrate_s,
        gain=tuned.gain,
        candidates=tuned.candidates,
        first_share=tuned.first_share,
        link_gb_per_s=tuned.link_gb_per_s,
        latency_s=tuned.latency_s,
        tp=knobs.tp,
    )


# -- the fleet -------------------------------------------------------------------------------------


def begin(config: DynaserveConfig, world: World) -> Plan:
    """Plans all GPUs as instances, in two groups; colocation by turns has one.

    A pair may stand at two sites, as at a gateway: all links are alike. An instance that is alone does both parts, as
    there. The world has one service (`service_lots`).

    Raises:
        SimulationError: No GPU can serve.
    """
    service = world.services[0]
    itl_s = itl_limit_s(config.itl_limit_s, config.itl_margin, (c.limits for c in service.partitions[0].classes))
    specs = [replace(spec, scheduling=Scheduling(itl_limit_s=itl_s)) for spec in instances(config, world)]
    cells = (FIRST,) * world.cells
    if config.routing == "round_robin" and (config.cut.policy is SplitPolicy.COLOCATED or len(specs) == 1):
        members = tuple(Member(spec, FIRST) for spec in specs)
        return Plan(members, (PoolPlan(FIRST, "round_robin"),), cells, ())
    token_s = _kv_bytes(specs[0]) / (config.link_gb_per_s * 1e9)
    if config.routing == "round_robin":
        firsts = first_parts(len(specs), config.first_share)
        members = tuple(Member(spec, FIRST if n < firsts else SECOND) for n, spec in enumerate(specs))
        handover = Handover(SECOND, "prompt", token_s, config.latency_s, config.chunked)
        return Plan(members, (PoolPlan(FIRST, "round_robin", handover), PoolPlan(SECOND, "round_robin")), cells, ())
    handover = Handover(FIRST, "routed", token_s, config.latency_s, config.chunked)
    engines = tuple(PredictedInstance(spec, itl_s) for spec in specs)
    tracker = LoadTracker(engines, token_s, config.latency_s, config.cut.margin_tokens)
    scheduler = GlobalScheduler(config, tracker)
    members = tuple(Member(spec, FIRST) for spec in specs)
    return Plan(members, (PoolPlan(FIRST, "round_robin", handover),), cells, (scheduler,), scheduler)


def instances(config: DynaserveConfig, world: World) -> list[InstanceSpec]:
    """Returns as many instances as the nodes have room for. Raises SimulationError: no GPU can serve."""
    service, modes = world.services[0], world.modes(world.services[0])
    partition = service.partition(WHOLE)
    info, cells, view = partition.classes[0], cells_of(partition, 0), first_view(world)
    seen = class_view(world, service, info, cells, view, USUAL_S[Loop.CARBON], 1, modes)
    option = partition_option(WHOLE, [seen])
    cut = shared_out_config(PRESETS[config.name].knobs, largest_tp(option, config.tp))
    kinds = first_instances(world, service, world.nodes, option, cut)
    return [replace(kind, name=f"{kind.name}-{n}") for n, kind in enumerate(kinds)]


def _kv_bytes(spec: InstanceSpec) -> float:
    return engine_model(spec.model, spec.gpu, spec.tp, spec.engine).constants.kv_bytes


# -- the global scheduler --------------------------------------------------------------------------


class GlobalScheduler:
    """Router: a pair and a split for each request. Control: calibrates the predictor, and tells what was decided."""

    name = "split"
    tick_s = _TICK_S

    def __init__(self, config: DynaserveConfig, tracker: LoadTracker) -> None:
        self._config, self.tracker = config, tracker
        self._mix, self._offered = RequestMix(), -1
        self._room = [engine.spec.kv_capacity for engine in tracker.instances]
        self._cuts: Counter[str] = Counter()
        self._probes = 0
        self._reported_s = 0.0

    @property
    def period_s(self) -> float:
        return self._config.calibrate_s or self._config.report_s

    def place(self, request: RequestView, view: FleetView) -> Placement | None:
        """None: it fits nowhere."""
        new, config = request.prompt_tokens - request.cached_tokens, self._config
        total = total_tokens(request.prompt_tokens, request.predicted_tokens, config.cut)
        if request.number != self._offered:
            self._mix, self._offered = self._mix.after(new, request.predicted_tokens), request.number
        serving = [i for i, state in enumerate(view.state) if state == SERVING]
        firsts, seconds = groups(serving, lambda i: self.tracker.decoding(i, view), config.first_share)
        looks: Looks[int] = Looks(
            lambda i: self._room[i], lambda i: self.tracker.count(i, view), lambda i: self.tracker.backlog(i, view)
        )
        found = place(
            (firsts, seconds), looks, new, total - request.cached_tokens, self._mix, config.cut, config.candidates
        )
        if found is None:
            return None
        self._count(found, new)
        placed = Placed(request.number, request.prompt_tokens, total)
        if found.second is None:
            self.tracker.note(placed, found.first)
            return Placement(found.first)
        tokens = found.tokens + request.cached_tokens
        self.tracker.note(replace(placed, split=tokens, second=found.second), found.first)
        return Placement(found.first, tokens, found.second)

    def _count(self, found: Place[int], prompt_tokens: int) -> None:
        self._probes += found.cut.probes
        if found.second is None:
            self._cuts["whole"] += 1
        elif found.tokens == prompt_tokens:
            self._cuts["after the prompt"] += 1
        else:
            self._cuts["in the prompt" if found.tokens < prompt_tokens else "in the output"] += 1

    def step(self, view: FleetView) -> Answer:
        """Calibrates each instance; a decision each `report_s`, for all requests placed since the last one."""
        if self._config.calibrate_s > 0.0:
            for i in range(len(self.tracker.instances)):
                self.tracker.calibrate(i, view, self._config.gain)
        if not self._cuts or view.now_s < self._reported_s + self._config.report_s:
            return Answer()
        count = sum(self._cuts.values())
        cuts = ", ".join(f"{n} {where}" for where, n in sorted(self._cuts.items()))
        scales = [engine.scale for engine in self.tracker.instances]
        summary = (
            f"{count} requests: {cuts}; {self._probes / count:.1f} probes each; measured over predicted time "
            f"{min(scales):.2f} to {max(scales):.2f}."
        )
        reason = Reason.FEASIBLE if self._config.cut.policy is SplitPolicy.DYNAMIC else Reason.POLICY
        self._cuts.clear()
        self._probes, self._reported_s = 0, view.now_s
        return Answer((), (Decision(view.now_s, self.name, str(reason), summary, count),))
