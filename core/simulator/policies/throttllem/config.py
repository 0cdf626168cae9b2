"""The settings of a policy that the simulated throttLL'eM reads, and Triton and ReTail, its yardsticks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from core.controllers.request.admission import AdmissionConfig
from core.observations.limits import lacks_pace
from core.policy.knobs import degrees
from core.policy.presets import Policy
from core.simulator.kernel.commands import STRETCH_S
from core.simulator.policies.config import Reads, Starting, any_of, period_s, starting_of
from core.types import Limits, Loop

_OWN = AdmissionConfig()


@dataclass(frozen=True, slots=True)
class ThrottllemConfig:
    """`admission`, `clock` and `autoscale`: which parts run. Under retail the clock is ReTail's.

    `predictor_error`: share that predicted lengths are raised by; beyond it a request is taken to run to `max_tokens`.
    None: as measured on the requests that have ended, and before that `AdmissionConfig`'s.
    `tbt_s`: None takes the strictest of the classes' TPOT limits, or 200 ms. `ips`: the engine model in closed form,
    with what prompts cost; or trees learned from its points, for which a prompt is one more row of the batch, as in the
    paper. `clock_floor` `gpu` without `clock_floor_mhz` searches all clocks, as in the paper. `engines` of a service:
    None is what the declared peak needs. `tp`: the largest degree, to begin with, and the only one without autoscaler.
    `max_rps`: profiled largest rates by TP degree (table II; `{tp1: 1.125}` in a scenario); those that are not given
    come from the engine model.
    """

    name: str = "throttllem"
    admission: bool = True
    clock: bool = True
    autoscale: bool = True
    predictor_error: float | None = None
    max_tokens: int = 1024  # no answer of the conversation hour is longer than 1,000
    tbt_s: float | None = None
    ips: str = "engine"
    clock_floor: str = "voltage"
    clock_floor_mhz: float | None = None
    retry_s: float = _OWN.retry_s
    period_s: float = 10.0
    engines: int | None = None
    tp: int = 4
    max_rps: Mapping[int, float] = field(default_factory=dict)
    starting: Starting = field(default_factory=Starting)

    def lacks_pace(self, of_classes: Iterable[Limits]) -> str:
        """Says why it has nothing to go by under such limits, and what to do; empty: it has."""
        rule = "retail" if self.name == "retail" else "throttle"
        knobs = rule if self.clock else "fixed", "projection" if self.admission else "none"
        return lacks_pace(*knobs, self.tbt_s, of_classes)

    @property
    def judges(self) -> bool:
        """True where anything is decided at the arrival of a request."""
        return self.admission or self.clock


_LOOK_S = 10.0  # where no engine changes its size, so often its load is looked at for the clocks
READS = Reads(
    {
        **any_of("predictor_error", "clock_floor", "clock_floor_mhz", "scale_period_s", "tp", "max_rps"),
        "admission": ("projection", "none"),
        "clock": ("throttle", "retail", "fixed"),
        "scale": ("throttle", "static"),
    },
    ("throttle", "starts"),
)


def of(policy: Policy) -> ThrottllemConfig:
    """Returns what the policy comes to.

    Raises:
        ValueError: A period that is no multiple of the kernel's stretches, or a clock rule of another policy.
    """
    knobs, tuned = policy.knobs, policy.tuning.throttle
    if knobs.clock == ("throttle" if policy.name == "retail" else "retail"):
        own = "retail" if policy.name == "retail" else "throttle"
        raise ValueError(f"clock: unknown '{knobs.clock}'; known: {own}, fixed, in a simulated {policy.name}")
    scale_s = period_s(policy, Loop.SCALE) if knobs.scale == "throttle" else _LOOK_S
    if scale_s % STRETCH_S:
        raise ValueError(f"scale_period_s: must be a multiple of {STRETCH_S:g}, not {scale_s:g}")
    return ThrottllemConfig(
        name=policy.name,
        admission=knobs.admission == "projection",
        clock=knobs.clock != "fixed",
        autoscale=knobs.scale == "throttle",
        predictor_error=knobs.predictor_error,
        max_tokens=tuned.max_tokens,
        tbt_s=tuned.tbt_s,
        ips=tuned.ips,
        clock_floor=knobs.clock_floor,
        clock_floor_mhz=knobs.clock_floor_mhz,
        retry_s=tuned.retry_s,
        period_s=scale_s,
        engines=tuned.engines,
        tp=knobs.tp,
        max_rps=degrees(knobs.max_rps or {}),
        starting=starting_of(policy),
    )
