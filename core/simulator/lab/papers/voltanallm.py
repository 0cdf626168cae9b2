"""VoltanaLLM (arXiv 2509.04827): Llama 3.1 8B on four A100, two prefill and two decode, clocks by the next iteration.

The paper saves up to 36.3 % of the energy against a static top clock. Its code (v0.1) has the limits, 800 ms to the
first token and 50 ms between tokens, and the two clocks, 1005 and 1410 MHz.
"""

from __future__ import annotations

from core.simulator.lab.experiment import Experiment, Row, Run, Table
from core.simulator.lab.measures import Results, figure, saving
from core.simulator.lab.why import Claim, why

_FLEET = ("fleet.model=Llama3-8B", "fleet.count=4", "workload.prompt_tokens=250", "workload.output_tokens=230")
_LIMITS = ("slo={ttft_s: 0.8, tpot_s: 0.05}",)
_RATES = (10, 25, 40)
_TWO_EACH = "split: {by_rates: false, first_share: 0.5}"
_CLOCKS = "clock_floor_mhz: 1005"
_POLICIES = {
    "top clock": f"voltanallm {{clock: fixed, route: least_loaded, tuning: {{{_TWO_EACH}}}}}",
    "clocks alone": f"voltanallm {{{_CLOCKS}, route: least_loaded, tuning: {{{_TWO_EACH}}}}}",
    "voltanallm": f"voltanallm {{{_CLOCKS}, tuning: {{{_TWO_EACH}}}}}",
    "31 clocks, ahead": f"voltanallm {{clock: deadline, tuning: {{{_TWO_EACH}, profile: {{step_mhz: 15}}}}}}",
}


def _label(name: str, rate: int) -> str:
    return f"{name}, {rate}/s"


def _run(name: str, rate: int) -> Run:
    load = (f"workload.rate_rps={rate}", "workload.duration_s=120")
    return Run(_label(name, rate), _POLICIES[name], (*_FLEET, *_LIMITS, *load))


def by_rate(results: Results) -> Table:
    """Lists energy, by kind of work, and who is in time at each rate."""
    rows = []
    for rate in _RATES:
        for name in _POLICIES:
            own = results[_label(name, rate)]
            by = own["energy_wh_by"]
            rows.append(
                (
                    f"{rate}/s",
                    name,
                    *(f"{value:,.1f}" for value in (own["energy_wh"], by["prefill"], by["decode"], by["idle"])),
                    f"{own['clock_mhz']:,.0f}",
                    f"{100.0 * own['slo_attainment']:.2f} %",
                )
            )
    return Table(
        "Energy in Wh, of 120 s at a steady rate.",
        ("rate", "policy", "all", "prefill", "decode", "idle", "MHz", "in time"),
        tuple(rows),
    )


_TOGETHER = why(
    "answers that go where they add least energy leave an instance idle at a low rate: {together} in all, and {apart} "
    "with clocks alone.",
    together=Claim(figure(_label("voltanallm", 10), "energy_wh"), 15.6, "Wh"),
    apart=Claim(figure(_label("clocks alone", 10), "energy_wh"), 21.6, "Wh"),
)

VOLTANALLM = Experiment(
    name="voltanallm",
    title="VoltanaLLM, section 5: Llama 3.1 8B on four A100, two for prefill and two for decode",
    scenario="dynaserve-shapes",
    stands_in=(
        "Llama 3 8B, Poisson arrivals of 250 prompt tokens (ShareGPT's mean, as the paper's code has it) and 230 of "
        "answer, vLLM's engine in SGLang's place."
    ),
    runs=tuple(_run(name, rate) for rate in _RATES for name in _POLICIES),
    rows=(
        *(
            Row(
                f"energy that is saved at {rate}/s",
                "abstract, at most",
                "%",
                36.3,
                saving(_label("voltanallm", rate), _label("top clock", rate)),
                _TOGETHER,
            )
            for rate in _RATES
        ),
    ),
    table=by_rate,
)
