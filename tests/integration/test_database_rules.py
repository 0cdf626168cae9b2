"""What the database itself refuses, and the partitions of the tables of samples."""

import copy
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from pools.models import (
    Gpu,
    Instance,
    InstanceGpu,
    Job,
    ModelCard,
    Node,
    Pool,
    Profile,
    RequestClass,
    Service,
    Site,
    Slo,
)
from scheduler.models import Decision, Epoch
from telemetry.models import CarbonFeed, CarbonPoint, EnergyEntry, GpuSample
from telemetry.storage import time_partitions
from tests.fakes.house import start_instance

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def service(demo_rows):
    return Service.objects.get()


def refused(constraint, action):
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        action()


REFUSED_UPDATES = [
    ("site_pue_at_least_1", Site, {"pue": 0.9}),
    ("site_power_cap_positive", Site, {"power_cap_w": 0}),
    ("site_currency_iso4217", Site, {"currency": "eur"}),
    ("gpu_clock_range", Gpu, {"min_mhz": 0}),
    ("gpu_clock_range", Gpu, {"max_mhz": 100}),
    ("gpu_positive", Gpu, {"tdp_w": 0}),
    ("model_card_max_model_len_positive", ModelCard, {"max_model_len": 0}),
    ("request_class_input_range", RequestClass, {"input_min": 10, "input_max": 10}),
    ("request_class_output_range", RequestClass, {"output_min": 10, "output_max": 5}),
    ("profile_positive", Profile, {"max_rps": -1}),
    ("profile_positive", Profile, {"power_w": 0}),
    ("slo_objective_positive", Slo, {"objective_s": 0}),
    ("slo_percentile_range", Slo, {"percentile": 101}),
]


@pytest.mark.parametrize(("constraint", "model", "values"), REFUSED_UPDATES)
def test_row_is_refused_when_a_value_is_out_of_range(service, constraint, model, values):
    refused(constraint, lambda: model.objects.update(**values))


def test_second_row_is_refused_when_it_must_be_one(service):
    pool, site, gpu = Pool.objects.first(), Site.objects.first(), Gpu.objects.first()
    card = service.model_card
    epoch = {
        "kind": "carbon",
        "service": service,
        "index": 7,
        "period_s": 60.0,
        "due_at": NOW,
        "started_at": NOW,
        "finished_at": NOW,
        "status": "held",
    }
    Epoch.objects.create(**epoch)
    Decision.objects.create(kind="clock", at=NOW, reason="slack", summary="x", source_key="a/b/1/0")
    refused("epoch_runs_once", lambda: Epoch.objects.create(**epoch))
    refused("source_key", lambda: Decision.objects.create(kind="clock", at=NOW, summary="y", source_key="a/b/1/0"))
    refused("pool_once", lambda: Pool.objects.create(service=service, site=pool.site, request_class=pool.request_class))
    refused("gpu_index_per_node", lambda: _copy(gpu, uuid="other"))
    refused("uuid", lambda: _copy(gpu, index=99))
    refused("carbon_feed_signal_per_site", lambda: CarbonFeed.objects.create(site=site, provider="static_csv"))
    refused("request_class_rank_per_partition", lambda: _copy(RequestClass.objects.first(), name="XX"))
    refused("profile_once_per_source", lambda: _copy(Profile.objects.first()))
    refused("slo_kind_per_service", lambda: _copy(Slo.objects.first()))
    refused("name", lambda: ModelCard.objects.create(name=card.name, max_model_len=1))


def _copy(row, **values):
    row = copy.copy(row)
    row.pk = None
    row._state.adding = True
    for name, value in values.items():
        setattr(row, name, value)
    row.save(force_insert=True)


def test_gpu_is_refused_when_a_live_instance_holds_it(service):
    pool, node = Pool.objects.first(), Node.objects.get(name="loc1-a100")
    first = start_instance(pool, node, tp=4)
    second = Instance.objects.create(pool=pool, node=node, model_card=service.model_card, gpu_type="A100-80GB", tp=4)
    gpu = node.gpus.first()
    refused("gpu_held_once", lambda: InstanceGpu.objects.create(instance=second, gpu=gpu))
    first.gpu_holds.update(released_at=NOW)
    InstanceGpu.objects.create(instance=second, gpu=gpu)


def test_site_is_kept_when_something_stands_on_it(service):
    with pytest.raises(IntegrityError), transaction.atomic():
        Site.objects.all().delete()


def test_progress_is_refused_when_over_one():
    refused("job_progress_range", lambda: Job.objects.create(kind="x", progress=1.1))


def test_emptying_is_refused_when_a_table_is_append_only():
    triggers = "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname LIKE %s ORDER BY 1"
    with connection.cursor() as cursor:
        cursor.execute(triggers, ["%\\_append\\_only"])
        tables = [name for (name,) in cursor.fetchall()]
        cursor.execute(triggers, ["%\\_no\\_truncate"])
        assert tables == [name for (name,) in cursor.fetchall()]
        assert {"pools_auditentry", "telemetry_energyentry", "telemetry_settlement"} < set(tables)
        for table in tables:
            with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
                cursor.execute(  # as outside of tests, which empty tables
                    f"ALTER TABLE {table} ENABLE TRIGGER {table}_no_truncate; TRUNCATE {table} CASCADE"
                )


def test_change_is_refused_when_a_table_is_append_only(service):
    feed, gpu = CarbonFeed.objects.first(), Gpu.objects.first()
    point = CarbonPoint.objects.create(
        feed=feed,
        start_at=NOW,
        end_at=NOW + timedelta(minutes=5),
        value_g_per_kwh=None,
        raw_unit="gCO2e/kWh",
        forecast=False,
        issued_at=NOW,
    )
    entry = EnergyEntry.objects.create(
        gpu=gpu,
        site=gpu.node.cluster.site,
        start_at=NOW,
        end_at=NOW + timedelta(seconds=10),
        kind="idle",
        energy_uj=1_000_000,
    )
    for row, values in ((point, {"value_g_per_kwh": 0.0}), (entry, {"energy_uj": 2}), (entry, {"kind": "serving"})):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            type(row).objects.filter(pk=row.pk).update(**values)
    refused("energy_entry_not_negative", lambda: _copy(entry, energy_uj=-1))
    refused("energy_entry_once", lambda: _copy(entry))
    refused("carbon_point_interval", lambda: _copy(point, end_at=NOW))


def test_rows_go_to_their_days_when_partitions_exist(service):
    days = [date(2026, 5, 1), date(2026, 5, 2)]
    time_partitions.ensure(days)
    time_partitions.ensure(days)
    gpu = Gpu.objects.first()
    for at in (NOW, NOW + timedelta(hours=12)):
        GpuSample.objects.create(at=at, gpu=gpu, energy_j=1.0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM telemetry_gpusample ORDER BY at")
        assert [name for (name,) in cursor.fetchall()] == [
            "telemetry_gpusample_20260501",
            "telemetry_gpusample_20260502",
        ]


def test_row_is_refused_when_its_day_has_no_partition(service):
    with pytest.raises(IntegrityError, match="no partition"), transaction.atomic():
        GpuSample.objects.create(at=datetime(2020, 1, 1, tzinfo=UTC), gpu=Gpu.objects.first())


def test_old_samples_go_and_requests_stay_when_partitions_are_kept():
    old = date(2026, 4, 1)
    time_partitions.ensure([old])
    dropped = time_partitions.keep(14, NOW)
    assert set(dropped) >= {"telemetry_gpusample_20260401", "telemetry_instancesample_20260401"}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT to_regclass('telemetry_requestrecord_20260401'), to_regclass('telemetry_gpusample_20260503')"
        )
        assert None not in cursor.fetchone()
