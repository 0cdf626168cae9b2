"""Knobs: everything that operators set of a policy, and compare. Live loops and simulated ones read the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from core.policy.dynamo_classes import FACTORS, PUBLISHED_FACTOR
from core.policy.value_rules import OneWorld, setting
from core.types import Loop

WHOLE, DYNAMO = "whole", "dynamo"  # partitions
WHOLE_CLASS = "ALL"  # the one class of the partition `whole`
USUAL_S = {Loop.CARBON: 1800.0, Loop.SCALE: 1800.0, Loop.SHARD: 300.0, Loop.CLOCK: 1.0}  # periods
_NO_QUEUE = OneWorld("live", "the simulator has no queue at the gateway")
_STAYS = OneWorld("live", "a simulated request stays where it was sent until its engine begins it")
_STAYS_ON = OneWorld("live", "a simulated server is always on, and draws at least its GPUs' idle power")
_OF_SETTINGS = "as settings have it"  # GREENSERVE_LOOPS


@dataclass(frozen=True, slots=True)
class Knobs:
    """The fields of a policy that have words of their own wherever they are shown. `unset`: what None stands for."""

    carbon: str = setting(
        "freesh",
        "freesh: partition, sites and GPUs of each pool by FREESH's eq. 1; off: one partition, and the GPUs in whole "
        "units to the classes that lack capacity most, as DynamoLLM's MultiPool is provisioned",
        ("off", "freesh"),
    )
    objective: str = setting("carbon", "what eq. 1 minimises; FREESH's MinEnergy: energy", ("carbon", "energy", "cost"))
    negative_intensity: str = setting(
        "clamp", "what a site's intensity below zero counts as in plans: nothing, or what it is", ("clamp", "follow")
    )
    partition: str = setting(
        "",
        "how requests are cut into classes (FREESH knob 2)",
        unset="the carbon loop chooses among the service's",
    )
    class_limits: bool = setting(
        False, "plans keep each class's own thresholds beside the service's SLO (DynamoLLM IV-B: the strictest present)"
    )
    slo_factor: float = setting(
        PUBLISHED_FACTOR,
        "policies take the limits as 5 times a request by itself, and keep this many times",
        least=1.0,
        most=100.0,
    )
    fill: str = setting(
        "all",
        "without a carbon loop: all GPUs run instances (DynamoLLM V-A), or as many as the load needs, which leaves "
        "room for shadows (throttLL'eM runs one engine)",
        ("all", "enough"),
    )
    tp: int = setting(
        8,
        "largest TP degree of an instance, of throttle's unless none so small carries any load; DynamoLLM's baselines "
        "TP8, throttLL'eM's engine TP4",
        least=1,
    )
    freeze_tp: bool = setting(False, "with scale=fleet: the TP degrees that stand stay, and counts alone change")
    alpha: float = setting(1.25, "head-room of plans over the demand (FREESH eq. 1b)", least=1.0, most=100.0)
    max_rps: Mapping[str, float] | None = setting(
        None, "of throttle: profiled largest rates by TP degree, as tp1, tp2 ...", unset="the profiles'", above=0.0
    )
    plan_ttft_share: float = setting(
        1.0, "share of a TTFT limit that a planned iteration may take", above=0.0, most=1.0
    )
    plan_tpot_share: float = setting(1.0, "share of a TPOT limit that a planned mean may take", above=0.0, most=1.0)

    frozen: tuple[str, ...] = setting(
        (), "loops that decide once, when the policy comes into force, and hold", ("carbon", "scale"), unset="no loop"
    )
    carbon_period_s: float | None = setting(None, "FREESH: 30 min", unset=_OF_SETTINGS, least=1.0)
    scale: str = setting(
        "fleet",
        "static: the plan's instances; fleet: FREESH's program in each budget; dynamo: by forecast (DynamoLLM IV-B); "
        "throttle: an engine's size by its load (throttLL'eM IV-D); placement: models to groups of GPUs (mu-Serve "
        "3.2); right_size: sites, counts and TP degrees of each class at once, each few seconds (GreenServe); "
        "threshold: capacity for the peak, more while busy",
        ("static", "fleet", "dynamo", "throttle", "placement", "right_size", "threshold"),
    )
    scale_period_s: float | None = setting(
        None, "throttLL'eM's autoscaler and right_size: 10 s", unset=_OF_SETTINGS, least=1.0
    )
    changes_per_hour: int | None = setting(
        None, "of right_size: most starts and stops of a site in any hour", unset="as many as pay", least=1
    )
    hand_down: bool = setting(True, "DynamoLLM IV-B: one instance fewer a class, the rest to the next larger class")
    proactive: bool = setting(True, "DynamoLLM IV-C: instances start a cold start ahead of the epoch that needs them")
    shard: str = setting(
        "mix",
        "mix: the best TP mix of a pool at once; dynamo: DynamoLLM IV-B, server by server, if it pays off after what "
        "the overhead table says of the change; threshold: another TP degree once it saves a tenth; off: TP stays",
        ("off", "mix", "dynamo", "threshold"),
    )
    shard_period_s: float | None = setting(None, "DynamoLLM: 5 min", unset=_OF_SETTINGS, least=1.0)
    shadow: bool = setting(
        False,
        "a new instance warms up beside the one that it replaces, which then drains (throttLL'eM IV-D)",
    )

    sleep: str = setting(
        "off",
        "what becomes of a service without requests: off: it stays; stop: its engines end, and start for the next "
        "request; level: they sleep with their weights in the machine's memory (vLLM's level 1), on the same GPUs",
        ("off", "stop", "level"),
    )

    servers: str = setting(
        "always_on",
        "what becomes of servers that no instance needs: always_on: they stay on; power_off: those with a power port "
        "are switched off, and on again before the forecast load needs them",
        ("always_on", "power_off"),
        only=_STAYS_ON,
    )

    clock: str = setting(
        "miad",
        "fixed: top; miad, primal_dual: FREESH eq. 5 and 4; profile: DynamoLLM IV-B; slack: mu-Serve Alg. 3; throttle: "
        "throttLL'eM IV-E; retail: its baseline (V-F3); threshold: up when busy or late, down when idle; deadline: the "
        "lowest at which the requests that are there keep their limits (GreenServe); iteration: at which the next "
        "iteration does, the top while prompts wait behind it (VoltanaLLM)",
        (
            *("fixed", "miad", "primal_dual", "profile", "slack", "throttle", "retail", "threshold", "deadline"),
            "iteration",
        ),
    )
    clock_period_s: float | None = setting(
        None, "FREESH 1 s, DynamoLLM 5 s, mu-Serve 1 s", unset=_OF_SETTINGS, least=0.01
    )
    clock_floor: str = setting(
        "gpu", "the lowest clock: the GPU's; or where its voltage stops falling (voltage)", ("gpu", "voltage")
    )
    clock_floor_mhz: float | None = setting(None, "no clock below it", unset="clock_floor says", above=0.0)
    clock_ttft_share: float = setting(0.8, "share of a TTFT limit at which a clock goes up", above=0.0, most=1.0)
    clock_tpot_share: float = setting(0.8, "the same share of a TPOT limit and of an E2E limit", above=0.0, most=1.0)
    itl_limit_s: float | None = setting(
        0.0,
        "engines compose batches that keep this gap between tokens (DynaServe 4.2: 100 ms); 0: any gap",
        unset="the strictest objective of the classes, or else 100 ms",
        least=0.0,
    )
    max_num_seqs: int | None = setting(
        None, "requests that an engine runs at once", unset="vLLM's own 256", least=1, most=65_536
    )
    chunk_tokens: int = setting(
        0, "tokens of one prompt in an iteration at most, so that short ones come along; 0: all", least=0
    )

    route: str = setting(
        "least_energy",
        "FREESH: weighted_round_robin; DynamoLLM: least_energy; throttLL'eM: least_loaded; DynaServe: predicted; "
        "GreenServe: least_backlog, the most loaded in good time, or where the prompts that wait are done with first",
        (
            *("least_energy", "least_carbon", "least_loaded", "weighted_round_robin", "round_robin", "predicted"),
            "least_backlog",
        ),
    )
    by_share: bool = setting(
        False,
        "sites get the carbon plan's shares of each class (FREESH)",
        only=OneWorld("live", "the weights of a simulated pool, which spans all sites, are those of the plan"),
    )
    order: str = setting(
        "fcfs",
        "of waiting requests; FREESH: llf, mu-Serve: sjf with aging, GreenServe: spf, the shortest prompt first",
        ("fcfs", "sjf", "spf", "srtf", "edf", "llf"),
    )
    aging_tokens_per_s: float | None = setting(
        None,
        "how fast waiting makes a job shorter (mu-Serve 3.3); 0: not at all, and the longest may wait for ever",
        unset="with sjf one predicted as long as one in a hundred is overtaken for as long as limits let it take; with "
        "spf 20",
        least=0.0,
    )
    preempts_s: float = setting(
        0.0, "how often a running request may give way to a waiting one ahead of it; 0: never", least=0.0
    )
    engine_priority: bool = setting(
        False,
        "the order holds inside engines too, by vLLM's priority, and emergencies reach what waits there; else engines "
        "serve what they let wait as it came",
        only=OneWorld("live", "the queue of a simulated instance is its engine's own, and always has the order"),
    )
    engine_queue: int = setting(
        32,
        "requests that may wait inside one engine; then another class's is asked, where there is one",
        least=1,
        most=1_000_000,
    )
    tenant_weights: Mapping[str, float] | None = setting(
        None, "fair shares of tokens by tenant", unset="equal ones", above=0.0, only=_NO_QUEUE, most=1e6
    )
    max_queued_requests: int = setting(
        2000, "requests of a class that may wait at the gateway", least=1, only=_NO_QUEUE
    )
    max_queued_tokens: int = setting(
        20_000_000, "tokens of a class that may wait at the gateway", least=1, only=_NO_QUEUE
    )
    max_wait_s: float = setting(120.0, "longest wait at the gateway", above=0.0, only=_NO_QUEUE)
    admission: str = setting(
        "none", "projection: KV, TBT and E2E are projected first (throttLL'eM IV-C2)", ("none", "projection")
    )
    predictor_error: float | None = setting(
        None,
        "share that predicted lengths are raised by (throttLL'eM)",
        unset="the 95th percentile of what the service's last 512 answers were longer by; 0.3 before 64",
        least=0.0,
        most=100.0,
    )
    short_class_cost: float = setting(
        1.0,
        "what it costs to take a request for a class of shorter answers than its own, where a longer one costs 1",
        above=0.0,
        most=100.0,
        only=OneWorld("live", "a simulated predictor says one length of each request, and no probabilities"),
    )
    emergencies: bool = setting(False, "DynamoLLM IV-D: reorder, top clock, re-steer, squash")
    emergencies_up_to: str = setting("squash", "the last rung of that ladder", ("reorder", "ramp", "resteer", "squash"))
    early_moves: bool = setting(
        False,
        "a stream whose first token is overdue goes to another instance where it can still come in time",
        only=_STAYS,
    )
    split: str = setting(
        "none", "prompt: prefill and decode apart; any: at any token (DynaServe 4.1)", ("none", "prompt", "any")
    )

    def period_s(self, loop: Loop, default_s: float) -> float:
        """Returns the period, in s, at which a loop of this policy runs."""
        own = {
            Loop.CARBON: self.carbon_period_s,
            Loop.SCALE: self.scale_period_s,
            Loop.SHARD: self.shard_period_s,
            Loop.CLOCK: self.clock_period_s,
        }
        return own[loop] or default_s

    def at_usual_periods(self, usual_s: Mapping[Loop, float]) -> Knobs:
        """Returns the knobs with these periods for loops to which they give none."""
        own: dict[str, Any] = {f"{loop.value}_period_s": self.period_s(loop, s) for loop, s in usual_s.items()}
        return replace(self, **own)

    @property
    def whole_sites(self) -> bool:
        """Says whether a pool's GPU budget is all that its site offers: a faster loop moves GPUs between the pools."""
        return self.scale in ("dynamo", "throttle", "placement", "right_size", "threshold")

    @property
    def in_servers(self) -> bool:
        """Says whether a loop deals in DynamoLLM's servers, which are all alike: no instance is larger than one."""
        return "dynamo" in (self.scale, self.shard)

    @property
    def class_instances(self) -> bool:
        """Says whether each class has instances of its own; else those of one class may serve all."""
        return self.carbon == "freesh" or self.scale in ("right_size", "threshold")

    @property
    def by_deadlines(self) -> bool:
        """Says whether clocks follow the requests that are there: no period, no profile and no forecast comes in."""
        return self.clock in ("deadline", "iteration")

    @property
    def in_envelope(self) -> bool:
        """Says whether the scale loop chooses sites by their carbon, within what each carbon epoch lets it have."""
        return self.scale == "right_size"

    def has_no_choice(self, loop: Loop) -> bool:
        """Says whether a loop has nothing to decide: what it would decide on stays as it was set up."""
        still = {
            Loop.CARBON: self.carbon == "off" and not self.in_envelope,
            Loop.SCALE: self.scale == "static",
            Loop.SHARD: self.shard == "off",
            Loop.CLOCK: self.clock == "fixed",
        }
        return still[loop]


def check_together(found: Knobs) -> None:
    """Raises ValueError: knobs that contradict each other."""
    if found.slo_factor not in FACTORS:
        known = ", ".join(f"{factor:g}" for factor in FACTORS)
        raise ValueError(f"slo_factor: must be one of {known}, not {found.slo_factor:g}")
    if found.carbon == "off" and not found.partition:
        raise ValueError(f"carbon=off keeps one partition: name it, for example partition={WHOLE}")
    if found.carbon == "freesh" and found.scale not in ("static", "fleet"):
        raise ValueError(f"scale={found.scale} shares out GPUs by itself: it needs carbon=off and a partition")
    if found.scale in ("throttle", "right_size") and found.shard != "off":
        raise ValueError(f"scale={found.scale} sets TP degrees by itself: it needs shard=off")
    if found.shard == "dynamo" and found.carbon != "off":
        raise ValueError("shard=dynamo changes whole servers, as carbon=off gives them: set carbon=off and a partition")
    if found.freeze_tp and found.scale != "fleet":
        raise ValueError("freeze_tp: is for scale=fleet; other scale loops keep or set TP degrees by themselves")
    if found.split == "any" and found.route == "round_robin":
        raise ValueError("route: must be predicted where requests are split by predicted finish times")
    rates = degrees(found.max_rps or {})
    if any(after <= before for before, after in pairwise(rps for _, rps in sorted(rates.items()))):
        raise ValueError("max_rps: must ascend with the TP degree")


def degrees(max_rps: Mapping[str, float]) -> dict[int, float]:
    """Returns the rates of `max_rps` by TP degree. Raises ValueError for a key that is none."""
    found = {}
    for key, rps in max_rps.items():
        degree = key.removeprefix("tp")
        if degree == key or not degree.isdigit() or int(degree) < 1:
            raise ValueError(f"max_rps.{key}: is not a TP degree; write tp1, tp2 ...")
        found[int(degree)] = float(rps)
    return found
