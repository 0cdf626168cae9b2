"""Tuning: what the steps of policies leave to those who study them.

A record belongs to a step, whichever policy runs it. A scenario and a stored service have it as `tuning: {record:
{field: value}}`; a command line and a form name each as RECORD.FIELD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from core.policy.value_rules import OneWorld, checked, setting

_SHARED = OneWorld("simulator", "a live GPU is one instance's, so that no models share a device")
_GUIDED = OneWorld("simulator", "live, placements are judged by profiles")
_ENGINES = OneWorld("simulator", "live, as many engines run as the load needs")
_LINK = OneWorld("simulator", "a live link is what the engines' connector makes of it")
_STAYS_ON = OneWorld("live", "a simulated server is always on, and draws at least its GPUs' idle power")
_AGES = OneWorld("simulator", "engines do not tell how long their requests have waited so far")


@dataclass(frozen=True, slots=True)
class Eq1Tuning:
    """FREESH's programs: eq. 1, and scale and shard within each budget."""

    floor_rps: float = setting(0.05, "the least demand that a class is planned for, in requests/s", least=0.0)
    min_saving: float = setting(
        0.01, "share of the objective that a new plan must save to replace the old", least=0.0, most=1.0
    )
    time_limit_s: float = setting(20.0, "longest time of one solution", above=0.0)
    steps: int = setting(6, "steps that a plan looks ahead, over its period", least=1, most=10_000)


@dataclass(frozen=True, slots=True)
class MiadTuning:
    """FREESH's clock rule, eq. 5."""

    increase: float = setting(2.0, "factor of the clock when a limit is near", above=1.0, most=100.0)
    decrease_mhz: float = setting(100.0, "step down when there is slack", above=0.0)


@dataclass(frozen=True, slots=True)
class ProfileTuning:
    """Clocks by profile."""

    step_mhz: float = setting(200.0, "distance of the profiled clocks", above=0.0)
    min_saving: float = setting(0.02, "share of the watts that another clock must save", least=0.0, below=1.0)
    memory_s: float = setting(60.0, "the mean load of about so long counts too: a lull is no smaller load", above=0.0)
    counts_ttft: bool = setting(True, "a TTFT seen beyond its limit rules the present clock out")
    full_iteration: bool = setting(
        False, "TTFT is that of an iteration with two prompts' chunks, and those that it takes in do not wait"
    )


@dataclass(frozen=True, slots=True)
class PrimalDualTuning:
    """FREESH's clock rule, eq. 4."""

    by: str = setting(
        "profile",
        "where the slopes of power and rate are from: the profile of such an engine at the lengths now seen, or the "
        "constants; an engine that nobody knows has the constants",
        ("profile", "constants"),
    )
    full_at: float = setting(16.0, "requests that are worth the top clock, by the constants", above=0.0, most=1e6)
    sensitivity: float = setting(0.6, "share of an iteration that the clock speeds up", above=0.0, most=1.0)
    power_exponent: float = setting(1.0, "power goes with the clock to this power", least=1.0, most=10.0)
    beta: float = setting(1.0, "worth of power against tokens, by the constants", above=0.0, most=1e6)
    urgency: float = setting(
        4.0, "worth of a token while a limit is missed over that else, likewise", least=1.0, most=1e6
    )


@dataclass(frozen=True, slots=True)
class SlackTuning:
    """mu-Serve's clock rule, algorithm 3."""

    step_mhz: float = setting(100.0, "step down when there is slack", above=0.0)
    increase: float = setting(2.0, "factor of the clock when there is too little", above=1.0, most=100.0)
    reserve: float = setting(0.05, "share of an objective that is kept free", least=0.0, below=1.0)
    sample_s: float = setting(0.5, "how often latencies are looked at", least=0.01)
    memory_s: float = setting(30.0, "how far back latencies count", above=0.0)
    sensitivity: bool = setting(True, "latencies are weighed by how much of them goes with the clock")
    in_flight: bool = setting(True, "the time that requests have taken so far counts as latency too", only=_AGES)


@dataclass(frozen=True, slots=True)
class DynamoTuning:
    """DynamoLLM's scale and shard loops."""

    shard_alpha: float = setting(1.1, "head-room of a shard epoch over the load", least=1.0, most=100.0)
    down_after: int = setting(2, "epochs in a row that want fewer nodes before one goes", least=1, most=1_000)
    wave: int = setting(2, "servers that change their TP degree at a time", least=1, most=10_000)
    clocks: str = setting("top", "clocks that a shard epoch plans with", ("top", "all"))
    min_saving: float = setting(0.01, "share of the energy that a change must save", least=0.0, most=1.0)


@dataclass(frozen=True, slots=True)
class RightSizeTuning:
    """GreenServe's scale loop."""

    look_s: float = setting(60.0, "how far the loops look back for load and trend", least=10.0)
    burst: float = setting(0.9, "weight of the load's spread beside its mean", least=0.0, most=100.0)
    hold_s: float = setting(60.0, "how long a lower load must last before instances stop", least=0.0)
    min_saving: float = setting(0.03, "share of the cost that a change must save", least=0.0, below=1.0)
    mode_saving: float = setting(0.1, "share that another GPU type or TP degree must save", least=0.0, below=1.0)
    catch_up_s: float = setting(30.0, "time in which waiting work is to be caught up with", above=0.0)
    learn_s: float = setting(
        600.0, "time after the first request in which more instances stand by, since little is known", least=0.0
    )
    replay: bool = setting(True, "counts also keep TTFT for the last requests if these came again")
    error_budget: bool = setting(True, "more head-room, and fewer late in the replay, as the error budget is spent")


@dataclass(frozen=True, slots=True)
class ThrottleTuning:
    """throttLL'eM's engines, admission and clocks."""

    engines: int | None = setting(
        None, "of a service", unset="what the declared peak needs", least=1, only=_ENGINES, most=10_000
    )
    max_tokens: int = setting(
        1024, "what a request that outgrows its prediction is taken to run to, if it may run so far", least=1
    )
    tbt_s: float | None = setting(
        None, "limit on the time between tokens", unset="the strictest of the classes, or 200 ms", above=0.0
    )
    ips: str = setting(
        "engine", "iterations per second: the engine model, or trees learned from it", ("engine", "trees")
    )
    retry_s: float = setting(0.1, "how often requests that wait for admission are projected again", least=0.01)


@dataclass(frozen=True, slots=True)
class PlacementTuning:
    """mu-Serve's placement of models (algorithm 2)."""

    kind: str = setting("alpaserve", "whose placement", ("power_aware", "alpaserve"))
    max_devices: int | None = setting(
        None, "devices of a model (CT)", unset="as many as a group has", least=1, most=10_000
    )
    spread: float = setting(
        0.1,
        "difference in sensitivity up to which partitions share a device while others are empty; 0: none does",
        least=0.0,
        only=_SHARED,
        most=1e6,
    )
    group_gpus: tuple[int, ...] = setting((), "sizes of groups that are tried", unset="all sizes", least=1, most=10_000)
    goal: float = setting(0.99, "attainment at which the search for groups may end", above=0.0, most=1.0)
    guide_s: float | None = setting(
        None, "length of the search's simulations", unset="long enough", above=0.0, only=_GUIDED
    )


@dataclass(frozen=True, slots=True)
class SplitTuning:
    """DynaServe's micro-requests, and the link between a pair of instances."""

    itl_margin: float = setting(
        0.0,
        "share of the limit between tokens that batches leave free, beside the error of predicted times",
        least=0.0,
        below=1.0,
    )
    chunked: bool = setting(True, "the KV cache is sent while more of it is computed")
    calibrate_s: float = setting(1.0, "how often predictions are held against the clock; 0: never", least=0.0)
    gain: float = setting(0.1, "share of an error that a calibration corrects", above=0.0, most=1.0)
    max_probes: int = setting(6, "cuts that are tried", least=1, most=1_000)
    margin_tokens: int = setting(20, "a part shorter than that is none", least=0)
    tolerance: float = setting(
        0.1, "share by which a cut must sustain more than whole requests do", least=0.0, most=1.0
    )
    candidates: int = setting(2, "instances of each group that are looked at", least=1, most=1_000)
    first_share: float = setting(0.5, "share of the instances for first parts", above=0.0, below=1.0)
    by_rates: bool = setting(
        False, "in place of first_share: as many as let both parts keep their limits at the same rate (BiScale)"
    )
    link_gb_per_s: float = setting(25.0, "between two instances; 25 is a 200 Gbit/s NIC", above=0.0, only=_LINK)
    latency_s: float = setting(0.001, "of that link", least=0.0, only=_LINK)


@dataclass(frozen=True, slots=True)
class LadderTuning:
    """DynamoLLM's ladder of emergencies."""

    period_s: float = setting(1.0, "how often pools are looked at", least=0.01)
    patience_s: float = setting(2.0, "how long a rung may prove itself before the next is climbed", above=0.0)
    calm_s: float = setting(5.0, "how long nobody must be late for the ladder to be left", above=0.0)
    squash_after_s: float = setting(10.0, "what a request must have waited to be given back", above=0.0)
    most_moves: int = setting(64, "requests that are re-steered at a time", least=1, most=1_000_000)


@dataclass(frozen=True, slots=True)
class QueueTuning:
    """Least laxity first: when requests are due, and when running ones are displaced."""

    margin_s: float = setting(1.0, "laxity that a displaced request must keep, or how far behind it must be", least=0.0)
    window_factor: float = setting(
        1.4, "FREESH's alpha_LLF: a request is due so many times its time alone after it came", least=1.0, most=100.0
    )


@dataclass(frozen=True, slots=True)
class ThresholdTuning:
    """Plain thresholds on the busiest resource of a pool or an instance."""

    kv_high: float = setting(0.7, "mean share of the busiest resource above which a pool grows", above=0.0, most=1.0)
    kv_low: float = setting(0.4, "share below which it may shrink", above=0.0, most=1.0)
    busy_high: float = setting(0.75, "share above which a clock goes to the top", above=0.0, most=1.0)
    busy_low: float = setting(0.5, "share below which it goes down a step", above=0.0, most=1.0)
    clock_step_mhz: float = setting(90.0, "that step", above=0.0)
    gain: float = setting(0.1, "share of its power that another TP degree must save", least=0.0, below=1.0)
    streak: int = setting(3, "shard epochs in a row that must find so", least=1, most=1_000)


@dataclass(frozen=True, slots=True)
class StartsTuning:
    """Starts of new instances depend on what stands ready."""

    warm_pool: int | None = setting(
        None,
        "servers at each site that stand ready, one that is used being replaced",
        unset="all do",
        least=0,
        most=10_000,
    )
    weights_cached: bool = setting(True, "plans count on weights on the server's disk, and simulated starts find them")


@dataclass(frozen=True, slots=True)
class SleepTuning:
    """Services that sleep without traffic."""

    idle_s: float | None = setting(
        None,
        "time without requests after which a service sleeps",
        unset="until idling has cost what waking does",
        least=0.0,
    )
    host_memory_gb: float | None = setting(
        None,
        "of sleep=level: what the machines have for weights of engines that sleep",
        unset="enough for all",
        least=0.0,
        most=100_000.0,
        only=OneWorld("simulator", "agents report how much memory is free"),
    )
    patience_s: float = setting(
        60.0,
        "how long a request waits for its service to wake, max_wait_s at most",
        above=0.0,
        only=OneWorld("live", "simulated requests wait as long as it takes"),
    )


@dataclass(frozen=True, slots=True)
class ServersTuning:
    """Servers that are switched off while nothing needs them."""

    idle_s: float | None = setting(
        None,
        "time without an instance after which a server is switched off",
        unset="until idling has cost what a boot does",
        least=0.0,
        only=_STAYS_ON,
    )
    boot_power: float = setting(
        1.0,
        "times its idle power that a machine draws while it boots or ends",
        above=0.0,
        most=10.0,
        only=_STAYS_ON,
    )


@dataclass(frozen=True, slots=True)
class Tuning:
    """One record for each step, and for what several share."""

    eq1: Eq1Tuning = field(default_factory=Eq1Tuning)
    miad: MiadTuning = field(default_factory=MiadTuning)
    primal_dual: PrimalDualTuning = field(default_factory=PrimalDualTuning)
    profile: ProfileTuning = field(default_factory=ProfileTuning)
    slack: SlackTuning = field(default_factory=SlackTuning)
    dynamo: DynamoTuning = field(default_factory=DynamoTuning)
    right_size: RightSizeTuning = field(default_factory=RightSizeTuning)
    throttle: ThrottleTuning = field(default_factory=ThrottleTuning)
    placement: PlacementTuning = field(default_factory=PlacementTuning)
    split: SplitTuning = field(default_factory=SplitTuning)
    ladder: LadderTuning = field(default_factory=LadderTuning)
    queue: QueueTuning = field(default_factory=QueueTuning)
    threshold: ThresholdTuning = field(default_factory=ThresholdTuning)
    starts: StartsTuning = field(default_factory=StartsTuning)
    sleep: SleepTuning = field(default_factory=SleepTuning)
    servers: ServersTuning = field(default_factory=ServersTuning)


def changed(present: Tuning, given: Mapping[str, Any]) -> Tuning:
    """Returns the tuning with the given fields, by record, put over it.

    Raises:
        ValueError: An unknown record or field, or a value out of range; the text begins with `tuning.RECORD.FIELD:`.
    """
    if not isinstance(given, Mapping):
        raise ValueError("tuning: is an object of records, like {miad: {increase: 2}}")
    records: dict[str, Any] = {}
    for name, values in given.items():
        known = [item.name for item in fields(Tuning)]
        if name not in known:
            raise ValueError(f"tuning.{name}: unknown record; known: {', '.join(known)}")
        if not isinstance(values, Mapping):
            raise ValueError(f"tuning.{name}: is an object of fields, not {values!r}")
        record = getattr(present, name)
        items = {item.name: item for item in fields(record)}
        own = {}
        for key, value in values.items():
            if key not in items:
                raise ValueError(f"tuning.{name}.{key}: unknown field; known: {', '.join(items)}")
            try:
                own[key] = checked(type(record), items[key], value)
            except ValueError as error:
                raise ValueError(f"tuning.{name}.{error}") from None
        records[name] = replace(record, **own)
    found = replace(present, **records)
    for low, high in (("kv_low", "kv_high"), ("busy_low", "busy_high")):
        if getattr(found.threshold, low) >= getattr(found.threshold, high):
            limit = getattr(found.threshold, high)
            raise ValueError(f"tuning.threshold.{low}: must be below {high}, {limit:g}")
    return found
