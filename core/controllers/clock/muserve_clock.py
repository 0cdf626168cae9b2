"""The clock loop of mu-Serve: Algorithm 3 on one device and the model partitions on it (section 3.4).

Latencies are sampled each 500 ms and acted on each second, from the default (top) clock on: `step` is called at each
sample and acts at every other. What a sample is worth when no newer one has come follows from the algorithm's own
premise, that a share w of the latency goes with 1/f: seen at f0 as A, it is A (1 + w (f0 / f - 1)) at f. With a sample
in each period this changes nothing; without, the clock does not run down, or up, on one latency of long ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.algorithms.clock.slack_miad import Action, SlackConfig, agreed, next_clock_mhz, slack, wanted
from core.types import ClockObservation, Effects, Rationale, Reason, SetSmClock

__all__ = [
    "EARLY_S",
    "STARVED",
    "DeviceObservation",
    "MuServeClockConfig",
    "MuServeClockState",
    "PartitionLoad",
    "Sample",
    "SlackConfig",
    "observe_instance",
    "step",
]

STARVED = 30  # actions in a row that wanted more than the top clock: half a minute of a short fleet
EARLY_S = 0.1  # a look a little before its time counts as on time: else every other action would be a sample late


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """A model partition on the device. `weight`: its sensitivity; `latency_s`: the model's worst since the last sample.

    None: nothing finished. `busy`: the model has requests that run or wait.
    """

    name: str
    weight: float
    target_s: float
    latency_s: float | None
    busy: bool


@dataclass(frozen=True, slots=True)
class DeviceObservation:
    """A device (a GPU, or those of one instance, which share a clock) at a sample."""

    now_s: float
    device: str
    min_mhz: float
    max_mhz: float
    partitions: tuple[PartitionLoad, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """A latency, when it was seen and at which clock."""

    latency_s: float
    at_s: float
    mhz: float


@dataclass(frozen=True, slots=True)
class MuServeClockConfig:
    """The algorithm's knobs and the loop's periods; after `memory_s` a latency is not known any more."""

    slack: SlackConfig = field(default_factory=SlackConfig)
    sample_s: float = 0.5
    act_s: float = 1.0
    memory_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0.0 < self.sample_s <= self.act_s <= self.memory_s:
            raise ValueError("the periods are 0 < sample_s <= act_s <= memory_s")


@dataclass(frozen=True, slots=True)
class MuServeClockState:
    """`target_mhz` None: nothing asked for yet. `starved`: actions in a row that found the clock at its top already."""

    target_mhz: float | None = None
    acted_s: float | None = None
    samples: Mapping[str, Sample] = field(default_factory=dict)
    starved: int = 0


def observe_instance(obs: ClockObservation, weights: Mapping[str, float]) -> DeviceObservation:
    """Observes an instance that is a whole model: each of its latency limits counts as a partition with a target of its
    own.

    Args:
        weights: Sensitivity of "ttft", "tpot" and "e2e"; one that is missing takes 1, as if all went with the clock.
    """
    seen = (
        ("ttft", obs.ttft_s, obs.limits.ttft_s),
        ("tpot", obs.tpot_s, obs.limits.tpot_s),
        ("e2e", obs.e2e_s, obs.limits.e2e_s),
    )
    busy = obs.running + obs.waiting > 0
    partitions = tuple(
        PartitionLoad(name, weights.get(name, 1.0), target, actual, busy)
        for name, actual, target in seen
        if target is not None
    )
    return DeviceObservation(obs.now_s, obs.instance, obs.min_mhz, obs.max_mhz, partitions)


def step(
    state: MuServeClockState | None, obs: DeviceObservation, config: MuServeClockConfig
) -> tuple[MuServeClockState, Effects]:
    """Takes one sample, and each `act_s` one action.

    `inputs["starved"]` counts the actions in a row that wanted more than the top clock: the paper's sign that the model
    needs another replica.
    """
    state = state or MuServeClockState()
    first = state.target_mhz is None
    mhz = min(max(obs.max_mhz if state.target_mhz is None else state.target_mhz, obs.min_mhz), obs.max_mhz)
    samples = _sampled(state, obs, mhz, config)
    if first:
        begun = MuServeClockState(mhz, obs.now_s, samples)
        text = f"The clock starts from its default, {mhz:.0f} MHz."
        rationale = Rationale(Reason.POLICY, text, _inputs(obs, samples, mhz, mhz, 0))
        return begun, Effects((SetSmClock(obs.device, mhz),), obs.now_s + config.sample_s, rationale)
    early_s = min(EARLY_S, config.sample_s / 2.0)
    if state.acted_s is not None and obs.now_s - state.acted_s < config.act_s - early_s:
        sampled = MuServeClockState(state.target_mhz, state.acted_s, samples, state.starved)
        rationale = Rationale(
            Reason.NO_CHANGE, "Latencies sampled; the next action is due later.", _inputs(obs, samples, mhz, mhz, 0)
        )
        return sampled, Effects((), obs.now_s + config.sample_s, rationale)
    action = agreed([_wanted(partition, samples.get(partition.name), mhz, config) for partition in obs.partitions])
    target = next_clock_mhz(mhz, action, obs.min_mhz, obs.max_mhz, config.slack)
    starved = state.starved + 1 if action is Action.UP and mhz >= obs.max_mhz else 0
    rationale = Rationale(*_why(action, mhz, target), _inputs(obs, samples, mhz, target, starved))
    commands = () if target == state.target_mhz else (SetSmClock(obs.device, target),)
    acted = MuServeClockState(target, obs.now_s, samples, starved)
    return acted, Effects(commands, obs.now_s + config.sample_s, rationale)


def _sampled(
    state: MuServeClockState, obs: DeviceObservation, mhz: float, config: MuServeClockConfig
) -> dict[str, Sample]:
    """Returns what is known of each partition: the worst since the last action, else what was known before."""
    found = {}
    for partition in obs.partitions:
        known = state.samples.get(partition.name)
        if partition.latency_s is not None:
            latency_s = partition.latency_s
            if known is not None and state.acted_s is not None and known.at_s > state.acted_s:
                latency_s = max(latency_s, known.latency_s)
            found[partition.name] = Sample(latency_s, obs.now_s, mhz)
        elif known is not None and partition.busy and obs.now_s - known.at_s <= config.memory_s:
            found[partition.name] = known
    return found


def _latency_s(sample: Sample, weight: float, mhz: float) -> float:
    """Converts a sampled latency, in s, to the present clock."""
    return sample.latency_s * max(0.0, 1.0 + weight * (sample.mhz / mhz - 1.0))


def _wanted(partition: PartitionLoad, sample: Sample | None, mhz: float, config: MuServeClockConfig) -> Action:
    if sample is None:
        return Action.SAME if partition.busy else Action.DOWN
    latency_s = _latency_s(sample, partition.weight, mhz)
    return wanted(partition.target_s, latency_s, partition.weight, mhz, config.slack)


def _why(action: Action, mhz: float, target: float) -> tuple[Reason, str]:
    if action is Action.SAME:
        return Reason.NO_CHANGE, f"Not every partition allows a lower clock than {mhz:.0f} MHz."
    if target == mhz:
        end = "top" if action is Action.UP else "bottom"
        return Reason.AT_LIMIT, f"The clock is already at its {end}, {mhz:.0f} MHz."
    if action is Action.UP:
        return Reason.CONGESTED, f"A partition has too little slack: {mhz:.0f} MHz -> {target:.0f} MHz."
    return Reason.SLACK, f"Every partition has slack for it: {mhz:.0f} MHz -> {target:.0f} MHz."


def _inputs(
    obs: DeviceObservation, samples: Mapping[str, Sample], mhz: float, target: float, starved: int
) -> dict[str, Any]:
    partitions = {}
    for partition in obs.partitions:
        sample = samples.get(partition.name)
        latency_s = None if sample is None else _latency_s(sample, partition.weight, mhz)
        partitions[partition.name] = {
            "weight": partition.weight,
            "target_s": partition.target_s,
            "latency_s": latency_s,
            "slack": None if latency_s is None else slack(partition.target_s, latency_s),
        }
    return {"from_mhz": mhz, "to_mhz": target, "starved": starved, "partitions": partitions}
