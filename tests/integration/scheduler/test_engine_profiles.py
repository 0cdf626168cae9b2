"""Measured profiles: brought in once, published one at a time, and known to a process that reads the tables."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from core.engine import measured
from core.engine.corrections import KNOTS, configuration
from core.engine.profiles import rows_of_csv
from core.types import Source
from pools import engine_measurements, wire
from pools.access.audit import Actor
from pools.agent.redis_link import RedisLink
from pools.models import AuditEntry, EngineProfile, EngineResidual, Gpu, Node
from scheduler.control.apply.publish import publish
from scheduler.operations import engine_profiles
from tests.fakes import seed
from tests.fakes.engine_profiles import ENGINE, GPU, MODEL, rows

pytestmark = pytest.mark.django_db
SYSTEM = Actor()
KEY = configuration(MODEL, GPU, 1, ENGINE)


def bring_in(**options):
    (found,) = engine_profiles.bring_in(SYSTEM, rows(**options))
    return found


def published() -> list[str]:
    return list(EngineProfile.objects.filter(published_at__isnull=False).values_list("version", flat=True))


def test_the_same_content_is_one_version():
    first, again, other = bring_in(), bring_in(), bring_in(slower=1.5)
    assert (first.created, again.created, other.created) == (True, False, True)
    assert first.row.pk == again.row.pk
    assert EngineProfile.objects.count() == 2
    assert AuditEntry.objects.filter(action="created", kind="engineprofile").count() == 2
    assert "points" not in AuditEntry.objects.first().after


def test_profiles_of_several_configurations_come_in_one_table():
    found = engine_profiles.bring_in(SYSTEM, rows() + rows(tp=2))
    assert {one.row.tp for one in found} == {1, 2}


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        ({"t_s": -1.0}, "t_s", "row 2: -1 is negative"),
        ({"mhz": 9000.0}, "mhz", "row 2: 9000 is outside"),
        ({"watts": None}, "watts", "row 2: missing"),
        ({"measured_at": "soon"}, "measured_at", "row 2: 'soon' is no time"),
        ({"gpu": "Abacus"}, "gpu", "row 2: "),
        ({"batch": 3}, "batch", "a hole"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_stored(row, field, words):
    given = rows()
    given[1] = {**given[1], **row}
    with pytest.raises(ValidationError) as caught:
        engine_profiles.bring_in(SYSTEM, given)
    assert caught.value.message_dict[field][0].startswith(words)
    assert not EngineProfile.objects.exists()


def test_a_profile_without_sense_is_refused():
    given = rows()
    given[0]["t_s"] = given[1]["t_s"] * 100.0
    given[0]["context_tokens"], given[1]["context_tokens"] = 4000.0, 4100.0
    given.insert(2, {**given[1], "context_tokens": 9000.0, "t_s": 1e-6})
    with pytest.raises(ValidationError, match="lie on no line"):
        engine_profiles.bring_in(SYSTEM, given)


def test_one_version_is_published_at_a_time():
    first, second = bring_in().row, bring_in(slower=1.5).row
    engine_profiles.publish(SYSTEM, first)
    assert published() == [first.version]
    engine_profiles.publish(SYSTEM, second)
    assert published() == [second.version]
    engine_profiles.withdraw(SYSTEM, second)
    engine_profiles.withdraw(SYSTEM, second)
    assert published() == []
    actions = list(AuditEntry.objects.exclude(action="created").order_by("pk").values_list("action", flat=True))
    assert actions == ["published", "withdrawn", "published", "withdrawn"]


def test_only_who_operates_everything_publishes():
    person = get_user_model().objects.create_user("guest")
    with pytest.raises(PermissionDenied):
        engine_profiles.publish(Actor(person, None, "page"), bring_in().row)


def test_a_process_follows_what_is_published():
    row = bring_in(measured_at="2026-11-02T08:30:00Z", origin="a bench").row
    engine_measurements.refresh()
    assert measured.profile_of(KEY) is None
    engine_profiles.publish(SYSTEM, row)
    engine_measurements.refresh()
    assert measured.profile_of(KEY).version == row.version
    assert measured.basis(KEY) == measured.Basis(Source.MEASURED, datetime(2026, 11, 2, 8, 30, tzinfo=UTC).timestamp())
    engine_profiles.withdraw(SYSTEM, row)
    engine_measurements.refresh()
    assert measured.profile_of(KEY) is None


def test_a_process_follows_residuals():
    at = timezone.now()
    shape, gpu, tp, engine = KEY
    row = EngineResidual.objects.create(
        shape=shape, gpu_type=gpu, tp=tp, engine=engine, time=[1.2] * KNOTS, power=[0.9] * KNOTS, at=at
    )
    engine_measurements.refresh()
    assert measured.residual_of(KEY).time == (1.2,) * KNOTS
    assert measured.basis(KEY) == measured.Basis(Source.CALIBRATED, at.timestamp())
    row.delete()
    engine_measurements.refresh()
    assert measured.residual_of(KEY) is None


def test_nothing_new_costs_one_short_query():
    engine_profiles.publish(SYSTEM, bring_in().row)
    engine_measurements.refresh()
    with CaptureQueriesContext(connection) as queries:
        engine_measurements.refresh()
    assert len(queries) == 1


def test_a_download_is_the_same_version_again():
    row = bring_in(measured_at="2026-11-02T08:30:00+00:00", origin="=a bench").row
    (again,) = engine_profiles.bring_in_csv(SYSTEM, engine_profiles.csv_of(row))
    assert (again.row.pk, again.created) == (row.pk, False)
    assert "'=a bench" in engine_profiles.csv_of(row)
    assert len(list(rows_of_csv(engine_profiles.csv_of(row)))) == row.point_count


def test_the_largest_difference_from_the_closed_form_is_shown():
    found = engine_profiles.difference(bring_in(slower=1.25, hotter=0.9).row)
    assert found == pytest.approx((1.25, 0.9))
    no_gpu = [{**one, "gpu": "CPU", "mhz": 1000.0} for one in rows(clocks=(600.0,))]
    (cpu,) = engine_profiles.bring_in(SYSTEM, no_gpu)
    assert engine_profiles.difference(cpu.row) is None


def test_agents_and_gateways_get_what_was_measured_of_their_engines(redis_client):
    seeded = seed.fleet()
    card, gpu = seeded.service.model_card, Gpu.objects.first()
    given = rows(model=card.engine_model_name, gpu=gpu.gpu_type, tp=4) + rows(model="Qwen3-8B", gpu=gpu.gpu_type)
    versions = {}
    for one in engine_profiles.bring_in(SYSTEM, given):
        engine_profiles.publish(SYSTEM, one.row)
        versions[one.row.configuration] = one.row.version
    own = configuration(card.engine_model_name, gpu.gpu_type, 4, card.engine)
    shape, gpu_type, tp, engine = own
    kind = {"shape": shape, "gpu_type": gpu_type, "tp": tp, "engine": engine, "state": {"base": versions[own]}}
    EngineResidual.objects.create(**kind, time=[1.2] * KNOTS, power=[0.9] * KNOTS, at=timezone.now())
    publish(redis_client, timezone.now())
    index = wire.decode(redis_client.get(wire.FLEET_INDEX_KEY), wire.FleetIndex)
    (message,) = index.measured
    assert (message.configuration, message.residual.time) == (own, (1.2,) * KNOTS)
    agent = RedisLink(settings.REDIS_URL, gpu.node.name)
    desired = agent.desired()
    agent.close()
    assert desired.measured == [message]
    assert [one.version for one in desired.profiles] == [message.profile]
    elsewhere = [
        wire.decode(redis_client.get(wire.desired_key(node.name)), wire.DesiredNode)
        for node in Node.objects.exclude(gpus__gpu_type=gpu.gpu_type)
    ]
    assert not any(node.measured for node in elsewhere)
