"""`greenserve engine publish`: a file's profiles at a running GreenServe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from core.engine.profiles import profiles_of, write_profile
from greenserve.cli import cli
from greenserve.commands import node_profile
from pools.access import people
from pools.access.audit import Actor
from pools.access.rights import Right
from pools.model_files.hugging_face import shape_of_document
from pools.models import EngineProfile
from pools.profiler.session import Order
from tests.fakes.engine_profiles import rows
from tests.fakes.hub import LLAMA

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run(live_server, redis_client, monkeypatch: pytest.MonkeyPatch):
    user, _ = people.create(Actor(), "ada", "administrator", password="a long pass phrase")
    token = people.new_token(Actor(), user, "files", [right.value for right in Right])[1]
    monkeypatch.setenv("GREENSERVE_URL", live_server.url)
    monkeypatch.setenv("GREENSERVE_TOKEN", token)

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(cli, ["engine", "publish", *map(str, arguments)])

    return call


@pytest.mark.parametrize("name", ["p.csv", "p.json"])
def test_file_is_published_once(run, tmp_path: Path, name: str) -> None:
    write_profile(tmp_path / name, *profiles_of(rows()))
    kept = run(tmp_path / name, "--keep")
    assert "stored: Llama3-8B on 1 x A100-80GB" in kept.output, kept.output
    done = run(tmp_path / name, "--json")
    assert json.loads(done.output)["created"] == 0
    assert EngineProfile.objects.get().published_at is not None


def test_wrong_row_is_named_and_nothing_is_changed(run, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps([{**rows()[0], "t_s": -1}]))
    refused = run(path)
    assert refused.exit_code == 1
    assert "row 1: -1 is negative" in refused.output
    assert "nothing was changed" in refused.output
    path.write_text("{")
    assert "not JSON" in run(path).output
    assert not EngineProfile.objects.exists()


def test_what_was_profiled_is_published_when_asked_for(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measuring itself is left out: it writes the file that its order names."""
    orders = []

    def measured(order: Order, node: object) -> list[object]:
        orders.append(order)
        write_profile(order.out, *profiles_of(rows(model=order.shape)))
        return []

    monkeypatch.setattr(node_profile, "_run", measured)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    words = ["node", "profile", "--model", "our-tuned", "--config", tmp_path, "--out", tmp_path / "p.csv", "--publish"]
    words += ["--control", "http://127.0.0.1:9", "--vllm-argument=--kv-cache-dtype=fp8"]
    done = CliRunner().invoke(cli, list(map(str, words)))
    assert done.exit_code == 0, done.output
    assert "published: " in done.output
    shape = shape_of_document(LLAMA, kv_bits=8.0).key
    assert (orders[0].model, orders[0].shape) == ("our-tuned", shape)
    stored = EngineProfile.objects.get()
    assert (stored.shape, stored.published_at is not None) == (shape, True)
