"""DynamoLLM's day and weeks (V-D to V-F), by simulated hours of a working day and of a weekend day.

A service's week has Tuesday's load on its working days and Sunday's on the other two; of each day the hours around
2:00, 8:00, 14:00 and 20:00 are run, each for a quarter of the day. The generated week's mean is met within 1 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.simulator.lab.experiment import Experiment, Row, Run, Table
from core.simulator.lab.measures import Results, SavingInAll, Versus, figure, saving
from core.simulator.lab.why import Claim, why
from core.simulator.workload.curves import PRESETS

# g/kWh of FREESH's location 1 in these hours, the demo's solar day: the paper's week of CAISO is not in its text.
HOURS = {2: 505, 8: 360, 14: 290, 20: 632}
DAYS = {"tuesday": 5, "sunday": 2}  # how often it counts in a week
_HALF_H = 0.5


@dataclass(frozen=True, slots=True)
class WeekService:
    """`peak_rps`: about the most that `servers` hold in one pool, with 99 % of the requests in time."""

    preset: str
    servers: int
    peak_rps: float
    lengths: str

    def label(self, policy: str, day: str, hour: int) -> str:
        return f"{policy}, {self.preset}, {day} {hour}:00"

    def run(self, policy: str, day: str, hour: int, *more: str, name: str = "") -> Run:
        """Makes the hour around `hour` of a day. `name`: what labels call the policy."""
        settings = (
            "workload.generate=week",
            f"workload.preset={self.preset}",
            f"workload.rate_rps={self.peak_rps / PRESETS[self.preset].peak_to_mean:.6g}",
            "workload.rate_scale=1",
            f"workload.lengths={self.lengths}",
            f"workload.start_weekday={day}",
            f"workload.start_hour={hour - _HALF_H}",
            "workload.duration_s=3600",
            f"fleet.count={self.servers}",
            f"prices.carbon_g_per_kwh={HOURS[hour]}",
        )
        return Run(self.label(name or policy, day, hour), policy, (*settings, *more))


CONVERSATION = WeekService("conversation", 11, 80.0, "azure-conv")
# The medians of the public coding hour (Splitwise, ISCA 2024).
CODING = WeekService("coding", 6, 95.0, "{prompt: 1500, output: 13}")

SERVICES = (CONVERSATION, CODING)
ONE_POOL, OWN = "single_pool", "dynamollm"
_WHOLE_WEEK = tuple((day, hour, float(weight)) for day, weight in DAYS.items() for hour in HOURS)


def in_all(service: WeekService, hours: Sequence[tuple[str, int, float]], name: str = "energy_wh") -> SavingInAll:
    """Makes DynamoLLM's saving over hours, each of which counts so often."""
    return SavingInAll(
        tuple((service.label(OWN, day, hour), service.label(ONE_POOL, day, hour), n) for day, hour, n in hours), name
    )


def share(results: Results, own: str, other: str, name: str = "energy_wh") -> str:
    """Writes the saving in per cent."""
    saved = 100.0 * (1.0 - results[own][name] / results[other][name])
    return f"{round(saved, 1) + 0.0:.1f}"  # no minus before nothing


def by_hour(results: Results) -> Table:
    """Lists what DynamoLLM saves in each hour, and the requests in time."""
    rows = []
    for service in SERVICES:
        for day in DAYS:
            for hour in HOURS:
                own, other = (service.label(policy, day, hour) for policy in (OWN, ONE_POOL))
                rows.append(
                    (
                        f"{service.preset}, {day} {hour}:00",
                        f"{results[own]['finished'] / 3600.0:.1f}",
                        share(results, own, other),
                        share(results, own, other, "gpu_hours"),
                        f"{results[own]['slo_attainment']:.3f}",
                        f"{results[other]['slo_attainment']:.3f}",
                    )
                )
    return Table(
        "DynamoLLM against SinglePool by the hour.",
        ("", "requests/s", "energy saved, %", "GPU-hours saved, %", "attainment", "SinglePool's"),
        tuple(rows),
    )


_WEEK = "the Conversation week's saving"
_OF_WEEK = in_all(CONVERSATION, _WHOLE_WEEK)


def of_hour(service: WeekService, hour: int, policy: str = OWN, name: str = "energy_wh") -> Versus:
    """Makes the saving of an hour of a service's Tuesday."""
    return saving(service.label(policy, "tuesday", hour), service.label(ONE_POOL, "tuesday", hour), name)


_FULL_PEAK = why(
    "not known; it goes with the hours in which the six servers are full: {peak} is saved at 14:00, {morning} at 8:00 "
    "and {night} at 2:00. Then {kept} of the requests are in time: an answer of 13 tokens waits while prompts of "
    "others are computed, and P99 of TPOT is {tpot} for a limit of 100 ms.",
    "table IV",
    peak=Claim(of_hour(CODING, 14), 0.09, "%", by=0.5),
    morning=Claim(of_hour(CODING, 8), 47.6, "%"),
    night=Claim(of_hour(CODING, 2), 85.6, "%"),
    kept=Claim(figure(CODING.label(OWN, "tuesday", 2), "slo_attainment", scale=100.0), 68.8, "%", by=2.0),
    tpot=Claim(figure(CODING.label(OWN, "tuesday", 2), "tpot_s", "p99", scale=1e3), 310.0, "ms"),
)
_WHOLE, _WHOLE_HOURS = f"{OWN}, whole servers", (2, 8)


def _gpu_hours(hour: int, policy: str = OWN) -> Versus:
    return of_hour(CONVERSATION, hour, policy, "gpu_hours")


_GPUS = why(
    "ours counts GPUs, and the shard loop gives some of a server's back, where the paper counts servers. Without that "
    "loop, in whole servers, {night} and {morning} of Tuesday's GPU-hours are saved at 2:00 and 8:00; with it "
    "{own_night} and {own_morning}.",
    "V-F",
    night=Claim(_gpu_hours(2, _WHOLE), 58.3, "%"),
    morning=Claim(_gpu_hours(8, _WHOLE), 40.2, "%"),
    own_night=Claim(_gpu_hours(2), 65.2, "%"),
    own_morning=Claim(_gpu_hours(8), 51.4, "%"),
)
_SUNNY = why(
    "the paper's week of CAISO is not public in numbers. The demo's solar day is cleanest at 14:00, where {peak} of "
    "the energy is saved, and dirtiest at 20:00, where {evening} is; at one intensity it would be the energy's, "
    "{energy}. The paper saves 47 % of the energy and 38 % of the carbon.",
    "V-E, V-F",
    peak=Claim(of_hour(CONVERSATION, 14), 30.5, "%"),
    evening=Claim(of_hour(CONVERSATION, 20), 51.5, "%"),
    energy=Claim(_OF_WEEK, 50.9, "%"),
)

DYNAMOLLM_WEEK = Experiment(
    name="dynamollm-week",
    quick=False,
    title="DynamoLLM, fig. 14 and 16: weeks of two services, by their hours",
    headlines={_WEEK: "energy saved over the Conversation week"},
    scenario="dynamollm-70b-h100",
    stands_in=(
        "The generated week, which has the paper's ratios of peak, mean and valley, in the place of its traces. Of a "
        "working day (Tuesday) and a weekend day (Sunday) the hours around 2:00, 8:00, 14:00 and 20:00 are run and "
        "stand for the day; five working days and two others are the week. Each hour begins with the fleet for its own "
        "load, as a history of weeks would have it, and forecasts then go by the last half hour: there is no week "
        "before it. Conversation's 40 servers and their rate are 11, as many as the day's; Coding's are 6, with the "
        "medians of the public coding hour for all lengths. Rates are about the most that the servers hold in one pool "
        "at the peak. Carbon intensities are the demo's solar day."
    ),
    runs=(
        *(
            service.run(policy, day, hour)
            for service in SERVICES
            for day in DAYS
            for hour in HOURS
            for policy in (ONE_POOL, OWN)
        ),
        *(CONVERSATION.run(f"{OWN} {{shard: off}}", "tuesday", hour, name=_WHOLE) for hour in _WHOLE_HOURS),
    ),
    table=by_hour,
    rows=(
        Row(_WEEK, "fig. 14", "%", 47.0, _OF_WEEK),
        Row("the Coding week's saving", "fig. 14", "%", 56.0, in_all(CODING, _WHOLE_WEEK), _FULL_PEAK),
        Row(
            "fewer GPU-hours over the Conversation week: user cost",
            "V-F",
            "%",
            38.5,
            in_all(CONVERSATION, _WHOLE_WEEK, "gpu_hours"),
            _GPUS,
        ),
        Row(
            "less carbon over the Conversation week",
            "fig. 16",
            "%",
            38.0,
            in_all(CONVERSATION, _WHOLE_WEEK, "carbon_g"),
            _SUNNY,
        ),
    ),
)
