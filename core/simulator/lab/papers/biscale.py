"""BiScale (arXiv 2602.18755): Llama 3.3 70B on 16 H100, prefill and decode apart, counts and clocks by what comes.

The paper saves 27 to 36 % of the energy of prefill and 44 to 48 % of that of decode against DistServe; its PlaceOnly,
without clocks, 20 to 31 %.
"""

from __future__ import annotations

from core.simulator.lab.experiment import Experiment, Row, Run, Table
from core.simulator.lab.measures import Measure, Results, figure, saving
from core.simulator.lab.why import Claim, why

_FLEET = ("fleet.model=Llama3-70B", "fleet.count=4", "fleet.tp=4", "workload.requests=4000", "overload=allow")
_HOUR = "the hour's rate"
_LOADS = {_HOUR: 1.0, "twice": 2.0}
_APART = "biscale {scale: static, clock: fixed}"
_POLICIES = {
    "apart, top clocks": _APART,
    "counts alone": "biscale {clock: fixed}",
    "clocks alone": "biscale {scale: static}",
    "biscale": "biscale",
    "greenserve": "greenserve",
    "greenserve, prefill apart": "greenserve {split: prompt, tuning: {split: {by_rates: true}}}",
}
SWITCHES_MS = (0, 10, 50, 100, 200)
_SWEPT = ("biscale", "greenserve")


def _label(name: str, load: str) -> str:
    return f"{name}, {load}"


def _at(name: str, switch_ms: int) -> str:
    return f"{name}, switches of {switch_ms} ms"


def _settings(load: str) -> tuple[str, ...]:
    return *_FLEET, f"workload.rate_scale={_LOADS[load]:g}"


def switched(switch_ms: int) -> tuple[str, ...]:
    """Returns the settings of a scenario in which a clock takes so long to come, whatever the GPU and their number."""
    gpus = ("H100-SXM-80GB", "A100-80GB")
    own = (f"overheads.clock_switch_s.{gpu}={switch_ms / 1000.0:g}" for gpu in gpus)
    return *own, "overheads.clock_set_s=0"


def by_switch(results: Results) -> Table:
    """Lists what each policy takes, the longer a clock takes to come."""
    rows = []
    for name in _SWEPT:
        for switch_ms in SWITCHES_MS:
            own = results[_at(name, switch_ms)]
            by = own["energy_wh_by"]
            rows.append(
                (
                    name,
                    f"{switch_ms} ms",
                    f"{own['energy_wh']:,.0f}",
                    f"{by['prefill']:,.0f}",
                    f"{by['decode']:,.0f}",
                    f"{own['ttft_s']['p99']:.2f}",
                    f"{100.0 * own['slo_attainment']:.2f} %",
                )
            )
    return Table(
        "What the time until a clock is there costs, at the hour's rate.",
        ("policy", "switch", "Wh", "of prefill", "of decode", "TTFT p99 s", "in time"),
        tuple(rows),
    )


def _saves(name: str, load: str, part: str | None = None) -> Measure:
    of, against = _label(name, load), _label("apart, top clocks", load)
    return saving(of, against) if part is None else saving(of, against, "energy_wh_by", part)


_RUNS = (
    *(Run(_label(name, load), policy, _settings(load)) for load in _LOADS for name, policy in _POLICIES.items()),
    *(Run(_at(name, ms), _POLICIES[name], (*_settings(_HOUR), *switched(ms))) for name in _SWEPT for ms in SWITCHES_MS),
)

_TOP, _OWN, _FEWER = (_label(name, _HOUR) for name in ("apart, top clocks", "biscale", "counts alone"))
_PREFILL = why(
    "a prompt is bound by computation, so that a lower clock takes longer at less power: {top} at the top clock, and "
    "{own} with clocks down to 800 MHz.",
    top=Claim(figure(_TOP, "energy_wh_by", "prefill"), 228.0, "Wh"),
    own=Claim(figure(_OWN, "energy_wh_by", "prefill"), 199.0, "Wh"),
)
_COUNTS = why(
    "the fleet has four instances, of which at least one does each part: {own} GPU-hours in place of {every}.",
    own=Claim(figure(_FEWER, "gpu_hours"), 2.28),
    every=Claim(figure(_TOP, "gpu_hours"), 3.22),
)

BISCALE = Experiment(
    name="biscale",
    title="BiScale, section 5: Llama 3.3 70B on 16 H100, prefill and decode apart",
    scenario="azure-conv-12xh100",
    stands_in=(
        "Llama 3 70B on four instances of TP4, requests like those of the conversation hour, 1 s to the first token "
        "and 100 ms between tokens: the paper's own limits and traces are not at hand. Energy is by kind of work: that "
        "of idle GPUs is in neither. The baseline has the same instances, shared out by what both parts sustain, at "
        "the top clock."
    ),
    runs=_RUNS,
    rows=(
        Row("energy of prefill that is saved", "abstract", "%", 39.0, _saves("biscale", _HOUR, "prefill"), _PREFILL),
        Row("energy of decode that is saved", "abstract", "%", 48.0, _saves("biscale", _HOUR, "decode")),
        Row("energy that counts alone save", "PlaceOnly, at most", "%", 31.0, _saves("counts alone", _HOUR), _COUNTS),
    ),
    listed=tuple(_label(name, load) for load in _LOADS for name in _POLICIES),
    table=by_switch,
)
