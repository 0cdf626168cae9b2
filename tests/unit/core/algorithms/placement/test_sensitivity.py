"""Sensitivity scores, clusters (mu-Serve's Algorithm 1) and stages."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.placement.operator_partitions import OperatorGroup, clusters, stages, weighted_mean
from core.algorithms.placement.sensitivity import Operator, OperatorKind, operators, profiled, sensitivity
from core.engine.engine_model import engine_model
from core.engine.iteration import Totals
from tests.unit.laws import examples

PREFILL = Totals.plain(2048, 0, 0)
DECODE = Totals(decodes=16, context_tokens=16 * 500)


def of_kind(found: tuple[Operator, ...], kind: OperatorKind) -> list[Operator]:
    return [operator for operator in found if operator.kind is kind]


def test_score_is_the_rise_at_half_the_clock_when_measured() -> None:
    assert sensitivity(2.0, 4.0) == 1.0  # all of it goes with the clock
    assert sensitivity(2.0, 2.5) == 0.25
    assert sensitivity(2.0, 2.0) == 0.0
    assert sensitivity(2.0, 1.99) == 0.0  # noise
    with pytest.raises(ValueError, match="longer than nothing"):
        sensitivity(0.0, 1.0)


def test_operator_has_the_score_of_its_latencies_when_profiled() -> None:
    assert profiled("a", OperatorKind.MLP, 1.0, 1.99, 10.0).sensitivity == pytest.approx(0.99)
    assert profiled("a", OperatorKind.MLP, 1.0, 2.0, 10.0).sensitivity == 1.0


@pytest.mark.parametrize("totals", [PREFILL, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize(
    "configuration",
    [("Llama2-70B", "A100-80GB", 4), ("Mixtral-8x7B", "A100-80GB", 2), ("Falcon-180B", "H100-SXM-80GB", 8)],
)
def test_operators_add_up_to_the_engine_model_when_summed(configuration: tuple[str, str, int], totals: Totals) -> None:
    instance = engine_model(*configuration)
    found = operators(instance, totals, kv_tokens=1000.0)
    host_s = instance.constants.host_s + instance.constants.seq_s * (totals.decodes + totals.prefills)
    for mhz, total_s in (
        (instance.gpu_params.f_max, sum(o.latency_s for o in found)),
        (instance.gpu_params.f_max / 2, sum(o.latency_s * (1 + o.sensitivity) for o in found)),
    ):
        modelled = instance.iteration_of(mhz, totals)
        if modelled.f_eff_mhz == mhz:
            assert total_s == pytest.approx(modelled.t_s - host_s, rel=0.05)
    m, k = instance.model_params, instance.constants
    memory = sum(operator.memory_bytes for operator in found)
    assert memory == pytest.approx(m.params * m.dtype_bytes + 1000 * k.kv_bytes, rel=1e-9)
    assert all(0.0 <= o.sensitivity <= 1.0 and o.latency_s > 0.0 for o in found)


def test_prefill_is_more_sensitive_than_decode_when_matrices_multiply() -> None:
    instance = engine_model("Llama2-70B", "A100-80GB", 4)
    prefill, decode = operators(instance, PREFILL), operators(instance, DECODE)
    for kind in (OperatorKind.QKV, OperatorKind.OUT, OperatorKind.MLP, OperatorKind.HEAD):
        if kind is not OperatorKind.HEAD:  # the head works on one row of a prefill
            assert of_kind(prefill, kind)[0].sensitivity > of_kind(decode, kind)[0].sensitivity
    assert of_kind(prefill, OperatorKind.MLP)[0].sensitivity > 0.7
    assert of_kind(decode, OperatorKind.MLP)[0].sensitivity < 0.5
    assert all(o.sensitivity == 0.0 for o in of_kind(prefill, OperatorKind.COLLECTIVE))
    assert len(of_kind(prefill, OperatorKind.COLLECTIVE)) == 2 * instance.model_params.layers


def test_there_are_no_collectives_when_one_gpu_does_it_and_experts_when_routed() -> None:
    alone = operators(engine_model("Llama3-8B", "A100-80GB", 1), DECODE)
    assert not of_kind(alone, OperatorKind.COLLECTIVE)
    assert len(alone) == 2 + 4 * 32
    mixture = operators(engine_model("Mixtral-8x7B", "A100-80GB", 2), DECODE)
    assert len(of_kind(mixture, OperatorKind.EXPERTS)) == 32
    assert not of_kind(mixture, OperatorKind.MLP)
    with pytest.raises(ValueError, match="at least one token"):
        operators(engine_model("Llama3-8B", "A100-80GB", 1), Totals())


# -- Algorithm 1 -----------------------------------------------------------------------------------


def op(score: float, latency_s: float = 1.0, memory_bytes: float = 1.0, name: str = "") -> Operator:
    return Operator(name, OperatorKind.MLP, score, latency_s, memory_bytes)


def scores(found: tuple[tuple[Operator, ...], ...]) -> list[list[float]]:
    return [[operator.sensitivity for operator in cluster] for cluster in found]


def test_neighbours_cluster_by_hand_when_scores_jump() -> None:
    found = clusters([op(s) for s in (0.1, 0.15, 0.9, 0.85, 0.1, 0.12)], 0.2)
    assert scores(found) == [[0.1, 0.15], [0.9, 0.85], [0.1, 0.12]]  # a fall splits too, and the last one is kept


def test_distance_is_to_the_mean_of_the_cluster_when_scores_drift() -> None:
    """0.0 0.1 0.19: the third is 0.14 from the mean 0.05, though 0.09 from its neighbour."""
    assert scores(clusters([op(s) for s in (0.0, 0.1, 0.19)], 0.12)) == [[0.0, 0.1], [0.19]]
    assert scores(clusters([op(s) for s in (0.0, 0.1, 0.16)], 0.12)) == [[0.0, 0.1, 0.16]]


def test_a_new_cluster_has_a_mean_of_its_own_when_the_old_one_was_far() -> None:
    assert scores(clusters([op(s) for s in (0.1, 0.9, 0.9)], 0.2)) == [[0.1], [0.9, 0.9]]


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1.0), max_size=40), st.floats(0.01, 0.5))
def test_clusters_keep_order_and_threshold_when_scores_are_any(values: list[float], threshold: float) -> None:
    found = scores(clusters([op(value) for value in values], threshold))
    assert [value for cluster in found for value in cluster] == values
    for cluster in found:
        for k in range(1, len(cluster)):
            assert abs(cluster[k] - sum(cluster[:k]) / k) < threshold + 1e-9
    for before, after in itertools.pairwise(found):
        assert abs(after[0] - sum(before) / len(before)) >= threshold - 1e-9


# -- partitions ------------------------------------------------------------------------------------


def test_score_of_a_partition_is_that_of_its_summed_latency_when_mixed() -> None:
    found = OperatorGroup("m", "m[0]", (op(1.0, 3.0), op(0.0, 1.0)))
    assert found.sensitivity == pytest.approx(sensitivity(4.0, 3.0 * 2 + 1.0))
    assert weighted_mean([]) == 0.0


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=7),
    st.integers(1, 5),
    st.integers(5, 40),
)
def test_stages_are_the_fastest_that_fit_when_all_cuts_are_tried(
    sizes: list[tuple[int, int]], count: int, memory: int
) -> None:
    clustered = [(op(0.5, float(latency), float(held), f"o{k}"),) for k, (latency, held) in enumerate(sizes)]
    best = None
    for used in range(1, min(count, len(sizes)) + 1):
        for cuts in itertools.combinations(range(1, len(sizes)), used - 1):
            parts = [sizes[a:b] for a, b in itertools.pairwise([0, *cuts, len(sizes)])]
            if all(sum(held for _, held in part) <= memory for part in parts):
                slowest = max(sum(latency for latency, _ in part) for part in parts)
                best = slowest if best is None else min(best, slowest)
    found = stages("m", clustered, count, float(memory))
    if best is None:
        assert found is None
        return
    assert found is not None
    assert len(found) <= count
    assert [o for part in found for o in part.operators] == [o for cluster in clustered for o in cluster]
    assert all(part.memory_bytes <= memory for part in found)
    assert max(part.latency_s for part in found) == best


@pytest.mark.parametrize(
    "key",
    [
        "61x7168.q128x160.kv128.v129280.p671026279424.e256x8x58x653908770816.mla576.w8.x8.c8",
        "36x2880.q64x64.kv8.v201088.p116789048640.e128x4x36x114661785600.win128x18.x4_25",
    ],
)
def test_operators_of_quantized_and_latent_models_hold_all_weights(key: str) -> None:
    instance = engine_model(key, "H200-SXM-141GB", 8)
    found = operators(instance, Totals.plain(512, 8, 8_000.0), kv_tokens=0.0)
    assert all(one.memory_bytes >= 0.0 for one in found)
    assert sum(one.memory_bytes for one in found) == pytest.approx(instance.weight_bytes, rel=0.01)
