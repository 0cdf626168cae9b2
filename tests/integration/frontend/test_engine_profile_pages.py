"""Pages of measured profiles: the list, a version, a file brought in, published and withdrawn."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from core.engine.profiles import COLUMNS, profiles_of, table
from core.types import Mode
from pools import engine_knowledge
from pools.access.audit import Actor
from pools.models import EngineProfile
from scheduler.operations import engine_profiles
from tests.fakes import seed
from tests.fakes.engine_profiles import GPU, rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(admin_client: Client, redis_client: object) -> Client:
    return admin_client


def as_file(*profiles, name: str = "p.csv") -> SimpleUploadedFile:
    lines = [COLUMNS, *table(*profiles)]
    text = "\n".join(",".join("" if cell is None else str(cell) for cell in line) for line in lines)
    return SimpleUploadedFile(name, text.encode())


def test_file_is_brought_in_and_published(client: Client) -> None:
    (profile,) = profiles_of(rows(origin="a bench", measured_at="2026-11-02T08:30:00Z"))
    answer = client.post("/engine-profiles/import/", {"file": as_file(profile), "publish": "1"}, follow=True)
    page = answer.content.decode()
    for words in ("1 of 1 versions are new", GPU, "published", "a bench", "25", "-10"):
        assert words in page
    assert EngineProfile.objects.get().published_at is not None


def test_wrong_file_is_answered_with_row_and_field(client: Client) -> None:
    (profile,) = profiles_of(rows())
    text = as_file(profile).read().decode().replace("1005.0", "soon", 1)
    wrong = client.post("/engine-profiles/import/", {"file": SimpleUploadedFile("p.csv", text.encode())})
    assert re.search(r"mhz: row \d+: &#x27;soon&#x27; is not a number", wrong.content.decode())
    nothing = client.post("/engine-profiles/import/", {"file": SimpleUploadedFile("p.json", b"{")})
    assert "not JSON" in nothing.content.decode()
    assert "choose a file" in client.post("/engine-profiles/import/").content.decode()
    assert not EngineProfile.objects.exists()


def test_version_is_published_withdrawn_and_downloaded(client: Client) -> None:
    ((first,), (second,)) = (engine_profiles.bring_in(Actor(), rows(slower)) for slower in (1.25, 1.5))
    engine_profiles.publish(Actor(), first.row)
    page = client.get(f"/engine-profiles/{second.row.pk}/").content.decode()
    assert f'href="/engine-profiles/{first.row.pk}/"' in page
    assert "publishing this one withdraws that" in page
    done = client.post(f"/engine-profiles/{second.row.pk}/publish/", follow=True).content.decode()
    assert "Decisions about this configuration go by it." in done
    withdrawn = client.post(f"/engine-profiles/{second.row.pk}/withdraw/", follow=True).content.decode()
    assert "decisions go by the closed form" in withdrawn
    text = client.get(f"/engine-profiles/{second.row.pk}/csv/").content.decode()
    (again,) = engine_profiles.bring_in_csv(Actor(), text)
    assert not again.created
    assert "kept" in client.get("/engine-profiles/", {"state": "kept"}).content.decode()


def test_pages_of_pools_and_models_say_what_their_figures_rest_on(client: Client) -> None:
    seeded = seed.everything(minutes=1)
    pool = next(pool for pool in seeded.pools if pool.workers)
    card, mode = seeded.service.model_card, Mode.parse(next(name for name, count in pool.workers.items() if count))
    assert f"{mode.name}: modelled" in client.get(f"/pools/{pool.pk}/").content.decode()
    at = (timezone.now() - timedelta(hours=3)).isoformat()
    given = rows(model=card.engine_model_name, gpu=mode.gpu, tp=mode.tp, origin="a bench", measured_at=at)
    engine_profiles.bring_in(Actor(), given, publish=True)
    engine_knowledge.refresh()
    for path in (f"/pools/{pool.pk}/", f"/models/{card.pk}/"):
        page = client.get(path).content.decode()
        assert re.search(rf"{mode.name}: measured [\d.]+\s(h|min) ago", page), path
        assert "a bench" in page
