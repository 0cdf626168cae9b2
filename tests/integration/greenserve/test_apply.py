"""Fleets as files, carried out through the product's own REST API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.utils import timezone

from greenserve.apply import check, execution, export, remote
from greenserve.apply.document import read
from greenserve.apply.execution import Outcome, carry_out
from greenserve.apply.kinds import KINDS, FieldType
from greenserve.apply.plan import Action, Plan, compare, needed_kinds
from greenserve.client import Client
from pools import demo
from pools.models import AuditEntry, Cluster, Gpu, Node, Pool, RequestClass, Service, Site, Tenant
from scheduler.operations.configure import registry
from telemetry.models import Budget, CarbonFeed, Instrument, Tariff
from tests import documents
from tests.fakes import fleet_api, seed
from tests.representatives import first

pytestmark = pytest.mark.django_db
FLEET = """
pools:
  - {service: llama3-8b, site: ashburn, request_class: short-long/L, warm: 1}
  - {service: llama3-8b, site: ashburn, request_class: short-long/S}
budgets:
  - {tenant: team, amount: 1200.5, currency: USD}
slos:
  - {service: llama3-8b, kind: ttft, objective_s: 2}
services:
  llama3-8b:
    model_card: Llama3-8B
    partition: short-long
    partitions: [short-long]
    expected_rps: 1
    expected_prompt_tokens: 500
    expected_output_tokens: 200
    knobs: {clock: fixed, partition: short-long}
tenants:
  team: {label: Team}
classes:
  - {partition: short-long, name: S, rank: 0, input_max: 1024}
  - {partition: short-long, name: L, rank: 1, input_min: 1024}
partitions:
  short-long: {source: Two classes}
models:
  Llama3-8B: {max_model_len: 8192, engine_arguments: [--kv-cache-dtype, fp8]}
tariffs:
  - {site: ashburn, valid_from: 2026-01-01T00:00:00Z, version: "1", currency: USD, price_per_kwh: 0.08, source: utility}
gpus:
  - &gpu
    {node: a1, index: 0, uuid: SIM-0, gpu_type: H100-SXM-80GB, memory_gb: 80, min_mhz: 210, max_mhz: 1980, tdp_w: 700}
  - {<<: *gpu, index: 1, uuid: SIM-1}
gpu-types:
  L40S-lab:
    {peak_tflops: 362, memory_gb: 48.3, memory_gb_per_s: 864, link_gb_per_s: 64, tdp_w: 300, min_mhz: 210,
     max_mhz: 2520, like: H100-SXM-80GB, source: a test, driver_names: [NVIDIA L40S lab], assumed: [min_mhz]}
nodes:
  a1: {cluster: ashburn/main, simulated: true}
clusters:
  - {site: ashburn, name: main}
sites:
  ashburn: {label: Ashburn, grid_zone: US-MIDA-PJM, time_zone: America/New_York, pue: 1.2}
"""


@pytest.fixture
def api(redis_client) -> Iterator[Client]:
    with fleet_api.as_person() as client:
        yield client


def planned(api: Client, text: str, *, prune: bool = False) -> Plan:
    """The plan of a file, and that nothing is wrong with it so far as can be known."""
    wanted = read([("fleet.yaml", text)])
    present = remote.read(api, needed_kinds(wanted, prune))
    plan = compare(wanted, present, prune)
    assert check.faults(wanted, present, plan) == []
    said = remote.consequences(api, plan, check.checked_when_made(plan))
    assert remote.refused(plan, said, check.uncertain(plan)) == []
    return plan


def applied(api: Client, text: str, *, prune: bool = False) -> Outcome:
    return carry_out(api, planned(api, text, prune=prune), lambda change: None)


def labels(plan: Plan) -> list[str]:
    return [f"{change.action.value} {change.label}" for change in plan.changes]


def test_kinds_are_those_of_the_registry_with_the_types_of_rest() -> None:
    from frontend.api.rest.owned import serializer_of

    types = {
        **{"SlugField": "TEXT", "CharField": "TEXT", "ChoiceField": "TEXT", "NumberField": "NUMBER"},
        **{
            "IntegerField": "WHOLE",
            "BigIntegerField": "WHOLE",
            "DecimalField": "DECIMAL",
            "BooleanField": "FLAG",
            "DateTimeField": "TIME",
        },
        **{"KeyField": "NAME", "ManyRelatedField": "NAMES"},
    }
    assert list(KINDS) == list(registry.OWNED)
    made: set[str] = set()
    for name, owned in registry.OWNED.items():
        kind, shown = KINDS[name], serializer_of(owned)().fields
        assert (kind.one, kind.lookup, kind.versions, kind.once) == (
            owned.one,
            owned.lookup,
            owned.versions,
            owned.once,
        )
        assert set(kind.names) == set(owned.fields)
        for spec in kind.fields:
            there = shown[spec.name]
            if type(there).__name__ == "JSONField":
                default = owned.field(spec.name).default
                assert spec.type is (FieldType.LIST if default is list else FieldType.OBJECT), spec
            else:
                assert spec.type.name == types[type(there).__name__], spec
            assert (spec.required, spec.nullable) == (there.required, there.allow_null), (name, spec)
            if spec.choices:
                assert spec.choices == tuple(there.choices)
            if spec.of:
                assert owned.field(spec.name).related_model is registry.OWNED[spec.of].model
                assert spec.of in made, "kinds stand in the order in which rows can be made"
        made.add(name)


def test_fleet_is_made_from_nothing_and_a_second_plan_is_empty(api: Client) -> None:
    outcome = applied(api, FLEET)
    assert (outcome.error, outcome.left) == ("", [])
    assert len(outcome.done) == 17
    assert Gpu.objects.count() == 2
    service = Service.objects.get()
    assert (service.knobs, list(service.partitions.values_list("name", flat=True))) == (
        {"clock": "fixed", "partition": "short-long"},
        ["short-long"],
    )
    warm = {f"{pool.request_class}": pool.warm for pool in Pool.objects.select_related("request_class__partition")}
    assert warm == {"short-long/S": 0, "short-long/L": 1}
    assert {entry.channel for entry in AuditEntry.objects.filter(kind="site")} == {"api"}
    again = planned(api, FLEET, prune=True)
    assert again.changes == ()
    assert sum(again.unchanged.values()) == 17


def test_the_documented_fleet_can_be_made(api: Client) -> None:
    (text,) = [one.text for one in documents.blocks(documents.ROOT / "docs" / "apply.md") if one.language == "yaml"]
    assert applied(api, text).error == ""
    assert planned(api, text, prune=True).changes == ()
    assert Gpu.objects.count() == 4


def test_only_what_differs_is_changed_when_a_file_changes(api: Client) -> None:
    applied(api, FLEET)
    entries = AuditEntry.objects.count()
    changed = FLEET.replace("pue: 1.2", "pue: 1.15, power_cap_w: 50000").replace("clock: fixed", "clock: fixed, tp: 2")
    plan = planned(api, changed)
    assert labels(plan) == ["~ site ashburn", "~ service llama3-8b"]
    found = {one.name: (one.old, one.new) for change in plan.changes for one in change.fields}
    assert found == {"pue": ("1.2", "1.15"), "power_cap_w": ("none", "50000"), "knobs.tp": ("", "2")}
    assert carry_out(api, plan, lambda change: None).error == ""
    assert (Site.objects.get().pue, Service.objects.get().knobs) == (
        1.15,
        {"clock": "fixed", "tp": 2, "partition": "short-long"},
    )
    assert AuditEntry.objects.count() == entries + 2
    assert planned(api, changed).changes == ()


def test_rows_that_no_file_names_are_deleted_with_prune_alone(api: Client) -> None:
    applied(api, FLEET)
    Tenant.objects.create(name="elsewhere")  # of a kind that the next file does not name
    less = "nodes: []\ngpus: []\ntariffs: []\nclusters:\n  - {site: ashburn, name: main}\n"
    assert planned(api, less).changes == ()
    plan = planned(api, less, prune=True)
    assert labels(plan) == ["- GPU a1/0", "- GPU a1/1", "- node a1"]  # and no tariff: it is a version
    outcome = carry_out(api, plan, lambda change: None)
    assert (outcome.error, Node.objects.count(), Gpu.objects.count()) == ("", 0, 0)
    assert (Cluster.objects.count(), Tariff.objects.count(), Tenant.objects.count()) == (1, 1, 2)
    assert planned(api, less, prune=True).changes == ()


def test_rows_that_name_a_deleted_one_are_counted_and_a_refused_deletion_is_said(api: Client) -> None:
    applied(api, FLEET)
    wanted = read([("fleet.yaml", "sites: []\n")])
    present = remote.read(api, needed_kinds(wanted, prune=True))
    plan = compare(wanted, present, prune=True)
    (users,) = check.dependants(plan, present).values()
    assert {str(one) for one in users} == {"1 cluster", "2 pools", "1 tariff"}
    outcome = carry_out(api, plan, lambda change: None)
    assert "site ashburn: " in outcome.error
    assert "in use by" in outcome.error
    assert len(outcome.left) == 1
    assert Site.objects.exists()


def test_nothing_is_lost_when_somebody_changes_a_row_between_plan_and_apply(api: Client) -> None:
    applied(api, FLEET)
    plan = planned(api, FLEET.replace("pue: 1.2", "pue: 1.1").replace("label: Team", "label: The team"))
    Site.objects.update(label="Ashburn, Virginia")
    outcome = carry_out(api, plan, lambda change: None)
    assert "somebody changed label since the plan was made" in outcome.error
    assert (len(outcome.done), [change.label for change in outcome.left]) == (0, ["site ashburn", "tenant team"])
    site = Site.objects.get()
    assert (site.pue, site.label) == (1.2, "Ashburn, Virginia")
    deleted = planned(api, "budgets: []\n", prune=True)
    Budget.objects.update(amount=5)
    assert "somebody changed amount" in carry_out(api, deleted, lambda change: None).error
    assert Budget.objects.count() == 1


def test_what_loops_and_feeds_write_meanwhile_is_no_reason_to_refuse(api: Client, monkeypatch) -> None:
    applied(api, FLEET)
    feeds = "feeds:\n  - {site: ashburn, signal: average, provider: static_csv, config: {file: x.csv}, source: %s}\n"
    applied(api, feeds % "old")
    plan = planned(api, feeds % "new")
    CarbonFeed.objects.update(last_tried_at=timezone.now(), failures=3)
    reads = remote.read_kind

    def late(api: Client, name: str) -> Any:
        """The feed is asked once more just after it was read the first two times."""
        found = reads(api, name)
        if late.left:  # type: ignore[attr-defined]
            late.left -= 1  # type: ignore[attr-defined]
            CarbonFeed.objects.update(last_tried_at=timezone.now())
        return found

    late.left = 2  # type: ignore[attr-defined]
    monkeypatch.setattr(execution, "read_kind", late)
    outcome = carry_out(api, plan, lambda change: None)
    assert (outcome.error, CarbonFeed.objects.get().source) == ("", "new")
    assert late.left == 0  # type: ignore[attr-defined]


@pytest.mark.slow("a whole fleet, twice")
def test_a_refused_row_stops_it_with_its_place_and_field_and_the_next_run_goes_on(api: Client) -> None:
    wrong = FLEET.replace("rank: 1, input_min: 1024", "rank: 1, input_min: 1024, input_max: 5")
    plan = planned(api, wrong)  # the class names a partition that is not there yet: it cannot be tried
    outcome = carry_out(api, plan, lambda change: None)
    line = wrong[: wrong.index("name: L, rank")].count("\n") + 1
    assert f"fleet.yaml:{line}:" in outcome.error
    assert "request class short-long/L, input_max: must be above input_min" in outcome.error
    assert [change.label for change in outcome.done][-1] == "partition short-long"
    assert RequestClass.objects.count() == 0  # S was in the same request
    assert not Service.objects.exists()
    assert {"request class short-long/S", "service llama3-8b"} <= {change.label for change in outcome.left}
    rest = applied(api, FLEET)
    assert (rest.error, len(rest.done)) == ("", len(outcome.left))


def test_the_api_is_asked_before_and_its_errors_have_their_places(api: Client) -> None:
    text = "sites:\n  oslo:\n    label: Oslo\n    grid_zone: NO1\n    pue: 0.5\n  bergen: {label: B, grid_zone: NO5}\n"
    wanted = read([("f.yaml", text)])
    plan = compare(wanted, remote.read(api, ["sites"]))
    said = remote.consequences(api, plan, ())
    (fault,) = {(str(one.mark), one.where) for one in remote.refused(plan, said, ())}
    assert fault == ("f.yaml:5:5", "site oslo, pue")
    assert not Site.objects.exists()


def test_references_and_needed_fields_are_looked_at_before_anything(api: Client) -> None:
    applied(api, FLEET)
    text = (
        "nodes:\n  a2: {cluster: ashburn/mian}\nsites:\n  oslo: {label: Oslo}\nclusters:\n  - {site: olso, name: x}\n"
    )
    wanted = read([("f.yaml", text)])
    present = remote.read(api, needed_kinds(wanted))
    found = [str(one) for one in check.faults(wanted, present, compare(wanted, present))]
    assert found == [
        "f.yaml:6:6: cluster olso/x, site: there is no site 'olso'; did you mean oslo?",
        "f.yaml:2:8: node a2, cluster: there is no cluster 'ashburn/mian'; did you mean ashburn/main?",
        "f.yaml:4:9: site oslo, grid_zone: a new row needs it",
    ]
    gone = read([("f.yaml", "clusters: []\nnodes:\n  a1: {cluster: ashburn/main}\n")])
    present = remote.read(api, needed_kinds(gone, prune=True))
    (fault,) = check.faults(gone, present, compare(gone, present, prune=True))
    assert "the cluster 'ashburn/main' would be deleted" in fault.words


@pytest.mark.slow("a whole fleet, twice")
def test_a_changed_version_is_entered_as_another_one_which_then_counts(api: Client) -> None:
    applied(api, FLEET)
    dearer = FLEET.replace("price_per_kwh: 0.08", "price_per_kwh: 0.09")
    assert labels(planned(api, dearer)) == ["~ tariff ashburn/2026-01-01T00:00:00Z/1"]
    applied(api, dearer)
    assert list(Tariff.objects.order_by("id").values_list("price_per_kwh", flat=True)) == [0.08, 0.09]
    assert planned(api, dearer).changes == ()
    contract = """
instruments:
  - site: ashburn
    kind: ppa
    valid_from: 2026-01-01T00:00:00+00:00
    valid_to: 2027-01-01T01:00:00+01:00
    source: PPA 12/a
    factor_g_per_kwh: 12.5
    generation: metered
    mix: {wind: 1}
instrument-hours:
  - instrument: "ashburn/ppa/2026-01-01T00:00:00Z/PPA 12/a"
    start_at: 2026-02-01T00:00:00Z
    energy_kwh: 10
    source: meter
"""
    assert applied(api, contract).error == ""
    assert planned(api, contract).changes == ()
    applied(api, contract.replace("12.5", "13"))
    assert list(Instrument.objects.order_by("id").values_list("replaces__factor_g_per_kwh", flat=True))[1] is not None
    assert planned(api, contract.replace("12.5", "13")).changes == ()


def test_the_partition_in_force_is_the_loops_once_a_service_is_there(api: Client) -> None:
    applied(api, FLEET)
    more = "partitions:\n  other: {}\nclasses:\n  - {partition: other, name: A, rank: 0}\n"
    applied(api, more)
    service = Service.objects.get()
    service.partition_id = RequestClass.objects.get(name="A").partition_id
    service.save()
    service.partitions.add(service.partition)
    assert planned(api, FLEET).changes == ()


def test_rows_of_other_sites_are_out_of_sight_and_their_change_is_refused(redis_client) -> None:
    seeded = seed.fleet()
    with fleet_api.as_person("operator", (seeded.sites[0],)) as api:
        assert [row.key for row in remote.read(api, ["sites"])["sites"]] == [("location-1",)]
        outcome = carry_out(api, planned(api, "sites:\n  location-1: {label: One}\n"), lambda change: None)
        assert outcome.error == ""
        wanted = read([("f", "models:\n  Llama3-70B: {max_model_len: 4096}\n")])
        outcome = carry_out(api, compare(wanted, remote.read(api, ["models"])), lambda change: None)
        assert "your role" in outcome.error
    assert Site.objects.get(name="location-1").label == "One"


@pytest.mark.parametrize("fleet", first(1, [demo.load, seed.everything], "a larger fleet"))
def test_export_is_a_file_for_which_nothing_is_to_be_done(api: Client, fleet: Any) -> None:
    fleet()
    if fleet is demo.load:
        demo.load_rates()
    text = export.text_of(remote.read(api, KINDS))
    wanted = read([("fleet.yaml", text)])
    plan = planned(api, text, prune=True)
    assert plan.changes == ()
    assert sum(plan.unchanged.values()) == sum(map(len, wanted.values())) > 40
    assert text == export.text_of(remote.read(api, KINDS))


def test_an_export_makes_the_same_fleet_where_there_is_none(api: Client, django_db_blocker) -> None:
    applied(api, FLEET)
    text = export.text_of(remote.read(api, KINDS))
    for name in reversed(tuple(KINDS)):
        registry.OWNED[name].model._default_manager.all().delete()
    outcome = applied(api, text)
    assert outcome.error == ""
    assert export.text_of(remote.read(api, KINDS)) == text


def test_rows_come_in_the_order_of_references_whatever_the_order_of_the_file(api: Client) -> None:
    plan = planned(api, FLEET)
    assert {change.action for change in plan.changes} == {Action.CREATE}
    kinds = [kind for kind in KINDS if kind in read([("f", FLEET)])]
    assert list(dict.fromkeys(change.kind for change in plan.changes)) == kinds
