"""The knobs of GreenServe's own policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from core.controllers.fleet.right_size import RightSizeConfig
from core.simulator.fields import Section
from core.simulator.kernel.simulated import Scheduling
from core.simulator.policies.config import Starting

LOOPS = ("scale", "clock")  # slowest first
OBJECTIVES = ("carbon", "energy")


@dataclass(frozen=True, slots=True)
class GreenserveConfig:
    """`loops`: those that run; without scale all GPUs run the largest instances, without clock they are at the top.
    `wait_share`: part of a TTFT limit that an iteration with two prompts' chunks may take, since a request also
    waits for the one under way; `margin`: part of a TPOT limit that the mean may take, since the 99th of 100
    requests has about twice the mean. The clock loop, which answers at once, may use more of it: `clock_margin`.
    `chunk_tokens`: of one prompt in an iteration at most, so that short ones come along; 0: all. `look_s`: how
    far the loops look back, scale for the load and its trend. `fleet`: see `RightSizeConfig`. `clock_step_mhz`:
    the profiled clocks. `shortest_first`: short prompts do not wait behind long ones. `objective`: what is made
    least; without an intensity for every site it is energy.
    """

    name: str = "greenserve"
    objective: str = "carbon"
    loops: tuple[str, ...] = LOOPS
    fleet: RightSizeConfig = field(default_factory=RightSizeConfig)
    clock_period_s: float = 0.5
    clock_step_mhz: float = 60.0
    look_s: float = 60.0
    margin: float = 0.45
    clock_margin: float = 0.75
    wait_share: float = 0.7
    shortest_first: bool = True
    chunk_tokens: int = 512
    starting: Starting = field(default_factory=Starting)

    @property
    def scheduling(self) -> Scheduling:
        """Work is estimated by what is to be prefilled alone: that is shortest prompt first."""
        if not self.shortest_first:
            return Scheduling(chunk_tokens=self.chunk_tokens)
        return Scheduling("srtf", prefill_token_s=1.0, chunk_tokens=self.chunk_tokens)


def read_greenserve(section: Section) -> GreenserveConfig:
    """Reads the settings of `greenserve`. Raises ScenarioError."""
    d = GreenserveConfig()
    f = d.fleet

    def number(key: str, default: float, least: float | None = None, above: float | None = None) -> float:
        value = section.number(key, default, least=least, above=above)
        return default if value is None else value

    def share(key: str, default: float, above: float | None = None, below: float | None = None) -> float:
        value = number(key, default, least=None if above is not None else 0.0, above=above)
        if value > 1.0 or (below is not None and value >= below):
            raise section.error(key, f"must be {'below' if below else 'at most'} 1, not {value:g}")
        return value

    given = section.texts("loops")
    for loop in given:
        if loop not in LOOPS:
            raise section.error("loops", f"unknown '{loop}'; known: {', '.join(LOOPS)}")
    return GreenserveConfig(
        name=section.text("name"),
        objective=section.choice("objective", OBJECTIVES, d.objective),
        loops=tuple(loop for loop in LOOPS if loop in given) if "loops" in section.names() else d.loops,
        fleet=RightSizeConfig(
            period_s=number("scale_period_s", f.period_s, above=0.0),
            headroom=number("headroom", f.headroom, least=1.0),
            burst=number("burst", f.burst, least=0.0),
            hold_s=number("hold_s", f.hold_s, least=0.0),
            min_saving=share("min_saving", f.min_saving, below=1.0),
            mode_saving=share("mode_saving", f.mode_saving, below=1.0),
            changes_per_hour=section.maybe_integer("changes_per_hour", least=1),
            catch_up_s=number("catch_up_s", f.catch_up_s, above=0.0),
        ),
        clock_period_s=number("clock_period_s", d.clock_period_s, above=0.0),
        clock_step_mhz=number("clock_step_mhz", d.clock_step_mhz, above=0.0),
        look_s=number("look_s", d.look_s, least=10.0),
        margin=share("margin", d.margin, above=0.0),
        clock_margin=share("clock_margin", d.clock_margin, above=0.0),
        wait_share=share("wait_share", d.wait_share, above=0.0),
        shortest_first=section.flag("shortest_first", d.shortest_first),
        chunk_tokens=int(number("chunk_tokens", d.chunk_tokens, least=0.0)),
        starting=Starting(section.maybe_integer("warm_pool", least=0), section.flag("weights_cached", True)),
    )
