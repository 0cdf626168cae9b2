"""Says when the loops of a service run, by its policy and by settings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from django.conf import settings

from core.observations.demand.loop_windows import LOOK_S, loop_steps
from core.policy.knobs import Knobs
from core.policy.tuning import Eq1Tuning
from core.types import Loop

# Beat asks no less often: throttLL'eM's autoscaler; DynamoLLM's waves and early starts.
LONGEST_BEAT_S = {Loop.SCALE: LOOK_S, Loop.SHARD: LOOK_S}


@dataclass(frozen=True, slots=True)
class LoopTimes:
    """The periods of a service's loops: its policy's, else those of settings.

    `steps`: of a carbon epoch. `look_back_s`: the one window that scale and shard observe. With a shorter one of its
    own, shard would in a lull give away the GPUs that scale has given for the peak; a policy that looks each few
    seconds still learns the lengths of requests from no less than the settings' period.
    """

    carbon_s: float
    scale_s: float
    shard_s: float
    clock_s: float
    steps: int
    look_back_s: float

    @property
    def step_s(self) -> float:
        """The length of a step: FREESH plans 30 minutes in six steps of five."""
        return self.carbon_s / self.steps

    @property
    def scale_steps(self) -> int:
        """The number of steps that a scale epoch plans for: those that it reaches into."""
        return loop_steps(self.scale_s, self.step_s)

    def of(self, loop: Loop) -> float:
        """Returns the period of a loop, in s."""
        return {
            Loop.CARBON: self.carbon_s,
            Loop.SCALE: self.scale_s,
            Loop.SHARD: self.shard_s,
            Loop.CLOCK: self.clock_s,
        }[loop]


def times(knobs: Knobs, steps: int = Eq1Tuning().steps) -> LoopTimes:
    """Returns the times of a service that has this policy, whose carbon plan looks so many steps ahead."""
    usual_s = {loop: float(settings.GREENSERVE_LOOPS[loop.value]["period_s"]) for loop in Loop}
    own_s = {loop: knobs.period_s(loop, usual_s[loop]) for loop in Loop}
    faster = (Loop.SCALE, Loop.SHARD)
    return LoopTimes(
        carbon_s=own_s[Loop.CARBON],
        scale_s=own_s[Loop.SCALE],
        shard_s=own_s[Loop.SHARD],
        clock_s=own_s[Loop.CLOCK],
        steps=steps,
        look_back_s=max(*(usual_s[loop] for loop in faster), *(own_s[loop] for loop in faster)),
    )


def beat_s(loop: Loop) -> float:
    """Returns how often beat asks whether a loop of any service is due: policies differ in their periods, and some
    steps want a turn between two epochs."""
    return min(times(Knobs()).of(loop), LONGEST_BEAT_S.get(loop, math.inf))
