"""Plans: what differs, in which order, in which words; and that a plan carried out leaves nothing to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from greenserve.apply import check, remote
from greenserve.apply.document import read
from greenserve.apply.execution import carry_out
from greenserve.apply.export import text_of
from greenserve.apply.kinds import KINDS
from greenserve.apply.plan import Plan, compare, needed_kinds
from greenserve.apply.rendering import ShownPlan, as_json, lines
from tests.fakes.hub import LLAMA
from tests.fakes.memory_fleet import MemoryFleet

NAMES = ("a", "b", "c")


def plan_of(api: MemoryFleet, text: str, prune: bool = False) -> Plan:
    wanted = read([("f.yaml", text)])
    present = remote.read(api, needed_kinds(wanted, prune))
    plan = compare(wanted, present, prune)
    assert check.faults(wanted, present, plan) == []
    return plan


def apply(api: MemoryFleet, text: str, prune: bool = False) -> None:
    outcome = carry_out(api, plan_of(api, text, prune), lambda change: None)
    assert (outcome.error, outcome.left) == ("", [])


def shown(api: MemoryFleet, text: str, prune: bool = False) -> ShownPlan:
    plan = plan_of(api, text, prune)
    present = remote.read(api, KINDS)
    untried = check.checked_when_made(plan)
    said = remote.consequences(api, plan, untried)
    return ShownPlan(plan, said, untried, check.uncertain(plan), check.dependants(plan, present))


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, list[dict[str, Any]]]:
    """Sites, clusters, nodes and tariffs that name each other; also kinds without rows."""
    sites = draw(st.lists(st.sampled_from(NAMES), unique=True))
    places = [f"{site}/{name}" for site in sites for name in NAMES]
    clusters = draw(st.lists(st.sampled_from(places), unique=True, max_size=4)) if places else []
    nodes = draw(st.lists(st.sampled_from(NAMES), unique=True)) if clusters else []
    periods = [(site, year) for site in sites for year in (2025, 2026)]
    tariffs = draw(st.lists(st.sampled_from(periods), unique=True, max_size=3)) if periods else []
    number = st.sampled_from([1, 1.5, 2.0])
    return {
        "nodes": [
            {"name": name, "cluster": draw(st.sampled_from(clusters)), "simulated": draw(st.booleans())}
            for name in nodes
        ],
        "clusters": [dict(zip(("site", "name"), cluster.split("/"), strict=True)) for cluster in clusters],
        "tariffs": [
            {
                **{
                    "site": site,
                    "valid_from": f"{year}-01-01T00:00:00Z",
                    "version": "1",
                    "source": "s",
                    "currency": "USD",
                },
                **{
                    "price_per_kwh": draw(number),
                    "windows": draw(st.lists(st.fixed_dictionaries({"days": number}), max_size=2)),
                },
            }
            for site, year in tariffs
        ],
        "sites": [
            {
                **{"name": site, "label": draw(st.sampled_from(["A", "B"])), "grid_zone": "Z", "pue": draw(number)},
                "power_cap_w": draw(st.none() | number),
            }
            for site in sites
        ],
    }


@given(fleets(), fleets())
def test_a_fleet_becomes_any_other_and_then_nothing_is_left_to_do(
    before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]
) -> None:
    api = MemoryFleet()
    apply(api, yaml.safe_dump(before))
    # Tariffs keep their sites: those of a site that goes would keep it, as the API would say.
    kept = {row["site"] for row in before["tariffs"]}
    after["sites"] += [row for row in before["sites"] if row["name"] in kept - {one["name"] for one in after["sites"]}]
    text = yaml.safe_dump(after)
    apply(api, text, prune=True)
    assert plan_of(api, text, prune=True).changes == ()
    there = remote.read(api, KINDS)
    for kind in ("sites", "clusters", "nodes"):
        assert {row.key for row in there[kind]} == set(read([("f", text)])[kind])
    exported = text_of(there)
    assert plan_of(api, exported, prune=True).changes == ()
    copy = MemoryFleet()
    apply(copy, exported)
    assert text_of(remote.read(copy, KINDS)) == exported


def test_deletions_come_last_and_in_the_opposite_order() -> None:
    api = MemoryFleet()
    fleet = "sites: {a: {label: A, grid_zone: Z}}\nclusters: [{site: a, name: m}]\nnodes: {n: {cluster: a/m}}\n"
    apply(api, fleet)
    api.sent.clear()
    apply(api, "nodes: {}\nclusters: []\nsites: {b: {label: B, grid_zone: Z}}\n", prune=True)
    assert api.sent == [("POST", "sites"), ("DELETE", "nodes"), ("DELETE", "clusters"), ("DELETE", "sites")]


def test_a_plan_is_shown_with_signs_places_and_sums() -> None:
    api = MemoryFleet()
    apply(
        api,
        "sites:\n  a: {label: A, grid_zone: Z, pue: 2}\n  b: {label: B, grid_zone: Z}\n  c: {label: C, grid_zone: Z}\n",
    )
    apply(api, "clusters: [{site: b, name: m}]")
    text = "sites:\n  a: {label: A}\n  c: {pue: 1.5, power_cap_w: 5}\n  d: {label: D, grid_zone: Z}\n"
    text += "nodes:\n  n: {cluster: d/m}\nclusters:\n  - {site: d, name: m}\n  - {site: b, name: m}\n"
    assert [click.unstyle(line) for line in lines(shown(api, text))] == [
        "+ site d  (f.yaml:4:6)",
        "    label: D, grid_zone: Z",
        "~ site c  (f.yaml:3:6)",
        "    pue: 0 -> 1.5",
        "    power_cap_w: none -> 5",
        "+ cluster d/m  (f.yaml:8:5)",
        "    -",
        "    its consequences are known when it is made: it depends on rows that this plan makes",
        "+ node n  (f.yaml:6:6)",
        "    cluster: d/m",
        "    its consequences are known when it is made: it depends on rows that this plan makes",
        "= unchanged: 1 site, 1 cluster",
        "Plan: 3 to make, 1 to change, 0 to delete, 2 unchanged.",
    ]
    pruned = list(map(click.unstyle, lines(shown(api, "sites: {a: {label: A}, c: {label: C}}\n", prune=True))))
    assert pruned == [
        "- site b",
        "    warning: named by 1 cluster: deleted with it, or the API refuses to delete it",
        "= unchanged: 2 sites",
        "Plan: 0 to make, 0 to change, 1 to delete, 2 unchanged.",
    ]
    same = list(lines(shown(api, "sites: {a: {label: A}}\n")))
    assert same[-1] == "Nothing would change: the fleet is as the files say."


def test_a_plan_is_json_for_programs() -> None:
    api = MemoryFleet()
    apply(api, "sites: {a: {label: A, grid_zone: Z}}\nmodels: {m: {max_model_len: 1}}\npartitions: {p: {}}\n")
    service = "services: {s: {model_card: m, partition: p, partitions: [p], knobs: %s}}\n"
    apply(api, service % "{tp: 2, tuning: {dynamo: {wave: 4, x: 1}}}")
    found = as_json(shown(api, service % "{clock: fixed, tuning: {dynamo: {wave: true, x: 1}}}"))
    assert {name: found[name] for name in ("create", "change", "delete", "unchanged")} == {
        **{"create": 0, "change": 1, "delete": 0, "unchanged": {"services": 0}},
    }
    (change,) = found["changes"]
    assert (change["action"], change["kind"], change["key"], change["tried"]) == ("change", "services", "s", True)
    assert change["fields"] == [
        {"name": "knobs.tp", "old": "2", "new": ""},
        {"name": "knobs.tuning.dynamo.wave", "old": "4", "new": "true"},
        {"name": "knobs.clock", "old": "", "new": "fixed"},
    ]


@pytest.mark.parametrize("text", ["partitions: [q, p]", "partitions: [p, q]", "partitions: [q]"])
def test_names_of_several_rows_have_no_order_and_the_one_in_force_is_among_them(text: str) -> None:
    api = MemoryFleet()
    apply(api, "models: {m: {max_model_len: 1}}\npartitions: {p: {}, q: {}}\n")
    apply(api, "services: {s: {model_card: m, partition: p, partitions: [p, q]}}\n")
    assert plan_of(api, f"services: {{s: {{{text}}}}}\n").changes == ()


def test_rows_beyond_what_one_request_takes_go_in_several() -> None:
    api = MemoryFleet()
    tenants = "".join(f"  t{n}: {{label: x}}\n" for n in range(1_050))
    apply(api, f"tenants:\n{tenants}")
    assert api.sent == [("POST", "tenants")] * 3
    api.sent.clear()
    apply(api, f"tenants:\n{tenants.replace('x', 'y')}")
    assert api.sent == [("PATCH", "tenants")] * 3


def test_tokenizer_beside_a_config_is_set_where_the_card_has_none(tmp_path: Path) -> None:
    api = MemoryFleet()
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "tokenizer.json").write_text("{}")
    text = f"models: {{tuned: {{max_model_len: 8192, config_file: {tmp_path}}}}}"
    apply(api, text)
    (card,) = remote.read(api, ("models",))["models"]
    assert (card.values["config"], card.values["tokenizer"]) == (LLAMA, str(tmp_path / "tokenizer.json"))
    assert plan_of(api, text).changes == ()
    apply(api, "models: {tuned: {tokenizer: /own.json}}")
    assert plan_of(api, text).changes == ()


def test_config_of_an_export_leaves_nothing_to_do() -> None:
    api = MemoryFleet()
    apply(api, f"models: {{tuned: {{max_model_len: 8192, dtype: auto, config: {json.dumps(LLAMA)}}}}}")
    assert plan_of(api, text_of(remote.read(api, KINDS))).changes == ()
