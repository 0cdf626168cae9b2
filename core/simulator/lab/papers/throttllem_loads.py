"""throttLL'eM at rising load (HPCA 2025, V-E and V-F2, fig. 11 and 13): what clocks, sizes and latencies do.

Fig. 11 follows these along the hour, and 13 over steady loads. The text has their shape: clocks are low while the
engine has little to do and rise near its largest load, small engines serve low loads, and P99 of E2E is near its limit
at every load.
"""

from __future__ import annotations

from core.simulator.lab.experiment import Experiment, Row, Run, Table
from core.simulator.lab.measures import Results, figure
from core.simulator.lab.papers.throttllem import EXACT, ONE, SCALES
from core.simulator.lab.why import Claim, why

_LARGEST_RPS, _LIMIT_S = 7.5, 31.3  # of TP4 (table II)
_SHARES = (10, 25, 50, 75, 100)  # of the largest load, in per cent
_RUN_S = 900
_POLICIES = {
    "triton": (f"triton {{{ONE}}}", ()),
    "autoscaling": (f"triton {{{SCALES}, {ONE}}}", ()),
    "both, exact": ("throttllem {predictor_error: 0}", EXACT),
    "both, 30 %": ("throttllem", ()),
}


def _label(name: str, share: int) -> str:
    return f"{name}, {share} % of the load"


def _steady(share: int) -> tuple[str, ...]:
    rps = _LARGEST_RPS * share / 100.0
    return "workload.rate_curve=null", f"workload.rate_rps={rps:g}", f"workload.duration_s={_RUN_S}"


def _run(name: str, share: int) -> Run:
    policy, predicted = _POLICIES[name]
    return Run(_label(name, share), policy, (*_steady(share), *predicted))


_LEARNED = Run(
    _label("both, exact, speeds learned", 100),
    "throttllem {predictor_error: 0, tuning: {throttle: {ips: trees}}}",
    (*_steady(100), *EXACT),
)


def by_load(results: Results) -> Table:
    """Lists what each policy comes to at each load."""
    rows = []
    for share in _SHARES:
        for name in _POLICIES:
            own = results[_label(name, share)]
            hours = own["simulated_s"] / 3600.0
            rows.append(
                (
                    f"{share} %",
                    name,
                    f"{own['energy_wh'] / hours:,.0f}",
                    f"{own['gpu_hours'] / hours:.1f}",
                    f"{own['clock_mhz']:,.0f}",
                    f"{own['e2e_s']['p99']:.1f}",
                    f"{own['slo_attainment']:.3f}",
                )
            )
    return Table(
        "Fig. 11 and 13 by their shape: power, GPUs and clocks in the mean of 15 minutes at a steady load, as shares "
        "of 7.5 requests/s.",
        ("load", "policy", "W", "GPUs", "MHz", "E2E p99 s", "attainment"),
        tuple(rows),
    )


_FAR = why(
    "clocks bring requests near their limit at every load: E2E's P99 is {triton} under Triton at all of the load, and "
    "with predictions 30 % off {low} at a tenth, {middle} at half and {high} at all of it. Exact ones, which are not "
    "raised, leave no slack when the engine is full: {exact}, and {kept} in time; {learned} with speeds learned as "
    "the paper's are, to which a prompt is one more row of the batch.",
    triton=Claim(figure(_label("triton", 100), "e2e_s", "p99"), 26.2, "s"),
    low=Claim(figure(_label("both, 30 %", 10), "e2e_s", "p99"), 28.0, "s"),
    middle=Claim(figure(_label("both, 30 %", 50), "e2e_s", "p99"), 28.0, "s"),
    high=Claim(figure(_label("both, 30 %", 100), "e2e_s", "p99"), 31.5, "s"),
    exact=Claim(figure(_label("both, exact", 100), "e2e_s", "p99"), 54.0, "s"),
    kept=Claim(figure(_label("both, exact", 100), "slo_attainment", scale=100.0), 40.8, "%"),
    learned=Claim(figure(_LEARNED.label, "slo_attainment", scale=100.0), 94.8, "%", by=1.0),
)

THROTTLLEM_LOADS = Experiment(
    name="throttllem-loads",
    title="throttLL'eM, fig. 11 and 13: Llama2-13B on A100 40 GB under rising load",
    scenario="throttllem-13b-a100",
    stands_in="Steady loads of 15 minutes, arrivals drawn. The text has the shape of both figures, and one level.",
    runs=(*(_run(name, share) for share in _SHARES for name in _POLICIES), _LEARNED),
    rows=tuple(
        Row(
            f"P99 of E2E at {share} % of the load, {name}",
            "fig. 13a",
            "s",
            _LIMIT_S,
            figure(_label(name, share), "e2e_s", "p99"),
            _FAR,
        )
        for share in (10, 50, 100)
        for name in ("both, exact", "both, 30 %")
    ),
    table=by_load,
)
