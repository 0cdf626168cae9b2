"""Settled lines by LoRA adapter: they are parts of their service's, to the last unit, in every amount."""

import pytest
from django.db import transaction
from django.db.models import F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pools.models import Node, Service
from telemetry.ledger import settled_reader, settlement
from telemetry.models import RequestRecord, StatementHour, StatementLine
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import END, LATER, START
from tests.oracles import settled_lines

pytestmark = pytest.mark.django_db

WHOSE = ("start_at", "kind", "pool_id", "service", "tenant_id")


@pytest.fixture
def instance(demo_rows):
    found = start_instance(Service.objects.get().pools.first(), Node.objects.get(name="loc1-a100"), tp=2)
    metering.quarter_hour(found)
    return found


def ask_by(*names):
    """Has the requests ask for these adapters, in turn."""
    for n, record in enumerate(RequestRecord.objects.order_by("started_at")):
        record.adapter = names[n % len(names)] or None
        record.save(update_fields=["adapter"])


def settled(by=WHOSE, as_of=None):
    settlement.settle(moment(LATER))
    return settled_lines.totals(moment(START), moment(END), by, as_of)


def summed(parts):
    """Adds up what differs in the last part of its key alone."""
    found = {}
    for key, amounts in parts.items():
        own = found.setdefault(key[:-1], dict.fromkeys(amounts, 0))
        for name, amount in amounts.items():
            own[name] += amount
    return found


@given(st.lists(st.sampled_from(["", "legal", "medical", "poetry"]), min_size=1, max_size=7))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_adapters_and_no_adapter_add_up_to_the_service_whatever_is_asked_for(instance, names):
    with transaction.atomic():
        ask_by("")
        whole = settled()
        transaction.set_rollback(True)
    with transaction.atomic():
        ask_by(*names)
        parts = settled((*WHOSE, "adapter"))
        transaction.set_rollback(True)
    assert summed(parts) == whole
    asked_for = {names[n % len(names)] for n in range(60)}
    assert {key[-1] for key in parts if key[1] == "serving"} == asked_for
    assert {key[-1] for key in parts if key[1] != "serving"} <= {""}


def test_reversals_and_hours_keep_the_adapter_when_a_window_is_restated(instance):
    ask_by("legal", "")
    before = settled(("kind", "adapter"))
    metering.intensity(instance.node.cluster.site, START, 300.0, 500.0, issued_s=START + 5_000)
    assert settlement.restate(moment(LATER), moment(START)) == 1
    after = settled(("kind", "adapter"))
    assert after["serving", "legal"]["energy_uj"] == before["serving", "legal"]["energy_uj"]
    assert after["serving", "legal"]["carbon_ug"] > before["serving", "legal"]["carbon_ug"]
    taken_back = StatementLine.objects.filter(entry="reversal", kind="serving")
    assert set(taken_back.values_list("adapter", flat=True)) == {"legal", ""}
    (hour,) = StatementHour.objects.filter(lines__gt=0, adapter="legal").values("energy_uj")[:1]
    assert hour["energy_uj"] == after["serving", "legal"]["energy_uj"]


def test_request_has_the_rates_of_its_adapters_line_when_it_named_one(instance):
    ask_by("legal", "")
    settled()
    record = RequestRecord.objects.filter(adapter="legal").select_related("pool__site").order_by("started_at").first()
    use = settled_reader.of_request(record)
    assert use is not None
    assert use.measured
    assert use.carbon_gco2e == pytest.approx(use.energy_j * 1.2 * 400 / 3.6e6, rel=1e-3)
    assert use.cost == pytest.approx(use.energy_j * 1.2 * 0.2 / 3.6e6, rel=1e-3)


def test_request_has_the_rates_of_its_service_when_its_window_was_settled_before_lines_named_adapters(instance):
    settled()
    RequestRecord.objects.update(adapter=F("request_id"))
    record = RequestRecord.objects.select_related("pool__site").order_by("started_at").first()
    use = settled_reader.of_request(record)
    assert use is not None
    assert use.cost == pytest.approx(use.energy_j * 1.2 * 0.2 / 3.6e6, rel=1e-3)
