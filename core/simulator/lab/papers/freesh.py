"""FREESH (arXiv 2511.00807): the hour of section 4 and fig. 6, and the day of fig. 12."""

from __future__ import annotations

from core.simulator.lab.experiment import Experiment, Row, Run, Table
from core.simulator.lab.measures import Results, change, figure, saving
from core.simulator.lab.why import Claim, why

NOON = (
    "workload.duration_s=3600",
    "workload.start_hour=12",
    "start=2026-01-05T12:00:00+00:00",
)
# Of time slots 24 and 25 of the day in the paper's repository (AndrewFangZequan/LLM_Serving_FREESH, MIT): 40 requests/s
# in the mean. The hour from noon has 8.2.
FORTY = "workload.rate_scale=4.9"
_ONE_POOL = "partitions.all=[{name: all, slo: {ttft_s: 0.6, tpot_s: 0.15, e2e_s: 30}}]"  # for Baseline alone
AT_ONCE = "overheads={vm_s: 0, environment_s: 0, download_s: 0, engine_s: 0, weights_s: 0, sync_s: 0}"
_NO_MIAD = "freesh {clock: fixed}"
# Clocks fall as far as the paper's; for `freesh` the scenario says so.
AS_FAR = {"min_energy": "min_energy {clock_floor: gpu}", "freesh": "freesh"}
_NO_E2E = tuple(
    f"{classes}.{n}.slo={{ttft_s: {ttft_s}, tpot_s: 0.15}}"
    for classes in ("classes", "partitions.medians")
    for n, ttft_s in enumerate((0.3, 0.3, 0.6, 0.6))
)
_POOLS, _POOL = "baseline, pools of partition 1", "baseline, one pool"
_FOUR, _AT_40 = " with the pools of partition 1", ", 40/s"

_BASELINES = why(
    "the paper does not say what its Baseline runs. With the pools of partition 1 ours has {pools} GPU-hours, in one "
    "pool for all {pool}, and FREESH, whose four pools each need an instance at least, {plan}. At the 40 requests/s "
    "that the paper's repository predicts, in place of 8, FREESH saves {pools_40} against the one and {pool_40} "
    "against the other.",
    "4.1",
    pools=Claim(figure(_POOLS, "gpu_hours"), 18.1),
    pool=Claim(figure(_POOL, "gpu_hours"), 8.1),
    plan=Claim(figure("freesh", "gpu_hours"), 12.6),
    pools_40=Claim(saving(f"freesh{_AT_40}", _POOLS + _AT_40), 33.1, "%", by=3.0),
    pool_40=Claim(saving(f"freesh{_AT_40}", _POOL + _AT_40), 15.2, "%", by=3.0),
)
_NOTHING_FASTER = why(
    "our Baseline has {base} GPU-hours at the top clock, where its first token comes after {ttft} at P99 and nothing "
    "waits, and FREESH's plan has {plan}: without MIAD its mean E2E is {slower} longer already. Changes of the plan "
    "restart instances, which the paper's do in 35 ms: where they take no time P99 of TTFT is {free}, and {own} as "
    "they are.",
    "table 6",
    base=Claim(figure(_POOLS, "gpu_hours"), 18.1),
    ttft=Claim(figure(_POOLS, "ttft_s", "p99"), 0.103, "s"),
    plan=Claim(figure("freesh", "gpu_hours"), 12.6),
    slower=Claim(change("without MIAD", _POOLS, "e2e_s", "mean"), 64.0, "%"),
    free=Claim(figure("changes at once", "ttft_s", "p99"), 0.467, "s"),
    own=Claim(figure("freesh", "ttft_s", "p99"), 0.483, "s"),
)
_NO_LIMITS, _NEITHER = "without limits on E2E", "without MIAD and limits on E2E"
_E2E_LIMITS = why(
    "the limits on E2E, 7 to 30 s, are means of the paper's engine (D.2); here {kept} of the requests are within all "
    "of theirs, which calls for the top clock. Without them energy without MIAD is {energy} more, P99 TTFT {ttft}, "
    "P99 TBT {tbt} and P50 E2E {e2e} less.",
    kept=Claim(figure("freesh", "slo_attainment", scale=100.0), 49.1, "%"),
    energy=Claim(change(_NEITHER, _NO_LIMITS, "energy_wh"), 114.0, "%"),
    ttft=Claim(saving(_NEITHER, _NO_LIMITS, "ttft_s", "p99"), 69.5, "%"),
    tbt=Claim(saving(_NEITHER, _NO_LIMITS, "tpot_s", "p99"), 47.4, "%"),
    e2e=Claim(saving(_NEITHER, _NO_LIMITS, "e2e_s", "p50"), 45.4, "%"),
)
_PARTITIONS = why(
    "how much worse the worse partition is depends on the lengths, and ours are made so that partition 2 halves them. "
    "At 40 requests/s it takes {energy} more energy and {carbon} more carbon.",
    energy=Claim(change(f"partition 1{_AT_40}", f"freesh{_AT_40}", "energy_wh"), 21.0, "%", by=3.0),
    carbon=Claim(change(f"partition 1{_AT_40}", f"freesh{_AT_40}", "carbon_g"), 29.4, "%", by=3.0),
)
STANDS_IN = (
    "The paper's testbed of three sites with 24 A100 and 6 H100, its two partitions and its thresholds. Its traffic "
    "is not public: DynamoLLM's Conversation shape at 5 requests/s in the mean of the week and lengths with partition "
    "2's medians take its place, and the demo's synthetic carbon day that of PJM's rates. Plans know the intensities "
    "of their half hour."
)

FREESH = Experiment(
    name="freesh",
    title="FREESH, fig. 6: Llama3-70B on three sites, an hour from noon",
    scenario="freesh-three-sites",
    stands_in=(
        f"{STANDS_IN} Baseline, which has no classifier, is run in two ways: with the pools of partition 1, for the "
        "reservation that the paper speaks of, and in one pool for all requests."
    ),
    runs=(
        Run(_POOLS, "freesh_baseline", NOON),
        Run(_POOL, "freesh_baseline", (*NOON, _ONE_POOL)),
        Run("freesh", "freesh", NOON),
        Run("without MIAD", _NO_MIAD, NOON),
        Run("changes at once", "freesh", (*NOON, AT_ONCE)),
        Run(_NO_LIMITS, "freesh", (*NOON, *_NO_E2E)),
        Run(_NEITHER, _NO_MIAD, (*NOON, *_NO_E2E)),
        Run("partition 1", "freesh {partition: default}", NOON),
        Run(_POOLS + _AT_40, "freesh_baseline", (*NOON, FORTY)),
        Run(_POOL + _AT_40, "freesh_baseline", (*NOON, FORTY, _ONE_POOL)),
        Run(f"freesh{_AT_40}", "freesh", (*NOON, FORTY)),
        Run(f"partition 1{_AT_40}", "freesh {partition: default}", (*NOON, FORTY)),
    ),
    headlines={
        f"FREESH's energy saving against Baseline{_FOUR}": "energy saved against Baseline in four pools",
        f"its carbon saving against Baseline{_FOUR}": "carbon saved against Baseline in four pools",
        "FREESH's energy saving against Baseline in one pool": "energy saved against Baseline in one pool",
    },
    rows=(
        *(
            Row(f"{whose}{words}{at}", "4.2", "%", published, saving(f"freesh{run}", base + run, name), _BASELINES)
            for at, run in (("", ""), (" at 40 requests/s", _AT_40))
            for words, base in ((_FOUR, _POOLS), (" in one pool", _POOL))
            for whose, published, name in (
                ("FREESH's energy saving against Baseline", 28.6, "energy_wh"),
                ("its carbon saving against Baseline", 45.45, "carbon_g"),
            )
        ),
        *(
            Row(label, "4.2", "%", published, change("freesh", _POOLS, *of), _NOTHING_FASTER)
            for label, published, *of in (
                ("its mean E2E against that of the pools of partition 1", -8.2, "e2e_s", "mean"),
                ("its P50 E2E", -16.41, "e2e_s", "p50"),
                ("its P50 TTFT", -18.86, "ttft_s", "p50"),
                ("its P99 TTFT", -22.77, "ttft_s", "p99"),
                ("its P50 TBT", -21.98, "tpot_s", "p50"),
                ("its P99 TBT", -13.25, "tpot_s", "p99"),
            )
        ),
        *(
            Row(f"{label} without MIAD", "4.3", "%", published, change("without MIAD", "freesh", *of), _E2E_LIMITS)
            for label, published, *of in (
                ("energy", 38.81, "energy_wh"),
                ("carbon", 39.61, "carbon_g"),
                ("P99 TTFT", -54.88, "ttft_s", "p99"),
                ("P99 TBT", -56.65, "tpot_s", "p99"),
                ("P50 E2E", -36.73, "e2e_s", "p50"),
            )
        ),
        *(
            Row(
                f"{label} with the other partition",
                "4.3",
                "%",
                published,
                change("partition 1", "freesh", *of),
                _PARTITIONS,
            )
            for label, published, *of in (
                ("energy", 33.32, "energy_wh"),
                ("carbon", 42.26, "carbon_g"),
                ("P99 E2E", 87.67, "e2e_s", "p99"),
                ("P99 TTFT", 43.86, "ttft_s", "p99"),
            )
        ),
    ),
)

_FROM_NINE = ("workload.duration_s=3600", "workload.start_hour=9", "start=2026-01-05T09:00:00+00:00")
_ROOM_AT_CLEAN_SITES = why(
    "it goes with the room that the clean sites have left: in the hour from nine {carbon} less carbon for {energy} "
    "more energy at this load, {carbon_5} for {energy_5} at five times, when they are full.",
    **{
        f"{name}{mark}": Claim(form(f"freesh, {span}", f"min_energy, {span}", what), written, "%", by=3.0)
        for span, mark, both in (("from nine", "", (29.8, -0.7)), ("from nine at 5 times", "_5", (23.0, 0.44)))
        for (name, form, what), written in zip(
            (("carbon", saving, "carbon_g"), ("energy", change, "energy_wh")), both, strict=True
        )
    },
)

_HOURS = (2, 8, 14, 20)


def _hour(hour: int) -> Run:
    span = ("workload.duration_s=3600", f"workload.start_hour={hour}", f"start=2026-01-05T{hour:02}:00:00+00:00")
    return Run(f"freesh, the hour from {hour}", "freesh", span)


def by_hour(results: Results) -> Table:
    """Lists the load and the GPUs of four hours of the day."""
    found = [(hour, results[_hour(hour).label]) for hour in _HOURS]
    return Table(
        "Fig. 9 by its shape, four hours of the day: published, GPUs follow the load.",
        ("from", "requests/s", "GPUs"),
        tuple((f"{hour}:00", f"{own['finished'] / 3600.0:.1f}", f"{own['gpu_hours']:.1f}") for hour, own in found),
    )


FREESH_DAY = Experiment(
    name="freesh-day",
    quick=False,
    title="FREESH, fig. 9 and 12: the day, carbon against energy as the objective",
    headlines={"FREESH's carbon saving against MinEnergy": "carbon saved against MinEnergy, over a day"},
    scenario="freesh-three-sites",
    stands_in=STANDS_IN,
    runs=(
        *(Run(name, policy) for name, policy in AS_FAR.items()),
        *(Run(f"{name}, from nine", policy, _FROM_NINE) for name, policy in AS_FAR.items()),
        *(Run(f"{name}, from nine at 5 times", policy, (*_FROM_NINE, FORTY)) for name, policy in AS_FAR.items()),
        *(_hour(hour) for hour in _HOURS),
    ),
    rows=(
        Row(
            "FREESH's carbon saving against MinEnergy",
            "A.1",
            "%",
            13.07,
            saving("freesh", "min_energy", "carbon_g"),
            _ROOM_AT_CLEAN_SITES,
        ),
        Row(
            "energy that it takes more",
            "A.1",
            "%",
            1.18,
            change("freesh", "min_energy", "energy_wh"),
            _ROOM_AT_CLEAN_SITES,
        ),
    ),
    listed=("min_energy", "freesh"),
    table=by_hour,
)
