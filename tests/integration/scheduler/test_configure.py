"""Changes to what an operator owns: checked, shown beforehand, written down; and what is in use stays."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.utils import timezone

from pools.access.audit import Actor
from pools.models import AuditEntry, Membership, ModelCard, Pool, RequestClass, Service, Site, Slo
from scheduler.control import service_policy
from scheduler.operations.configure import changes, consequences, registry
from telemetry.models import CarbonFeed, Tariff

pytestmark = pytest.mark.django_db
SYSTEM = Actor(channel="system")


@pytest.fixture
def service(demo_rows, redis_client):
    return Service.objects.get()


def texts(instance, level):
    return [item.text for item in consequences.of(instance) if item.level == level]


def site(**values):
    return Site(**{"name": "oslo", "label": "Oslo", "grid_zone": "NO-NO1", "time_zone": "Europe/Oslo", **values})


def test_registry_names_real_fields_when_it_is_read():
    for owned in registry.OWNED.values():
        for name in (*owned.fields, *owned.lookup, *owned.columns):
            assert owned.has(name), (owned.kind, name)
        assert owned.help
        assert registry.of(owned.model) is owned


def test_row_is_entered_and_on_record_when_an_operator_makes_one(service, operator):
    made = changes.create(operator, site())
    assert Site.objects.get(name="oslo") == made
    entry = AuditEntry.objects.get(action="created")
    assert (entry.who, entry.channel, entry.before) == ("olga", "page", None)
    assert entry.after["grid_zone"] == "NO-NO1"
    made.pue = 1.2
    changes.update(operator, made)
    entry = AuditEntry.objects.get(action="changed")
    assert (entry.before["pue"], entry.after["pue"]) == (1.54, 1.2)
    changes.update(operator, made)
    assert AuditEntry.objects.filter(action="changed").count() == 1  # nothing changed


def test_the_field_is_named_when_a_value_makes_no_sense(service, operator):
    with pytest.raises(ValidationError) as caught:
        changes.create(operator, site(time_zone="Europe/Olso"))
    assert "Europe/Olso" in caught.value.message_dict["time_zone"][0]
    with pytest.raises(ValidationError) as caught:
        changes.create(operator, site(pue=0.9))
    assert "pue" in caught.value.message_dict
    with pytest.raises(ValidationError) as caught:
        changes.create(operator, CarbonFeed(site=Site.objects.first(), signal="marginal", provider="nobody"))
    assert "known are" in caught.value.message_dict["provider"][0]
    assert not AuditEntry.objects.exists()


def test_it_is_refused_when_the_role_does_not_reach_so_far(service, operator):
    with pytest.raises(PermissionDenied, match="prices"):
        changes.create(operator, Tariff(site=Site.objects.first(), currency="EUR", price_per_kwh=0.1))
    member = Membership.objects.get(user=operator.user)
    member.sites.set([Site.objects.first()])
    scoped = Actor(get_user_model().objects.get(pk=operator.user.pk), None, "page")
    with pytest.raises(PermissionDenied, match="none of your sites"):
        changes.update(scoped, Site.objects.last())
    with pytest.raises(PermissionDenied, match="more than the sites"):
        changes.update(scoped, Service.objects.get())
    changes.update(scoped, Site.objects.first())


def test_the_holder_is_named_when_something_in_use_is_deleted(service, operator):
    with pytest.raises(ValidationError, match=r"in use by .*service llama3-70b"):
        changes.delete(operator, service.model_card)
    assert ModelCard.objects.exists()
    free = changes.create(operator, site())
    changes.delete(operator, free)
    assert AuditEntry.objects.get(action="deleted").before["name"] == "oslo"
    assert any("decisions" in item.text or "pool" in item.text for item in consequences.of_deletion(service))


def test_best_latency_is_shown_when_an_slo_cannot_be_met(service):
    slo = Slo(service=service, kind="tpot", objective_s=0.0005)
    (text,) = texts(slo, "warning")
    assert "cannot be met by any profile of this model: best TPOT" in text
    assert text.rstrip(".").endswith("ms")
    slo.objective_s = 60.0
    assert texts(slo, "warning") == []


def test_cap_below_idle_power_is_shown_when_a_site_is_changed(service):
    at = Site.objects.exclude(clusters=None).first()
    at.power_cap_w = 10.0
    assert "idle" in texts(at, "warning")[0]
    at.power_cap_w = None
    assert texts(at, "warning") == []


def test_a_model_too_large_is_shown_when_no_node_holds_it(service):
    assert texts(ModelCard(name="Llama3-70B", max_model_len=8192), "info")
    assert "does not know" in texts(ModelCard(name="Nobody-7B", max_model_len=8192), "warning")[0]


def test_versions_stay_when_a_tariff_is_edited(service):
    at, now = Site.objects.first(), timezone.now()
    Tariff.objects.filter(site=at).delete()
    first = changes.create(
        SYSTEM,
        Tariff(
            site=at,
            currency=at.currency,
            price_per_kwh=0.1,
            valid_from=now - timedelta(days=30),
            valid_to=now - timedelta(days=10),
            source="contract 1",
            version="1",
        ),
    )
    first.price_per_kwh, first.valid_from, first.valid_to, first.version = 0.2, now, None, "2"
    assert "Nothing is valid from" in texts(first, "warning")[0]
    second = changes.update(SYSTEM, first)
    assert second.pk != Tariff.objects.get(version="1").pk
    assert list(Tariff.objects.filter(site=at).values_list("price_per_kwh", flat=True)) == [0.1, 0.2]
    with pytest.raises(ValidationError, match="never deleted"):
        changes.delete(SYSTEM, second)


def test_pools_and_policy_follow_when_a_service_is_changed(service):
    at = changes.create(SYSTEM, site())
    cell = RequestClass.objects.filter(partition=service.partition).first()
    changes.create(SYSTEM, Pool(service=service, site=at, request_class=cell))
    cells = RequestClass.objects.filter(partition__services=service).count() + 1  # and that of the policy's partition
    assert Pool.objects.filter(site=at).count() == cells > 2
    assert not service_policy.taken_up(service, timezone.now())
    service.policy = "dynamollm"
    changes.update(SYSTEM, service)
    assert Pool.objects.filter(site=at).count() > cells
    assert service_policy.taken_up(service, timezone.now())
    service.knobs = {"clock": "sideways"}
    with pytest.raises(ValidationError) as caught:
        changes.update(SYSTEM, service)
    assert "clock: unknown 'sideways'; known: fixed" in caught.value.message_dict["knobs"][0]
