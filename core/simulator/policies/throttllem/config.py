"""throttLL'eM's configuration, and those of Triton and ReTail, which it is measured against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from core.controllers.request.admission import AdmissionConfig
from core.simulator.fields import Section
from core.simulator.kernel.commands import STRETCH_S
from core.simulator.policies.config import Starting

NAMES = ("throttllem", "triton", "retail")
IPS = ("engine", "trees")
_OWN = AdmissionConfig()


@dataclass(frozen=True, slots=True)
class ThrottllemConfig:
    """`admission`, `clock` and `autoscale`: which parts run. Under retail the clock is ReTail's.

    `predictor_error`: share that predicted lengths are raised by; beyond it a request is taken to run to `max_tokens`.
    `tbt_s`: None takes the strictest of the classes' TPOT limits, or 200 ms. `ips`: the engine model in closed form,
    with what prompts cost; or trees learned from its points, for which a prompt is one more row of the batch, as in the
    paper. `clock_floor_mhz`: None searches all clocks, as in the paper. `engines` of a service: None is what the
    declared peak needs. `tp`: the degree to begin with, and the only one without autoscaler; None: the largest.
    `max_rps`: profiled largest rates by TP degree (table II; `{tp1: 1.125}` in a scenario); those that are not given
    come from the engine model.
    """

    name: str = "throttllem"
    admission: bool = True
    clock: bool = True
    autoscale: bool = True
    predictor_error: float = _OWN.predictor_error
    max_tokens: int = 1024  # no answer of the conversation hour is longer than 1,000
    tbt_s: float | None = None
    ips: str = IPS[0]
    clock_floor_mhz: float | None = None
    retry_s: float = _OWN.retry_s
    period_s: float = 10.0
    engines: int | None = None
    tp: int | None = None
    max_rps: Mapping[int, float] = field(default_factory=dict)
    starting: Starting = field(default_factory=Starting)

    @property
    def judges(self) -> bool:
        """True where anything is decided at the arrival of a request."""
        return self.admission or self.clock


def read_throttllem(section: Section) -> ThrottllemConfig:
    """Raises ScenarioError: a value out of range."""
    name = section.text("name")
    paper = name == "throttllem"
    d = ThrottllemConfig(name, admission=paper, clock=name != "triton", autoscale=paper)
    period_s = section.number("period_s", d.period_s, above=0.0) or d.period_s
    if period_s % STRETCH_S:
        raise section.error("period_s", f"must be a multiple of {STRETCH_S:g}, not {period_s:g}")
    rates = section.section("max_rps")
    max_rps = {_degree(rates, key): rates.number(key, None, above=0.0) or 0.0 for key in rates.names()}
    rising = [rps for _, rps in sorted(max_rps.items())]
    if any(after <= before for before, after in pairwise(rising)):
        raise section.error("max_rps", "must ascend with the TP degree")
    error = section.number("predictor_error", d.predictor_error, least=0.0)
    return ThrottllemConfig(
        name=name,
        admission=section.flag("admission", d.admission),
        clock=section.flag("clock", d.clock),
        autoscale=section.flag("autoscale", d.autoscale),
        predictor_error=d.predictor_error if error is None else error,
        max_tokens=section.integer("max_tokens", d.max_tokens, least=1),
        tbt_s=section.number("tbt_s", None, above=0.0),
        ips=section.choice("ips", IPS, d.ips),
        clock_floor_mhz=section.number("clock_floor_mhz", None, above=0.0),
        retry_s=section.number("retry_s", d.retry_s, above=0.0) or d.retry_s,
        period_s=period_s,
        engines=section.maybe_integer("engines", least=1),
        tp=section.maybe_integer("tp", least=1),
        max_rps=max_rps,
        starting=Starting(section.maybe_integer("warm_pool", least=0), section.flag("weights_cached", True)),
    )


def _degree(rates: Section, key: str) -> int:
    degree = key.removeprefix("tp")
    if degree == key or not degree.isdigit() or int(degree) < 1:
        raise rates.error(key, "is not a TP degree; write tp1, tp2 ...")
    return int(degree)
