from dataclasses import replace

import pytest

from core.controllers.request.routing import (
    ALIKE_S,
    ALIKE_SHARE,
    Candidate,
    RouteRequest,
    backlog_s,
    choose,
    least_backlog,
    least_loaded,
)
from core.engine.compiled_model import iteration, model_row
from core.engine.engine_model import engine_model
from core.simulator.kernel import kernel
from core.types import Limits

BASE = Candidate(
    uid="a",
    pool_id=1,
    site="north",
    request_class="SS",
    class_rank=0,
    model="Llama3-70B",
    engine="vllm-v1",
    gpu="A100-80GB",
    tp=4,
    mhz=1410.0,
    running=0,
    waiting=0,
    queued_prompt_tokens=0,
    kv_usage=0.0,
    pue=1.2,
    intensity_g_per_kwh=None,
)
REQUEST = RouteRequest(prompt_tokens=512, predicted_output_tokens=200, class_rank=0, limits=Limits(2.0, 0.15, 60.0))


def test_nothing_is_chosen_when_there_are_no_candidates() -> None:
    assert choose([], REQUEST) is None


def test_busy_instance_is_chosen_when_it_keeps_the_limits() -> None:
    """One more sequence in a batch shares the reading of the weights; waking an idle instance does not."""
    choice = choose([BASE, replace(BASE, uid="busy", running=16)], REQUEST)
    assert choice is not None
    assert (choice.uid, choice.meets_slo) == ("busy", True)


def test_cooler_site_is_chosen_when_only_pue_differs() -> None:
    choice = choose([replace(BASE, pue=1.6), replace(BASE, uid="cool", pue=1.1)], REQUEST)
    assert choice is not None
    assert choice.uid == "cool"


def test_energy_is_the_extra_over_idling_when_the_instance_is_idle() -> None:
    choice = choose([replace(BASE, pue=1.0)], REQUEST)
    assert choice is not None
    model = engine_model("Llama3-70B", "A100-80GB", 4)
    idle_w = 4 * model.idle_gpu_watts(1410)
    prefill, decode = model.iteration(1410, [(512, 0)]), model.iteration(1410, (), 1, 1260)
    extra_j = prefill.energy_j - idle_w * prefill.t_s + 200 * (decode.energy_j - idle_w * decode.t_s)
    assert choice.predicted_energy_j == pytest.approx(extra_j)
    assert choice.ttft_s == pytest.approx(prefill.t_s)
    assert choice.e2e_s == pytest.approx(prefill.t_s + 200 * decode.t_s)
    assert choice.window_s == pytest.approx(1.4 * (prefill.t_s + 200 * decode.t_s))


def test_request_spills_to_the_next_larger_class_when_its_own_cannot_keep_the_limits() -> None:
    slow = replace(BASE, mhz=210.0, queued_prompt_tokens=60_000)
    larger = [replace(BASE, uid=f"rank{rank}", class_rank=rank, request_class=f"C{rank}") for rank in (3, 1, 2)]
    choice = choose([slow, *larger], REQUEST)
    assert choice is not None
    assert choice.uid == "rank1"
    assert "spilled to C1" in choice.reason


def test_request_spills_downwards_when_no_larger_class_keeps_the_limits() -> None:
    slow = replace(BASE, uid="own", class_rank=2, queued_prompt_tokens=60_000)
    small = [replace(BASE, uid=f"rank{rank}", class_rank=rank) for rank in (0, 1)]
    choice = choose([slow, *small], replace(REQUEST, class_rank=2))
    assert choice is not None
    assert choice.uid == "rank1"


def test_fastest_is_chosen_when_none_keeps_the_limits() -> None:
    strict = replace(REQUEST, limits=Limits(ttft_s=0.001))
    choice = choose([replace(BASE, mhz=600.0), replace(BASE, uid="fast", class_rank=3)], strict)
    assert choice is not None
    assert (choice.uid, choice.meets_slo) == ("fast", False)
    assert "no instance keeps the limits" in choice.reason


def test_full_cache_is_avoided_when_another_instance_has_room() -> None:
    full = replace(BASE, uid="full", running=40, kv_usage=1.0)
    choice = choose([full, replace(BASE, uid="room", running=40, kv_usage=0.2)], REQUEST)
    assert choice is not None
    assert choice.uid == "room"


def test_unknown_configuration_is_used_last_when_others_are_known() -> None:
    unknown = replace(BASE, uid="exotic", gpu="L40S")
    known = choose([unknown, replace(BASE, uid="known", class_rank=3)], REQUEST)
    assert known is not None
    assert known.uid == "known"
    only = choose([unknown, replace(unknown, uid="idler", running=0), replace(unknown, uid="busy", running=9)], REQUEST)
    assert only is not None
    assert only.uid == "exotic"
    assert only.predicted_energy_j is None
    assert "engine model knows" in only.reason


def test_tie_is_drawn_when_instances_are_equal() -> None:
    twins = [BASE, replace(BASE, uid="b")]
    draws = iter([0.9, 0.1])
    choice = choose(twins, REQUEST, lambda: next(draws))
    assert choice is not None
    assert choice.uid == "b"
    again = choose(list(reversed(twins)), REQUEST)
    assert again is not None
    assert again.uid == "a"


@pytest.mark.parametrize("running", [0, 255, 256, 5000])
def test_choice_is_made_when_the_batch_is_beyond_the_tables(running: int) -> None:
    assert choose([replace(BASE, running=running, waiting=running)], REQUEST) is not None


def test_choice_is_made_when_nothing_is_to_be_generated() -> None:
    choice = choose([BASE], replace(REQUEST, prompt_tokens=0, predicted_output_tokens=0))
    assert choice is not None


# -- by backlog --------------------------------------------------------------------------------------


def waits(uid: str, tokens: int, **fields: object) -> Candidate:
    return replace(BASE, uid=uid, queued_prompt_tokens=tokens, top_mhz=1410.0, **fields)  # type: ignore[arg-type]


def test_instance_is_chosen_where_the_prompts_are_done_with_first() -> None:
    assert least_backlog([waits("a", 3000, running=1), waits("b", 1000, running=9)], 500).uid == "b"
    larger = [waits("a", 2000), waits("b", 3000, tp=8)]
    assert least_backlog(larger, 500).uid == "b", "more tokens wait there, for less long"


def test_load_decides_when_the_backlogs_are_alike() -> None:
    assert backlog_s(waits("a", 0), 50) < ALIKE_S
    assert least_backlog([waits("a", 30, running=2), waits("b", 0, running=3)], 50).uid == "a"
    assert least_backlog([waits("a", 0, running=2), waits("b", 30, running=3, weight=2.0)], 50).uid == "b"
    assert least_backlog([waits("a", 3000, running=3), waits("b", 3000, running=2)], 50).uid == "b"


def test_most_loaded_instance_takes_a_prompt_that_is_done_with_in_good_time():
    ttft_s = 1.0
    good = [waits("a", 0), waits("b", 1000, running=9), waits("c", 0, running=3)]
    assert all(backlog_s(own, 500) <= ALIKE_SHARE * ttft_s for own in good)
    assert least_backlog(good, 500, ttft_s=ttft_s).uid == "b"
    behind = replace(good[1], queued_prompt_tokens=9000)
    assert backlog_s(behind, 500) > ALIKE_SHARE * ttft_s
    assert least_backlog([good[0], behind, good[2]], 500, ttft_s=ttft_s).uid == "c"
    assert least_backlog(good, 500).uid == "a", "without a limit no time is a good one"


@pytest.mark.parametrize("filled", [{"running": 150}, {"kv_usage": 0.9}])
def test_instance_that_fills_up_does_not_take_a_prompt_for_being_the_most_loaded(filled):
    full = replace(waits("a", 0, running=9), **filled)
    assert least_backlog([full, waits("b", 0, running=1)], 500, ttft_s=1.0).uid == "b"


def test_backlog_is_that_of_the_top_clock_when_the_present_one_is_low() -> None:
    slow = waits("a", 2000, mhz=300.0)
    assert backlog_s(slow, 500) == backlog_s(waits("a", 2000), 500)
    assert backlog_s(replace(slow, top_mhz=None), 500) > backlog_s(slow, 500)
    row = model_row(engine_model("Llama3-70B", "A100-80GB", 4))
    full_s = iteration(row, 1410.0, 2048.0, 0.0, 2048.0**2 / 2.0, 1.0, 0.0, 0.0)[0]
    assert backlog_s(slow, 500) == pytest.approx(2500 * full_s / 2048.0)


def test_backlogs_that_are_alike_here_are_so_in_the_simulator() -> None:
    assert (ALIKE_S, ALIKE_SHARE) == (kernel.ALIKE_S, kernel.ALIKE_SHARE)


def test_warm_one_is_chosen_when_all_else_is_equal() -> None:
    assert least_backlog([waits("a", 0), waits("b", 0)], 50, warm_uid="b").uid == "b"


def test_least_loaded_is_chosen_when_a_backlog_is_not_known() -> None:
    unknown = [waits("a", 0, running=5), waits("b", 4000, running=1, gpu="nobody's")]
    assert backlog_s(unknown[1], 50) == float("inf")
    assert least_backlog(unknown, 50).uid == least_loaded(unknown).uid == "b"
