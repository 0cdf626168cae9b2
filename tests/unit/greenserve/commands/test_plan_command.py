"""`greenserve plan`: problems as files, against every plan counted out from the JSON alone."""

import copy
import itertools
import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from greenserve.cli import cli
from tests.unit.laws import examples

EXAMPLE = {
    "objective": "carbon",
    "negative_intensity": "follow",
    "alpha": 1.1,
    "step_s": 300,
    "sites": ["loc1", "loc2"],
    "gpus": {"loc1": {"A100": 4, "H100": 4}, "loc2": {"A100": 2}},
    "modes": {"mode1": {"A100": 2}, "mode2": {"H100": 2}, "mix": {"A100": 1, "H100": 1}},
    "partitions": {"a": ["SS", "SL"], "b": ["all"]},
    "power_w": {
        "a": {
            "SS": {"mode1": 745.6, "mode2": 900.0, "mix": 700.0},
            "SL": {"mode1": 700.0, "mode2": 950.0, "mix": 650.0},
        },
        "b": {"all": {"mode1": 745.6, "mode2": 900.0, "mix": 700.0}},
    },
    "max_rps": {
        "a": {"SS": {"mode1": 5.49, "mode2": 8.0, "mix": 5.0}, "SL": {"mode1": 0, "mode2": 3.0, "mix": 1.4}},
        "b": {"all": {"mode1": 2.0, "mode2": 3.5, "mix": 2.5}},
    },
    "latency_s": {"a": {"SS": {"mode1": 8.85, "mode2": 40.0}}},
    "tpot_ms": {"a": {"SS": {"mode1": 59.6}}},
    "ttft_ms": {"a": {"SS": {"mode1": 120.4}}},
    "limits": {"a": {"SS": {"latency_s": 31.5, "tpot_ms": 150, "ttft_ms": 300}}},
    "demand_rps": {"a": {"SS": [6.1, 5.9], "SL": [1.1, 2.3]}, "b": {"all": [8.0, 7.9]}},
    "intensity_g_per_kwh": {"loc1": [2500.8, 752.5], "loc2": [600.0, 500.0]},
}


def counted_out(document):
    """(objective, partition) of least objective over all plans, None if there is none: by the format, no solver."""
    best = None
    seconds = document["step_s"]
    weights = document.get("weights", {})
    cost_of_w = {}
    for site in document["sites"]:
        series = {key: document.get(key, {}).get(site, []) for key in ("intensity_g_per_kwh", "price_usd_per_kwh")}
        if document["negative_intensity"] == "clamp":
            series = {key: [max(0.0, value) for value in values] for key, values in series.items()}
        parts = {
            "carbon": sum(series["intensity_g_per_kwh"]) * seconds / 3.6e6,
            "energy": len(series["intensity_g_per_kwh"]) * seconds / 3600.0,
            "cost": sum(series["price_usd_per_kwh"]) * seconds / 3.6e6,
        }
        kind = document["objective"]
        cost_of_w[site] = (
            sum(weights.get(key, 0.0) * parts[key] for key in parts) if kind == "weighted" else parts[kind]
        )
    for name, classes in document["partitions"].items():
        kinds = []
        for site, cls, mode in itertools.product(document["sites"], classes, document["modes"]):
            limits = document["limits"].get(name, {}).get(cls, {})
            kept = all(
                document[key].get(name, {}).get(cls, {}).get(mode, 0.0) <= limit for key, limit in limits.items()
            )
            rps = document["max_rps"][name][cls][mode]
            room = min(document["gpus"][site].get(gpu, 0) // each for gpu, each in document["modes"][mode].items())
            if kept and rps > 0.0 and room:
                kinds.append((site, cls, mode, rps, document["power_w"][name][cls][mode] * cost_of_w[site], room))
        for counts in itertools.product(*(range(kind[-1] + 1) for kind in kinds)):
            used, carried, cost = {}, dict.fromkeys(classes, 0.0), 0.0
            for (site, cls, mode, rps, each_cost, _), count in zip(kinds, counts, strict=True):
                carried[cls] += count * rps
                cost += count * each_cost
                for gpu, each in document["modes"][mode].items():
                    used[site, gpu] = used.get((site, gpu), 0) + count * each
            need = {cls: document["alpha"] * max(document["demand_rps"][name][cls]) for cls in classes}
            fits = all(count <= document["gpus"][site][gpu] for (site, gpu), count in used.items())
            carries = all(carried[cls] >= need[cls] - 1e-9 for cls in classes)
            if fits and carries and (best is None or cost < best[0]):
                best = cost, name
    return best


def answers(tmp_path, *documents, options=()):
    paths = []
    for number, document in enumerate(documents):
        path = tmp_path / f"problem{number}.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        paths.append(str(path))
    result = CliRunner().invoke(cli, ["plan", *paths, "--json", *options])
    return [json.loads(line) for line in result.stdout.splitlines()], result


def changed(**fields):
    return {**copy.deepcopy(EXAMPLE), **fields}


def cost_by_hand(document, answer):
    """The objective of the workers printed (carbon, energy or cost), from the words of the format."""
    series = {"carbon": "intensity_g_per_kwh", "cost": "price_usd_per_kwh"}.get(document["objective"])
    total = 0.0
    for row in answer["workers"]:
        watts = document["power_w"][answer["partition"]][row["class"]][row["mode"]] * row["count"]
        values = document[series][row["site"]] if series else [1000.0, 1000.0]  # 1 kWh: 1,000 Wh
        total += sum(value * watts * document["step_s"] / 3.6e6 for value in values)
    return total


@pytest.mark.parametrize("objective", ["carbon", "energy", "cost"])
def test_optimum_is_that_of_counting_out_when_solved(tmp_path, objective):
    document = changed(objective=objective, price_usd_per_kwh={"loc1": [0.1, 0.3], "loc2": [0.2, 0.1]})
    (answer,), result = answers(tmp_path, document)
    assert result.exit_code == 0
    assert list(answer) == ["status", "objective", "bound", "gap", "partition", "workers", "solve_s"]
    assert answer["status"] == "optimal"
    assert answer["gap"] == pytest.approx(0.0, abs=1e-6)
    best, partition = counted_out(document)
    assert answer["objective"] == pytest.approx(best, rel=1e-9)
    assert answer["partition"] == partition
    assert cost_by_hand(document, answer) == pytest.approx(answer["objective"])
    assert not any(row["mode"] == "mode2" and row["class"] == "SS" for row in answer["workers"])  # 40 s over 31.5 s


counts = st.integers(0, 2)
rates = st.sampled_from([0.0, 0.8, 1.5, 2.2, 4.0])


@st.composite
def documents(draw):
    def table(values):
        return {"a": {"x": values(), "y": values()}, "b": {"z": values()}}

    def per_mode(values):
        return lambda: {mode: draw(values) for mode in ("m1", "m2", "mix")}

    def series():
        return [draw(st.floats(-300.0, 900.0)) for _ in range(2)]

    demand = st.sampled_from([0.0, 0.7, 1.4, 3.0])
    return {
        "objective": draw(st.sampled_from(["carbon", "energy", "cost", "weighted"])),
        "weights": {"carbon": 1.0, "energy": 0.3, "cost": 20.0},
        "negative_intensity": draw(st.sampled_from(["clamp", "follow"])),
        "alpha": draw(st.sampled_from([1.0, 1.1, 1.5])),
        "step_s": draw(st.sampled_from([60, 300])),
        "sites": ["n", "s"],
        "gpus": {"n": {"A": draw(counts), "H": draw(counts)}, "s": {"A": draw(counts)}},
        "modes": {"m1": {"A": 1}, "m2": {"A": 2}, "mix": {"A": 1, "H": 1}},
        "partitions": {"a": ["x", "y"], "b": ["z"]},
        "power_w": table(per_mode(st.floats(200.0, 3000.0))),
        "max_rps": table(per_mode(rates)),
        "latency_s": table(per_mode(st.floats(1.0, 20.0))),
        "tpot_ms": {},
        "ttft_ms": {},
        "limits": {"a": {"x": {"latency_s": draw(st.floats(5.0, 25.0))}}},
        "demand_rps": table(lambda: [draw(demand), draw(demand)]),
        "intensity_g_per_kwh": {"n": series(), "s": series()},
        "price_usd_per_kwh": {"n": series(), "s": series()},
    }


@settings(max_examples=examples(25), deadline=None)
@given(documents())
def test_optimum_is_that_of_counting_out_when_drawn(document):
    from core.algorithms.fleet.fleet_milp import solve_fleet
    from greenserve.commands.plan.carbon_plan import answer_of
    from greenserve.commands.plan.plan_problem import parse_problem

    problem = parse_problem(document)
    answer = answer_of(problem, solve_fleet(problem, 20.0, 1e-3, None, 1.5))
    best = counted_out(document)
    if best is None:
        assert answer["status"] == "infeasible"
        assert (answer["objective"], answer["partition"], answer["workers"]) == (None, None, [])
        return
    assert answer["status"] == "optimal"
    assert answer["objective"] == pytest.approx(best[0], rel=1e-6, abs=1e-9)
    assert answer["bound"] <= answer["objective"] + 1e-9


def test_idle_workers_earn_only_when_negative_intensity_is_followed(tmp_path):
    surplus = {"loc1": [-200.0, 100.0], "loc2": [50.0, 50.0]}
    demand = {"a": {"SS": [0.0, 0.0], "SL": [0.0, 0.0]}, "b": {"all": [0.0, 0.0]}}
    clamp, follow = (
        changed(intensity_g_per_kwh=surplus, demand_rps=demand, negative_intensity=how) for how in ("clamp", "follow")
    )
    (idle, burning), _ = answers(tmp_path, clamp, follow)
    assert (idle["status"], idle["objective"], idle["workers"]) == ("optimal", 0.0, [])
    assert burning["status"] == "optimal"
    assert burning["objective"] == pytest.approx(counted_out(follow)[0])
    assert burning["objective"] < 0.0
    assert {row["site"] for row in burning["workers"]} == {"loc1"}


def test_optional_figures_rule_nothing_out_when_missing(tmp_path):
    document = changed(limits={"a": {"SS": {"latency_s": None}}})
    for field in ("latency_s", "tpot_ms", "ttft_ms", "alpha", "step_s", "negative_intensity", "objective"):
        del document[field]
    (answer,), _ = answers(tmp_path, document)
    full = changed(limits={}, alpha=1.1, negative_intensity="clamp")
    assert answer["objective"] == pytest.approx(counted_out(full)[0])


def test_infeasible_is_an_answer_when_the_fleet_is_too_small(tmp_path):
    demand = {"a": {"SS": [99.0, 1.0], "SL": [0.0, 0.0]}, "b": {"all": [99.0, 1.0]}}
    (answer,), result = answers(tmp_path, changed(demand_rps=demand))
    assert result.exit_code == 0
    assert answer["status"] == "infeasible"
    text = CliRunner().invoke(cli, ["plan", str(tmp_path / "problem0.json")]).stdout
    assert "SS needs 108.90 requests/s" in text


def test_steps_count_when_only_a_price_says_how_many(tmp_path):
    lone = {"a": {"SS": 6.1, "SL": 2.3}, "b": {"all": 8.0}}
    document = changed(objective="energy", demand_rps=lone, intensity_g_per_kwh={"loc1": 5.0})
    document["price_usd_per_kwh"] = {"loc2": [0.1, 0.2, 0.3]}
    (answer,), _ = answers(tmp_path, document)
    reference = changed(objective="energy", intensity_g_per_kwh=dict.fromkeys(("loc1", "loc2"), [0.0] * 3))
    assert answer["objective"] == pytest.approx(counted_out(reference)[0])


def without(field):
    return {key: value for key, value in EXAMPLE.items() if key != field}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (without("sites"), "sites: missing; give a list of site names"),
        (without("intensity_g_per_kwh"), "intensity_g_per_kwh: missing; give g/kWh of each step by site"),
        (changed(objective="cost"), "price_usd_per_kwh: missing; give USD/kWh"),
        (changed(objective="weighted"), "weights: missing; give what a gram"),
        (changed(objective="grams"), 'objective: must be carbon or energy or cost or weighted, not "grams"'),
        (changed(alpha=-1), "alpha: must be above 0, not -1"),
        (changed(alpha="1"), 'alpha: must be a number, not "1"'),
        (changed(sites=["loc1", "loc3"]), "gpus.loc3: missing; give the GPUs of each site"),
        (changed(sites=["loc1", "loc1"]), "sites[1]: 'loc1' is there twice"),
        (changed(modes={"mode1": {"A100": 1.5}}), "modes.mode1.A100: must be a whole number, not 1.5"),
        (changed(modes={"mode1": {}}), "modes.mode1: must be the GPUs that a worker takes"),
        (
            changed(limits={"a": {"SS": {"latency_ms": 3}}}),
            "limits.a.SS.latency_ms: unknown limit; known are latency_s",
        ),
        (changed(demand_rps={"a": {"SS": [1, 2]}}), "demand_rps.a.SL: missing; give requests a second"),
        (
            changed(intensity_g_per_kwh={"loc1": [1.0], "loc2": [1.0, 2.0]}),
            "intensity_g_per_kwh.loc1: has 1 steps, but demand_rps.a.SS has 2",
        ),
        (changed(intensity={}), None),
        (changed(intensity_g_kwh={}), "intensity_g_kwh: unknown field; did you mean intensity_g_per_kwh?"),
        ("[1, 2]", "the problem: must be an object"),
        ("{", "not JSON"),
        ('{"alpha": 1, "alpha": 2}', "alpha: is there twice in one object; keep one"),
        ('{"alpha": NaN}', "missing"),
    ],
)
def test_field_and_remedy_are_named_when_a_problem_is_bad(tmp_path, document, words):
    found, result = answers(tmp_path, EXAMPLE, document, EXAMPLE)
    assert [row["status"] for row in found][::2] == ["optimal", "optimal"]  # the others are answered all the same
    if words is None:  # not one of our fields, nor like one
        assert result.exit_code == 0
        return
    assert result.exit_code == 2
    assert found[1]["status"] == "error"
    assert words in found[1]["error"]
    assert words in result.stderr
    assert "problem1.json" in result.stderr


def test_file_is_named_when_it_is_not_there(tmp_path):
    result = CliRunner().invoke(cli, ["plan", str(tmp_path / "none.json")])
    assert result.exit_code == 2
    assert "none.json: cannot be read: No such file" in result.stderr
    assert result.stdout == ""


def test_workers_are_listed_when_no_json_is_asked_for(tmp_path):
    (answer,), _ = answers(tmp_path, EXAMPLE)
    text = CliRunner().invoke(cli, ["plan", str(tmp_path / "problem0.json")]).stdout
    assert f"{answer['objective']:,.2f} gCO2e" in text
    assert all(f"{row['mode']} at {row['site']} for {row['class']}" in text for row in answer["workers"])
