"""DynamoLLM's day (V-D, fig. 15), by its hours, with the systems that fig. 14 has beside it."""

from __future__ import annotations

from core.simulator.lab.experiment import Experiment, Row, Table
from core.simulator.lab.measures import Own, Results, figure
from core.simulator.lab.papers.dynamollm_week import CONVERSATION, HOURS, ONE_POOL, OWN, in_all, of_hour, share
from core.simulator.lab.why import Claim, why

_SYSTEMS = ("multi_pool", "scale_inst", "scale_shard", "scale_freq")
_CROWDED = "overload=allow"  # nine pools do not fit the servers at the peak
# Means may take so much of the limits, in place of 90 % and, of a TTFT limit, 45 %.
_LESS = "plan_ttft_share: 0.375, plan_tpot_share: 0.75, clock_ttft_share: 0.375, clock_tpot_share: 0.75"
_SLOWER, _LESS_HOURS = f"{OWN}, 75 % of limits", (2, 8)


def _kept(hour: int, policy: str = OWN) -> Own:
    return figure(CONVERSATION.label(policy, "tuesday", hour), "slo_attainment", scale=100.0)


_EMPTY_HOURS = why(
    "not known. It is not bought with late requests: where plans leave more of the limits, {night} and {morning} are "
    "saved at 2:00 and 8:00 with {night_kept} and {morning_kept} in time, for {own_night} and {own_morning} with "
    "{own_night_kept} and {own_morning_kept}. At 14:00 it is {peak}.",
    night=Claim(of_hour(CONVERSATION, 2, _SLOWER), 70.1, "%"),
    morning=Claim(of_hour(CONVERSATION, 8, _SLOWER), 48.0, "%"),
    night_kept=Claim(_kept(2, _SLOWER), 99.35, "%", within=0.005),
    morning_kept=Claim(_kept(8, _SLOWER), 99.67, "%", within=0.005),
    own_night=Claim(of_hour(CONVERSATION, 2), 71.6, "%"),
    own_morning=Claim(of_hour(CONVERSATION, 8), 49.9, "%"),
    own_night_kept=Claim(_kept(2), 99.18, "%", within=0.005),
    own_morning_kept=Claim(_kept(8), 99.13, "%", within=0.005),
    peak=Claim(of_hour(CONVERSATION, 14), 30.5, "%"),
)


def of_systems(results: Results) -> Table:
    """Lists what each system saves against SinglePool in each hour, and the requests in time."""
    rows = []
    for system in (*_SYSTEMS, OWN):
        cells = []
        for hour in HOURS:
            own, other = (CONVERSATION.label(policy, "tuesday", hour) for policy in (system, ONE_POOL))
            cells += [share(results, own, other), f"{results[own]['slo_attainment']:.3f}"]
        rows.append((system, *cells))
    return Table(
        "Fig. 15 by its shape, and the systems of fig. 14: what each saves against SinglePool in the hours of the day, "
        "in per cent, and the requests in time. Published: DynamoLLM saves at the peak and in the valley.",
        ("", *(head for hour in HOURS for head in (f"{hour}:00", "attainment"))),
        tuple(rows),
    )


_DAY = "the day's saving, 11 servers"

DYNAMOLLM_DAY = Experiment(
    name="dynamollm-day",
    quick=False,
    title="DynamoLLM, fig. 14 and 15: a working day of the Conversation service on 11 servers",
    headlines={_DAY: "energy saved over a day"},
    scenario="dynamollm-70b-h100",
    stands_in=(
        "The generated week's Tuesday in the place of the paper's day; the hours around 2:00, 8:00, 14:00 and 20:00 "
        "stand for it. Each begins with the fleet for its own load, as a history of weeks would have it; forecasts "
        "then go by the last half hour, since no week came before. The rate is about the most that 11 servers hold in "
        "one pool at the peak."
    ),
    runs=(
        *(CONVERSATION.run(policy, "tuesday", hour) for hour in HOURS for policy in (ONE_POOL, OWN)),
        *(CONVERSATION.run(system, "tuesday", hour, _CROWDED) for hour in HOURS for system in _SYSTEMS),
        *(CONVERSATION.run(f"{OWN} {{{_LESS}}}", "tuesday", hour, name=_SLOWER) for hour in _LESS_HOURS),
    ),
    table=of_systems,
    rows=(
        Row(_DAY, "fig. 15", "%", 42.0, in_all(CONVERSATION, [("tuesday", hour, 1.0) for hour in HOURS]), _EMPTY_HOURS),
    ),
)
