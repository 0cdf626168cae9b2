"""All experiments by name; `common` is ours."""

from __future__ import annotations

from collections.abc import Mapping

from core.simulator.lab.ablation import ABLATION
from core.simulator.lab.decomposition import energy_by_kind
from core.simulator.lab.experiment import CONVERSATION, Experiment, Run, plain
from core.simulator.lab.papers.biscale import BISCALE
from core.simulator.lab.papers.dynamollm import DYNAMOLLM, DYNAMOLLM_LOADS
from core.simulator.lab.papers.dynamollm_day import DYNAMOLLM_DAY
from core.simulator.lab.papers.dynamollm_pools import DYNAMOLLM_POOLS
from core.simulator.lab.papers.dynamollm_week import DYNAMOLLM_WEEK
from core.simulator.lab.papers.dynaserve import DYNASERVE
from core.simulator.lab.papers.dynaserve_batches import DYNASERVE_BATCHES
from core.simulator.lab.papers.dynaserve_draws import DYNASERVE_PREDICTIONS, DYNASERVE_REPLAY
from core.simulator.lab.papers.dynaserve_models import DYNASERVE_MODELS
from core.simulator.lab.papers.freesh import FREESH, FREESH_DAY
from core.simulator.lab.papers.freesh_episodes import FREESH_EPISODES
from core.simulator.lab.papers.freesh_load import FREESH_LOAD
from core.simulator.lab.papers.freesh_miad import FREESH_MIAD
from core.simulator.lab.papers.freesh_orders import FREESH_ORDERS
from core.simulator.lab.papers.freesh_sensitivity import FREESH_SENSITIVITY
from core.simulator.lab.papers.muserve import MUSERVE, MUSERVE_ORDER
from core.simulator.lab.papers.muserve_devices import MUSERVE_DEVICES
from core.simulator.lab.papers.muserve_predictor import MUSERVE_PREDICTOR
from core.simulator.lab.papers.throttllem import THROTTLLEM
from core.simulator.lab.papers.throttllem_engines import THROTTLLEM_ENGINES
from core.simulator.lab.papers.throttllem_loads import THROTTLLEM_LOADS
from core.simulator.lab.papers.voltanallm import VOLTANALLM
from core.simulator.lab.predictors import PREDICTORS, PREDICTORS_ORDER

# Means may take so much of the limits, in place of 90 % and, of a TTFT limit, 45 %.
_THREE_QUARTERS = "plan_ttft_share: 0.375, plan_tpot_share: 0.75, clock_ttft_share: 0.375, clock_tpot_share: 0.75"
# FREESH's clocks fall to the GPU's lowest, about as far as the paper's do.
_AS_FAR = tuple(Run(name, f"{name} {{clock_floor: gpu}}") for name in ("min_energy", "freesh"))

COMMON = Experiment(
    name="common",
    quick=False,
    title="All policies on one scenario: the conversation hour on 12 x 8 H100",
    scenario="dynamollm-70b-h100",
    trace=CONVERSATION,
    runs=(
        *plain("single_pool", "freesh_baseline"),
        *_AS_FAR[:1],
        *plain("threshold", "dynamollm"),
        Run("dynamollm, 75 % of limits", f"dynamollm {{{_THREE_QUARTERS}}}"),
        *plain("greenserve"),
        Run("greenserve, 40 % of classes wrong", "greenserve", ("length_predictor.misclass=0.4",)),
    ),
    bound=True,
    table=energy_by_kind,
    decomposed="greenserve",
)

COMMON_SITES = Experiment(
    name="common-sites",
    quick=False,
    title="Policies of several sites on one scenario: the three-site day with carbon",
    scenario="three-sites-carbon",
    stands_in=(
        "FREESH's testbed and day at six times the rate, and with limits that its GPUs can keep: TTFT and TBT of table "
        "7."
    ),
    runs=(*plain("freesh_baseline"), *_AS_FAR, *plain("greenserve")),
)

_ALL = (
    *(DYNAMOLLM, DYNAMOLLM_LOADS, DYNAMOLLM_POOLS, DYNAMOLLM_DAY, DYNAMOLLM_WEEK),
    *(FREESH, FREESH_EPISODES, FREESH_LOAD, FREESH_SENSITIVITY, FREESH_DAY, FREESH_ORDERS, FREESH_MIAD),
    *(THROTTLLEM, THROTTLLEM_ENGINES, THROTTLLEM_LOADS),
    *(MUSERVE, MUSERVE_DEVICES, MUSERVE_ORDER, MUSERVE_PREDICTOR),
    *(DYNASERVE, DYNASERVE_MODELS, DYNASERVE_BATCHES, DYNASERVE_PREDICTIONS, DYNASERVE_REPLAY),
    *(VOLTANALLM, BISCALE),
    *(COMMON, ABLATION, COMMON_SITES, PREDICTORS, PREDICTORS_ORDER),
)
EXPERIMENTS: Mapping[str, Experiment] = {own.name: own for own in _ALL}
