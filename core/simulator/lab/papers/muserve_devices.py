"""mu-Serve by number of devices, by rate and by length of answers (USENIX ATC 2024, 4.2 and 4.4)."""

from __future__ import annotations

from dataclasses import dataclass

from core.simulator.lab.experiment import Experiment, Row, Run
from core.simulator.lab.measures import Quotient, Results, Steps, change, figure, saving, times
from core.simulator.lab.papers.muserve import SERVICES, answers, with_aging
from core.simulator.lab.why import Claim, why

_DEVICES = (6, 8, 10, 12, 14, 16)
_SCALING = "alpaserve_scaling"
_POLICIES = {
    "alpaserve": "alpaserve",
    _SCALING: with_aging("alpaserve_scaling", "clock_floor_mhz: 200"),
    "muserve": with_aging("muserve", "clock_floor_mhz: 200"),
}
_SHAPE_DEVICES = 8
_RATES = (0.25, 0.5, 1.0)  # of the load
_ANSWERS = (16, 4, 1)  # the scenario's are divided by
_KEPT = 0.99
_STRETCH = tuple(f"services.{name}.workload.duration_s=600" for name in SERVICES)


def _settings(devices: int) -> tuple[str, ...]:
    return f"sites.site.gpus={{V100-16GB: {devices}}}", *_STRETCH


def _at(policy: str, devices: int, share: float = 1.0, parts: int = 1) -> str:
    words = [f"{policy}, {devices} devices"]
    words += [f"{share:g} of the rate"] if share != 1.0 else []
    words += [f"answers a {parts}th as long"] if parts != 1 else []
    return ", ".join(words)


def _run(policy: str, devices: int, share: float = 1.0, parts: int = 1) -> Run:
    rates = tuple(f"services.{name}.workload.rate_scale={share:g}" for name in SERVICES)
    settings = (*_settings(devices), *(rates if share != 1.0 else ()), *(answers(parts) if parts != 1 else ()))
    return Run(_at(policy, devices, share, parts), _POLICIES[policy], settings)


@dataclass(frozen=True, slots=True)
class FewestDevices:
    """Finds the fewest devices tried with which a policy has 99 % of the requests in time; None: with none of them."""

    policy: str

    def __call__(self, results: Results) -> float | None:
        kept = [n for n in _DEVICES if results[_at(self.policy, n)]["slo_attainment"] >= _KEPT]
        return float(min(kept)) if kept else None


_CLOCKS_AND_GPUS = why(
    "the paper does not tell the SLO scale of these, here it is 5. Clocks alone save {six}, {ten} and {fourteen} times "
    "with 6, 10 and 14 devices. With 14 mu-Serve's placement has fewer GPU-hours as well, {own} for AlpaServe's "
    "{base}; with 6 it has {own_6} for {base_6}.",
    own_6=Claim(figure(_at("muserve", 6), "gpu_hours"), 1.07),
    base_6=Claim(figure(_at("alpaserve", 6), "gpu_hours"), 1.05),
    own=Claim(figure(_at("muserve", 14), "gpu_hours"), 1.8),
    base=Claim(figure(_at("alpaserve", 14), "gpu_hours"), 2.4),
    **{
        name: Claim(times(_at(_SCALING, n), _at("alpaserve", n)), written)
        for name, n, written in (("six", 6, 1.40), ("ten", 10, 1.61), ("fourteen", 14, 1.68))
    },
)
_ENOUGH = why(
    "the search for a placement ends when 99 % are in time, and with 16 devices it is that of 14: AlpaServe has {more} "
    "and {base} GPU-hours, mu-Serve {own_more} and {own}.",
    **{
        name: Claim(figure(_at(policy, n), "gpu_hours"), written)
        for name, policy, n, written in (
            ("more", "alpaserve", 16, 2.4),
            ("base", "alpaserve", 14, 2.4),
            ("own_more", "muserve", 16, 1.8),
            ("own", "muserve", 14, 1.8),
        )
    },
)
_SIX_DO = why(
    "six devices, the fewest that hold the models, are enough for this load: {kept} are in time.",
    kept=Claim(figure(_at("alpaserve", 6), "slo_attainment", scale=100.0), 100.0, "%", by=1.0),
)
_LATE = why(
    "with no number of devices: clocks go down until some are late, and {six} and {fourteen} are in time under "
    "mu-Serve with 6 and 14 devices, {scaling} and {scaling_fourteen} with clock scaling alone.",
    **{
        name: Claim(figure(_at(policy, n), "slo_attainment", scale=100.0), written, "%", by=1.0)
        for name, policy, n, written in (
            ("six", "muserve", 6, 97.9),
            ("fourteen", "muserve", 14, 97.3),
            ("scaling", _SCALING, 6, 97.6),
            ("scaling_fourteen", _SCALING, 14, 97.8),
        )
    },
)
_UP_TO_LIMITS = why(
    "both let the slowest requests take as long as the objectives of 72 and 83 s allow: {own} and {other} at P99.",
    own=Claim(figure(_at("muserve", 8), "e2e_s", "p99"), 81.3, "s"),
    other=Claim(figure(_at(_SCALING, 8), "e2e_s", "p99"), 85.3, "s"),
)
_FEWER_GPUS = why(
    "the placement goes with the rate: a quarter of it gets {quarter} GPU-hours, half of it {half} and all of it "
    "{whole}. Clocks are {slow}, {slower} and {fast}.",
    **{
        name: Claim(figure(_at("muserve", _SHAPE_DEVICES, share), what), written, unit)
        for name, share, what, written, unit in (
            ("quarter", 0.25, "gpu_hours", 0.505, ""),
            ("half", 0.5, "gpu_hours", 1.13, ""),
            ("whole", 1.0, "gpu_hours", 1.27, ""),
            ("slow", 0.25, "clock_mhz", 430.0, "MHz"),
            ("slower", 0.5, "clock_mhz", 403.0, "MHz"),
            ("fast", 1.0, "clock_mhz", 494.0, "MHz"),
        )
    },
)


def _watts(policy: str, parts: int) -> Quotient:
    run = _at(policy, _SHAPE_DEVICES, 1.0, parts)
    return Quotient(figure(run, "energy_wh"), figure(run, "gpu_hours"))


_IDLE_STAYS = why(
    "GPUs that generate little draw little: {base} at AlpaServe's clock and {own} at mu-Serve's with answers a 16th as "
    "long, {base_long} and {own_long} with the longest, for which mu-Serve has {fewer} GPU-hours and AlpaServe {gpus}.",
    base=Claim(_watts("alpaserve", 16), 78.4, "W a GPU"),
    own=Claim(_watts("muserve", 16), 51.1, "W"),
    base_long=Claim(_watts("alpaserve", 1), 116.0, "W"),
    own_long=Claim(_watts("muserve", 1), 73.2, "W"),
    fewer=Claim(figure(_at("muserve", _SHAPE_DEVICES), "gpu_hours"), 1.17),
    gpus=Claim(figure(_at("alpaserve", _SHAPE_DEVICES), "gpu_hours"), 1.4),
)
_NAMES = {"muserve": "mu-Serve", _SCALING: "clock scaling alone", "alpaserve": "AlpaServe"}

MUSERVE_DEVICES = Experiment(
    name="muserve-devices",
    title="mu-Serve, fig. 7, 8, 13 and 14: 6 to 16 V100, rates and lengths of answers",
    quick=False,
    scenario="muserve-v100",
    stands_in=(
        "Ten minutes of the load of the experiment muserve. Fewer than six V100 do not hold its models; the paper's "
        "fit on four, and on eight when there are two of each. The text has ranges: their ends stand at the fewest and "
        "the most devices of them. GPUs without a model draw nothing here. Fig. 13 and 14 (b) by their shape, on eight "
        "V100; fig. 14 (a) is of models that are not among the engine model's."
    ),
    runs=(
        *(_run(policy, n) for n in _DEVICES for policy in _POLICIES),
        *(_run("muserve", _SHAPE_DEVICES, share) for share in _RATES[:-1]),
        *(_run(policy, _SHAPE_DEVICES, 1.0, parts) for parts in _ANSWERS[:-1] for policy in ("alpaserve", "muserve")),
    ),
    rows=(
        *(
            Row(
                f"power saving of {_NAMES[policy]}, {n} devices",
                "fig. 7",
                "times",
                published,
                times(_at(policy, n), _at("alpaserve", n)),
                _CLOCKS_AND_GPUS,
            )
            for policy, n, published in (
                ("muserve", 6, 1.23),
                ("muserve", 8, 1.39),
                ("muserve", 10, 1.75),
                ("muserve", 14, 2.0),
                (_SCALING, 10, 1.44),
                (_SCALING, 14, 1.64),
            )
        ),
        Row(
            "mu-Serve's power saving grows with devices, steps that do",
            "fig. 7",
            "%",
            100.0,
            Steps(tuple(saving(_at("muserve", n), _at("alpaserve", n)) for n in _DEVICES)),
            _ENOUGH,
        ),
        *(
            Row(
                f"fewest devices with 99 % in time, {_NAMES[policy]}",
                "fig. 8",
                "",
                published,
                FewestDevices(policy),
                _SIX_DO if policy == "alpaserve" else _LATE,
            )
            for policy, published in (("alpaserve", 8.0), (_SCALING, 6.0), ("muserve", 6.0))
        ),
        Row(
            "mu-Serve's P99 latency against clock scaling alone, 8 devices",
            "fig. 8",
            "%",
            5.0,
            change(_at("muserve", 8), _at(_SCALING, 8), "e2e_s", "p99"),
            _UP_TO_LIMITS,
        ),
        Row(
            "its mean clock rises with the rate, steps that do",
            "fig. 13",
            "%",
            100.0,
            Steps(tuple(figure(_at("muserve", _SHAPE_DEVICES, share), "clock_mhz") for share in _RATES)),
            _FEWER_GPUS,
        ),
        Row(
            "its power saving falls as answers grow, steps that do",
            "fig. 14",
            "%",
            100.0,
            Steps(
                tuple(
                    saving(*(_at(policy, _SHAPE_DEVICES, 1.0, parts) for policy in ("muserve", "alpaserve")))
                    for parts in _ANSWERS
                ),
                down=True,
            ),
            _IDLE_STAYS,
        ),
    ),
    listed=tuple(_at(policy, n) for n in _DEVICES for policy in _POLICIES),
)
