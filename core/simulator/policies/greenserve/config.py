"""The settings of a policy that GreenServe's own simulated loops read."""

from __future__ import annotations

from dataclasses import dataclass, field

from core.controllers.fleet.right_size import RightSizeConfig
from core.observations.fleet.right_size_given import AHEAD_STEP_S, AHEAD_STEPS
from core.observations.step_configs import right_size_config
from core.policy.presets import Policy
from core.policy.tuning import SplitTuning
from core.simulator.kernel.simulated import Scheduling
from core.simulator.policies.config import Reads, Starting, any_of, period_s, running, starting_of
from core.types import Loop

LOOPS = ("scale", "clock")  # slowest first


@dataclass(frozen=True, slots=True)
class GreenserveConfig:
    """`loops`: those that run; without scale all GPUs run the largest instances, without clock they are at the top.
    `wait_share`: part of a TTFT limit that an iteration with two prompts' chunks may take, since a request also
    waits for the one under way; `margin`: part of a TPOT limit that the mean may take, since the 99th of 100
    requests has about twice the mean. The clock loop, which answers at once, may use more of it: `clock_margin`, and
    `clock_wait_share` of TTFT.
    `chunk_tokens`: of one prompt in an iteration at most, so that short ones come along; 0: all. `look_s`: how
    far the loops look back, scale for the load and its trend. `replay`: counts also keep TTFT for the last requests if
    these came again. `error_budget`: head-room grows as it is spent. `fleet`: see `RightSizeConfig`. `clock_step_mhz`:
    the profiled clocks, from the floor (`Knobs.clock_floor`) on. `shortest_first`: short prompts do not wait behind
    long ones. `objective`: what is made least; without an intensity for every site it is energy. `ahead_step_s`: of the
    steps of a carbon epoch, over which sites are weighed. `split`: instances of their own for prompts; None: none have.
    """

    name: str = "greenserve"
    objective: str = "carbon"
    ahead_step_s: float = AHEAD_STEP_S
    loops: tuple[str, ...] = LOOPS
    fleet: RightSizeConfig = field(default_factory=RightSizeConfig)
    clock: str = "deadline"
    route: str = "least_backlog"
    clock_period_s: float = 0.5
    clock_step_mhz: float = 60.0
    clock_min_saving: float = 0.02
    clock_memory_s: float = 15.0
    clock_counts_ttft: bool = False
    full_iteration: bool = True
    clock_floor: str = "voltage"
    clock_floor_mhz: float | None = None
    look_s: float = 60.0
    replay: bool = True
    error_budget: bool = True
    margin: float = 0.45
    clock_margin: float = 0.75
    wait_share: float = 0.7
    clock_wait_share: float = 0.7
    shortest_first: bool = True
    chunk_tokens: int = 512
    starting: Starting = field(default_factory=Starting)
    split: SplitTuning | None = None

    @property
    def by_deadlines(self) -> bool:
        """Says whether clocks follow the requests that are there (`Knobs.by_deadlines`)."""
        return self.clock in ("deadline", "iteration")

    @property
    def plan_shares(self) -> tuple[float, float]:
        """The parts of TTFT and TPOT limits that plans use."""
        return self.wait_share, self.margin

    @property
    def clock_shares(self) -> tuple[float, float]:
        """The parts of TTFT and TPOT limits that clocks use."""
        return self.clock_wait_share, self.clock_margin

    @property
    def scheduling(self) -> Scheduling:
        """Work is estimated by what is to be prefilled alone: that is shortest prompt first."""
        if not self.shortest_first:
            return Scheduling(chunk_tokens=self.chunk_tokens)
        return Scheduling("srtf", prefill_token_s=1.0, chunk_tokens=self.chunk_tokens)


READS = Reads(
    {
        **any_of("carbon_period_s", "scale_period_s", "clock_period_s", "changes_per_hour", "alpha", "chunk_tokens"),
        **any_of("plan_ttft_share", "plan_tpot_share", "clock_ttft_share", "clock_tpot_share"),
        **any_of("clock_floor", "clock_floor_mhz"),
        "split": ("none", "prompt"),
        "objective": ("carbon", "energy", "cost"),
        "scale": ("right_size", "static"),
        "clock": ("deadline", "iteration", "profile", "fixed"),
        "route": ("least_backlog", "least_loaded", "least_energy"),
        "order": ("spf", "fcfs"),
    },
    (
        *("right_size", "profile", "starts"),
        *("split.first_share", "split.by_rates", "split.link_gb_per_s", "split.latency_s", "split.chunked"),
    ),
)


def of(policy: Policy) -> GreenserveConfig:
    """Returns what the policy comes to."""
    knobs = policy.knobs
    return GreenserveConfig(
        name=policy.name,
        objective=knobs.objective,
        ahead_step_s=period_s(policy, Loop.CARBON) / AHEAD_STEPS,
        loops=running(policy, LOOPS),
        fleet=right_size_config(knobs, policy.tuning, period_s(policy, Loop.SCALE)),
        clock=knobs.clock,
        route=knobs.route,
        clock_period_s=period_s(policy, Loop.CLOCK),
        clock_step_mhz=policy.tuning.profile.step_mhz,
        clock_min_saving=policy.tuning.profile.min_saving,
        clock_memory_s=policy.tuning.profile.memory_s,
        clock_counts_ttft=policy.tuning.profile.counts_ttft,
        full_iteration=policy.tuning.profile.full_iteration,
        clock_floor=knobs.clock_floor,
        clock_floor_mhz=knobs.clock_floor_mhz,
        look_s=policy.tuning.right_size.look_s,
        replay=policy.tuning.right_size.replay,
        error_budget=policy.tuning.right_size.error_budget,
        margin=knobs.plan_tpot_share,
        clock_margin=knobs.clock_tpot_share,
        wait_share=knobs.plan_ttft_share,
        clock_wait_share=knobs.clock_ttft_share,
        shortest_first=knobs.order == "spf",
        chunk_tokens=knobs.chunk_tokens,
        starting=starting_of(policy),
        split=_split(policy.tuning.split) if knobs.split == "prompt" else None,
    )


def _split(tuned: SplitTuning) -> SplitTuning:
    """Returns what of the tuning is read where requests are split after their prompt."""
    return SplitTuning(
        first_share=tuned.first_share,
        by_rates=tuned.by_rates,
        link_gb_per_s=tuned.link_gb_per_s,
        latency_s=tuned.latency_s,
        chunked=tuned.chunked,
    )
