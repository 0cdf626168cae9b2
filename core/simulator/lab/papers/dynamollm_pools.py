"""DynamoLLM with other numbers of pools (V-C, fig. 13) and with looser SLOs (III-A), at the medium load."""

from __future__ import annotations

import json
from collections.abc import Sequence

from core.policy.dynamo_classes import FACTORS, INPUTS, TBT_S, request_classes
from core.simulator.lab.experiment import Experiment, Run, Table
from core.simulator.lab.measures import Results
from core.simulator.lab.papers.dynamollm import poisson

_CUTS = {  # pools: where prompts are cut, where answers are
    9: ((256, 1024), (100, 350)),
    2: ((1024,), ()),
    4: ((1024,), (350,)),
    12: ((256, 1024, 2048), (100, 350)),
    16: ((256, 1024, 2048), (100, 200, 350)),
}
_SLOS = tuple(int(factor) for factor in FACTORS[1:])


def _bounds(cuts: Sequence[int]) -> list[tuple[int, int | None]]:
    ends: list[int | None] = [*cuts, None]
    return list(zip((0, *cuts), ends, strict=True))


def _class(
    name: str, prompt: tuple[int, int | None], output: tuple[int, int | None], scale: float
) -> dict[str, object]:
    """Returns a class of a scenario. It has the strictest limits of the requests that table IV knows in it."""
    ttft_s = next(limit_s for _, _, below, limit_s in INPUTS if below is None or prompt[0] < below)
    ends = {"input_max": prompt[1], "output_max": output[1]}
    return {
        **{"name": name, "input_min": prompt[0], "output_min": output[0]},
        **{key: tokens for key, tokens in ends.items() if tokens is not None},
        "slo": {"ttft_s": scale * ttft_s, "tpot_s": scale * TBT_S},
    }


def _of_pools(pools: int) -> str:
    """Returns the setting of a partition, which plans and routing go by; requests are judged by table IV."""
    prompts, outputs = map(_bounds, _CUTS[pools])
    cells = [(f"P{i}O{o}", prompt, out) for i, prompt in enumerate(prompts) for o, out in enumerate(outputs)]
    return f"partitions.pools={json.dumps([_class(*cell, 1.0) for cell in cells])}"


def _judged_at(factor: int) -> tuple[str, str]:
    """Returns the settings by which requests are judged at a factor, and policies have table IV to begin with."""
    of_each = [
        [
            _class(own.name, (own.input_min, own.input_max), (own.output_min, own.output_max), scale)
            for own in request_classes()
        ]
        for scale in (factor / FACTORS[0], 1.0)
    ]
    judged, strict = map(json.dumps, of_each)
    return f"classes={judged}", f"partitions.strict={strict}"


def _pools_label(pools: int) -> str:
    return f"{pools} pools"


def _slo(factor: int) -> str:
    return f"9 pools, SLO {factor} times"


def by_pools(results: Results) -> Table:
    """Lists energy and TTFT with each number of pools, against nine."""
    nine, rows = results[_pools_label(9)], []
    for label in map(_pools_label, _CUTS):
        own = results[label]
        rows.append(
            (
                label,
                f"{own['energy_wh'] / nine['energy_wh']:.3f}",
                f"{own['ttft_s']['mean'] / nine['ttft_s']['mean']:.2f}",
                f"{own['ttft_s']['p99'] / nine['ttft_s']['p99']:.2f}",
                f"{own['slo_attainment']:.3f}",
            )
        )
    return Table(
        "Fig. 13 by its shape, against nine pools: published, more energy with 12 and 16, of GPUs that stand idle, and "
        "with 2 and 4, which tune less finely; shorter TTFT with moderately more pools.",
        ("", "energy", "mean TTFT", "P99 TTFT", "attainment"),
        tuple(rows),
    )


DYNAMOLLM_POOLS = Experiment(
    name="dynamollm-pools",
    quick=False,
    title="DynamoLLM, fig. 13: other numbers of pools, and SLOs of 10 and 20 times a request by itself",
    scenario="dynamollm-70b-h100",
    stands_in=(
        "The medium load of fig. 12 for half an hour. The paper does not say where it cuts: 2 pools part prompts "
        "at 1,024 tokens, 4 answers at 350 as well, 12 with prompts cut at 2,048 beside table IV's nine, 16 with "
        "answers cut at 200 too. A pool keeps the strictest TTFT of table IV in it. Requests are judged by table IV, "
        "those of looser SLOs by limits that are as much looser; III-A has no energy of them."
    ),
    runs=(
        *(
            Run(_pools_label(pools), "dynamollm {partition: pools}", poisson("medium", _of_pools(pools)))
            for pools in _CUTS
        ),
        *(
            Run(
                _slo(factor),
                f"dynamollm {{partition: strict, slo_factor: {factor}}}",
                poisson("medium", *_judged_at(factor)),
            )
            for factor in _SLOS
        ),
        Run("single_pool", "single_pool", poisson("medium")),
    ),
    table=by_pools,
)
