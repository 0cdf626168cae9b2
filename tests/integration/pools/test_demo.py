import json
import stat
from io import StringIO

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command

from core.engine import measured
from core.types import Source
from pools import demo, engine_measurements, writes
from pools.demo import carbon_curve
from pools.demo.demo_credentials import CredentialsError
from pools.demo.demo_fleet import profile_rows
from pools.models import ApiKey, EngineProfile, Gpu, Node, Pool, Profile, RequestClass, Service, Site, Slo, Tenant
from telemetry.models import CarbonFeed, GpuRate, Tariff

pytestmark = pytest.mark.django_db
TABLES = (ApiKey, Gpu, Node, Pool, Profile, RequestClass, Service, Site, Slo, Tenant, CarbonFeed)


def counts() -> dict[str, int]:
    return {model.__name__: model.objects.count() for model in TABLES}


def test_demo_is_the_papers_testbed_when_loaded():
    demo.load()
    by_node = {node.name: (node.gpus.first().gpu_type, node.gpus.count()) for node in Node.objects.all()}
    assert by_node == {
        "loc1-a100": ("A100-80GB", 4),
        "loc1-h100": ("H100-SXM-80GB", 4),
        "loc2-a100-8": ("A100-80GB", 8),
        "loc2-a100-4": ("A100-80GB", 4),
        "loc2-h100": ("H100-SXM-80GB", 2),
        "loc3-a100": ("A100-80GB", 8),
    }
    assert Pool.objects.count() == 3 * (4 + 4 + 9 + 1)  # FREESH's two partitions, DynamoLLM's, and one class of all
    assert {p.name for p in Service.objects.get().partitions.all()} == {"freesh-a", "freesh-b"}
    assert Profile.objects.count() == 32
    assert set(Gpu.objects.filter(node__name="loc1-h100").values_list("uuid", flat=True)) == {
        f"SIM-loc1-h100-{index}" for index in range(4)
    }
    assert not Profile.objects.exclude(source__contains="2511.00807").exists()


def test_nothing_is_added_and_edits_are_kept_when_demo_is_loaded_twice():
    demo.load()
    before = counts()
    Site.objects.filter(name="location-2").update(label="Chicago", pue=1.2)
    Profile.objects.filter(gpu_type="H100-SXM-80GB").update(max_rps=1.5)
    Slo.objects.filter(kind="ttft").update(objective_s=1.0)
    Service.objects.get().slos.filter(kind="tpot").delete()
    demo.load()
    assert counts() == before | {"Slo": 2}
    site = Site.objects.get(name="location-2")
    assert (site.label, site.pue) == ("Chicago", 1.2)
    assert Profile.objects.filter(max_rps=1.5).count() == 8
    assert Slo.objects.get(kind="ttft").objective_s == 1.0


def test_invented_prices_say_so_and_are_not_added_twice():
    call_command("load_demo", stdout=StringIO())
    call_command("load_demo", stdout=StringIO())
    assert sorted(Tariff.objects.values_list("site__name", flat=True)) == ["location-1", "location-2", "location-3"]
    assert sorted(GpuRate.objects.values_list("gpu_type", flat=True)) == ["A100-80GB", "H100-SXM-80GB"]
    for row in (*Tariff.objects.all(), *GpuRate.objects.all()):
        row.full_clean()
        assert "Synthetic" in row.source


def test_figure_is_empty_with_a_note_when_the_source_is_impossible():
    demo.load()
    row = Profile.objects.get(
        request_class__partition__name="freesh-a", request_class__name="SS", gpu_type="H100-SXM-80GB"
    )
    assert row.tpot_s is None
    assert "slip" in row.note


def test_fixture_agrees_with_the_recorded_profiles_when_they_are_at_hand(test_data):
    import csv

    with (test_data / "freesh_profiles.csv").open() as file:
        recorded = {(f"freesh-{r['partition']}", r["req"], r["gpu"], r["tp"]): r for r in csv.DictReader(file)}
    rows = list(profile_rows())
    assert len(rows) == len(recorded) == 32
    for row in rows:
        other = recorded[row["partition"], row["request_class"], row["gpu_type"], row["tp"]]
        assert float(row["max_rps"]) == pytest.approx(float(other["max_qps"]))
        assert float(row["power_w"]) == pytest.approx(float(other["power_w"]), abs=0.01)
        assert float(row["e2e_s"]) == pytest.approx(float(other["latency_s"]), abs=1e-3)
        assert float(row["ttft_s"]) == pytest.approx(float(other["ttft_ms"]) / 1000, abs=1e-5)
        if row["tpot_s"]:
            assert float(row["tpot_s"]) == pytest.approx(float(other["tbt_ms"]) / 1000, abs=1e-5)


def test_grid_day_is_its_formula_when_written_again(tmp_path):
    carbon_curve.write(tmp_path / "day.csv")
    assert (tmp_path / "day.csv").read_text() == carbon_curve.FILE.read_text()


def test_credentials_are_private_and_work_when_made(tmp_path):
    demo.load()
    found = demo.ensure_demo_credentials(tmp_path)
    path = demo.credentials_path(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == found
    assert list(tmp_path.iterdir()) == [path]
    assert get_user_model().objects.get(username="admin").check_password(found["admin"]["password"])
    assert sorted(found["api_keys"]) == ["acme", "birch", "cobalt", "dune"]
    for tenant, secret in found["api_keys"].items():
        assert ApiKey.objects.get(key_hash=writes.hash_secret(secret)).tenant.name == tenant
        assert not ApiKey.objects.filter(key_hash=secret).exists()


def test_credentials_stay_the_same_when_asked_for_twice(tmp_path):
    first = demo.ensure_demo_credentials(tmp_path)
    assert demo.ensure_demo_credentials(tmp_path) == first
    assert ApiKey.objects.count() == 4


def test_credentials_are_restored_from_the_file_when_the_database_is_new(tmp_path):
    first = demo.ensure_demo_credentials(tmp_path)
    ApiKey.objects.all().delete()
    Tenant.objects.all().delete()
    get_user_model().objects.all().delete()
    assert demo.ensure_demo_credentials(tmp_path) == first
    assert ApiKey.objects.count() == 4
    assert get_user_model().objects.get(username="admin").check_password(first["admin"]["password"])


def test_changed_password_and_revoked_key_stay_when_credentials_are_ensured(tmp_path):
    demo.ensure_demo_credentials(tmp_path)
    user = get_user_model().objects.get(username="admin")
    user.set_password("of my own")
    user.save()
    ApiKey.objects.update(revoked_at="2026-01-01T00:00Z")
    demo.ensure_demo_credentials(tmp_path)
    assert get_user_model().objects.get(username="admin").check_password("of my own")
    assert not ApiKey.objects.filter(revoked_at__isnull=True).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"admin": {"user": "admin"}}', '{"admin": 3, "api_keys": {}}'])
def test_damaged_file_is_named_when_credentials_are_read(tmp_path, text):
    demo.credentials_path(tmp_path).write_text(text)
    with pytest.raises(CredentialsError, match=r"demo-credentials\.json is damaged: remove it"):
        demo.ensure_demo_credentials(tmp_path)


def test_one_engine_is_measured_beside_the_modelled_ones():
    call_command("load_demo", stdout=StringIO())
    engine_measurements.refresh()
    row = EngineProfile.objects.get()
    assert (row.origin, row.source) == ("measured on the demo's simulated node loc2-a100-8", "measured")
    assert Gpu.objects.filter(node__name="loc2-a100-8", gpu_type=row.gpu_type).count() == row.tp
    model, engine = row.model_name, row.engine
    assert measured.engine_costs(model, row.gpu_type, row.tp, engine).source is Source.MEASURED
    assert measured.engine_costs(model, row.gpu_type, 4, engine).source is Source.MODELLED
    EngineProfile.objects.update(published_at=None)
    call_command("load_demo", stdout=StringIO())
    assert EngineProfile.objects.get().published_at is None
