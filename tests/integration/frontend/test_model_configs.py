"""A model's config.json: in forms, from the hub, by REST, in imports, and in the files of a fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.contrib.auth import get_user_model
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client as Browser
from django.urls import reverse

from greenserve.apply import export, remote
from greenserve.apply.document import read
from greenserve.apply.execution import carry_out
from greenserve.apply.kinds import KINDS
from greenserve.apply.plan import compare, needed_kinds
from greenserve.client import Client
from greenserve.client.errors import InvalidError
from pools.model_files.hugging_face import shape_of_document
from pools.models import Cluster, Gpu, Membership, ModelCard, Node, Site
from tests.fakes import fleet_api
from tests.fakes.hub import LLAMA, MOE, Hub

pytestmark = pytest.mark.django_db
NAMED = {"name": "acme-tuned", "max_model_len": "8192", "engine": "vllm-v1", "dtype": "auto"}
STATED = {"engine_arguments": "[]", "engine_environment": "{}", "hugging_face_id": "acme/tuned"}
MAMBA = {"model_type": "mamba", "hidden_size": 768}


@pytest.fixture(autouse=True)
def _nothing_counted(redis_client: Any) -> None:
    """Rate limits begin anew with each test."""


@pytest.fixture
def new() -> str:
    return reverse("configure-new", args=["models"])


def errors(answer: Any) -> dict[str, list[str]]:
    return {name: list(texts) for name, texts in answer.context["form"].errors.items()}


def test_card_is_stored_with_the_shape_of_what_is_pasted(admin_client: Browser, new: str) -> None:
    form = {**NAMED, **STATED, "config": json.dumps(LLAMA)}
    shown = admin_client.post(reverse("configure-consequences", args=["models"]), form).content.decode()
    assert "Computed from config.json: 8.03 billion parameters, 16.1 GB of weights (16 bits)" in shown
    assert admin_client.post(new, form).status_code == 302
    card = ModelCard.objects.get()
    assert (card.config, card.shape) == (LLAMA, shape_of_document(LLAMA).key)
    page = admin_client.get(reverse("model", args=[card.pk])).content.decode()
    for words in ("8.03 billion", "16.1 GB (16 bits)", "131 kB a token (16 bits)", "computed from config.json"):
        assert words in page
    edited = admin_client.get(reverse("configure-edit", args=["models", card.pk])).content.decode()
    assert "num_hidden_layers" in edited


def test_form_shows_no_config_as_an_empty_field(admin_client: Browser, new: str) -> None:
    card = ModelCard.objects.create(name="Llama3-8B", max_model_len=8192)
    for page in (new, reverse("configure-edit", args=["models", card.pk])):
        form = admin_client.get(page).context["form"]
        assert form["config"].value() in (None, "")
        assert ">null</textarea>" not in admin_client.get(page).content.decode().replace("\n", "")
    page = admin_client.get(reverse("model", args=[card.pk])).content.decode()
    assert "of GreenServe&#x27;s list of models" in page


def test_model_that_nobody_knows_is_warned_of(admin_client: Browser, new: str) -> None:
    shown = admin_client.post(new, {**NAMED, **STATED})
    assert "Of any other it needs the config." in shown.content.decode()
    card = ModelCard.objects.create(name="acme", max_model_len=8192)
    assert "not known: give its config.json" in admin_client.get(reverse("model", args=[card.pk])).content.decode()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (json.dumps(MAMBA), "&#x27;mamba&#x27; is none that can be computed"),
        (json.dumps({**LLAMA, "vocab_size": None}), "vocab_size"),
        ("{", "Enter a valid JSON"),
        ('{"model_type": "llama", "hidden_size": NaN}', "is no number"),
        ("[]", "not an object of fields"),
        ('"/etc/passwd"', "not an object of fields"),
    ],
)
def test_config_is_refused_at_its_field_with_the_reason(
    admin_client: Browser, new: str, config: str, words: str
) -> None:
    answer = admin_client.post(new, {**NAMED, **STATED, "config": config})
    assert list(errors(answer)) == ["config"]
    assert words in answer.content.decode()
    assert not ModelCard.objects.exists()


def test_config_is_fetched_into_the_form_and_stored_with_it(
    admin_client: Browser, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(monkeypatch)
    filled = admin_client.post(new, {**NAMED, **STATED, "fetch_config": "1"})
    assert hub.asked == ["https://huggingface.co/acme/tuned/resolve/main/config.json"]
    assert not ModelCard.objects.exists()
    form = filled.context["form"]
    assert json.loads(form["config"].value()) == LLAMA
    assert "8.03 billion parameters" in filled.content.decode()
    assert admin_client.post(new, {**NAMED, **STATED, "config": form["config"].value()}).status_code == 302
    card = ModelCard.objects.get()
    hub.answer = httpx2.Response(200, json=MOE)
    edit = reverse("configure-edit", args=["models", card.pk])
    changed = admin_client.post(edit, {**NAMED, **STATED, "fetch_config": "1"})
    assert json.loads(changed.context["form"]["config"].value()) == MOE
    assert ModelCard.objects.get().config == LLAMA


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("acme/tuned", httpx2.ConnectError("no network"), "the hub could not be asked (no network)"),
        ("acme/tuned", httpx2.Response(401), "no such repository, or one that needs an account"),
        ("/etc/passwd", httpx2.Response(200, json=LLAMA), "is no owner/name of the hub"),
        ("", httpx2.Response(200, json=LLAMA), "is no owner/name of the hub"),
    ],
)
def test_remedy_stands_beside_the_id_when_the_hub_does_not_help(
    admin_client: Browser, new: str, monkeypatch: pytest.MonkeyPatch, name: str, answer: Any, words: str
) -> None:
    Hub(monkeypatch).answer = answer
    shown = admin_client.post(new, {**NAMED, **STATED, "hugging_face_id": name, "fetch_config": "1"})
    assert words in errors(shown)["hugging_face_id"][0]
    assert not ModelCard.objects.exists()


def test_nothing_is_fetched_for_who_may_not_change_cards(new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    card = ModelCard.objects.create(name="Llama3-8B", max_model_len=8192)
    user = get_user_model().objects.create_user("victor")
    Membership.objects.update_or_create(user=user, defaults={"role": Membership.Role.VIEWER})
    browser = Browser()
    browser.force_login(user)
    edit = reverse("configure-edit", args=["models", card.pk])
    for page in (new, edit):
        assert browser.post(page, {**NAMED, **STATED, "fetch_config": "1"}).status_code == 403
    assert "Fetch config" not in browser.get(edit).content.decode()
    assert hub.asked == []


def config_file(text: str) -> SimpleUploadedFile:
    return SimpleUploadedFile("config.json", text.encode(), "application/json")


def test_card_is_stored_with_the_config_of_a_file(admin_client: Browser, new: str) -> None:
    assert 'enctype="multipart/form-data"' in (page := admin_client.get(new).content.decode())
    assert 'type="file"' in page
    form = {**NAMED, **STATED, "config": json.dumps(MOE), "config_file": config_file(json.dumps(LLAMA))}
    asked = reverse("configure-consequences", args=["models"])
    assert "8.03 billion parameters" in admin_client.post(asked, form).content.decode()
    assert admin_client.post(new, form | {"config_file": config_file(json.dumps(LLAMA))}).status_code == 302
    assert ModelCard.objects.get().config == LLAMA


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "The file config.json: not JSON"),
        (json.dumps(MAMBA), "'mamba' is none that can be computed"),
        (" " * 1_000_001, "longer than 1,000,000 bytes"),
    ],
)
def test_what_is_wrong_with_a_file_stands_beside_the_config(
    admin_client: Browser, new: str, text: str, words: str
) -> None:
    shown = admin_client.post(new, {**NAMED, **STATED, "config_file": config_file(text)})
    assert words in errors(shown)["config"][0]
    assert shown.context["form"]["name"].value() == NAMED["name"]  # nothing else is lost
    assert not ModelCard.objects.exists()


def test_misfit_is_shown_in_figures_beside_the_form(admin_client: Browser) -> None:
    site = Site.objects.create(name="oslo", label="Oslo", grid_zone="NO1")
    node = Node.objects.create(cluster=Cluster.objects.create(site=site, name="main"), name="n1")
    Gpu.objects.create(
        node=node, index=0, uuid="G0", gpu_type="V100-16GB", memory_gb=16, min_mhz=135, max_mhz=1530, tdp_w=300
    )
    form = {**NAMED, **STATED, "config": json.dumps(LLAMA)}
    shown = admin_client.post(reverse("configure-consequences", args=["models"]), form).content.decode()
    assert "fits on none of the 1 nodes: 16 GB of weights, and 1 x V100-16GB have" in shown


# -- import and export ---------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["csv", "yaml"])
@pytest.mark.parametrize(
    "config", [LLAMA, {**MOE, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "eos": [1, 2]}]
)
def test_export_brings_the_config_back(admin_client: Browser, format: str, config: dict[str, Any]) -> None:
    ModelCard.objects.create(name="acme-tuned", config=config, max_model_len=8192)
    ModelCard.objects.create(name="Llama3-8B", max_model_len=8192)
    text = admin_client.get(reverse("configure-export", args=["models", format])).content.decode()
    url = reverse("configure-import", args=["models"])
    again = admin_client.post(url, {"text": text, "format": format})
    assert {item.what for item in again.context["outcomes"]} == {"unchanged"}
    before = dict(ModelCard.objects.values_list("name", "shape"))
    ModelCard.objects.all().delete()
    assert admin_client.post(url, {"text": text, "format": format, "apply": "1"}).status_code == 302
    assert dict(ModelCard.objects.values_list("name", "shape")) == before
    assert ModelCard.objects.get(name="acme-tuned").config == config


# -- REST and files ------------------------------------------------------------------------------


def test_rest_takes_a_config_and_shows_its_shape(redis_client: Any) -> None:
    with fleet_api.as_person("operator") as api:
        made = api.models.create(name="acme-tuned", max_model_len=8192, config=LLAMA)
        assert made.config == LLAMA
        assert made.shape is not None
        assert made.shape["key"] == shape_of_document(LLAMA).key
        assert (made.shape["parameters"], made.shape["kv_bytes_per_token"]) == (8_030_261_248, 131_072)
        changed = api.models.change("acme-tuned", etag=made.etag, config=MOE)
        assert changed.shape is not None
        assert changed.shape["experts"] == 128
        assert changed.etag != made.etag
        bare = api.models.change("acme-tuned", etag=changed.etag, config=None)
        assert (bare.config, bare.shape) == (None, None)
        said = api.models.validate(name="other", max_model_len=8192, config=LLAMA)
        assert said.valid
        assert any("Computed from config.json" in one.text and one.field == "config" for one in said.consequences)


@pytest.mark.parametrize("config", [MAMBA, {**LLAMA, "num_attention_heads": 0}, [], "config.json", 7])
def test_rest_names_the_config_where_nothing_can_be_computed(redis_client: Any, config: Any) -> None:
    with fleet_api.as_person("operator") as api:
        with pytest.raises(InvalidError) as refused:
            api.models.create(name="acme-tuned", max_model_len=8192, config=config)
        assert refused.value.status == 400
        assert [error.field for error in refused.value.errors] == ["config"]
        said = api.models.validate(name="acme-tuned", max_model_len=8192, config=config)
        assert not said.valid
        assert {one.field for one in said.consequences if one.level == "error"} == {"config"}
    assert not ModelCard.objects.exists()


def test_shape_is_nobodys_to_set_by_rest(redis_client: Any) -> None:
    with fleet_api.as_person("operator") as api:
        made = api.models.create(name="acme-tuned", max_model_len=8192, shape={"key": "1x1"})  # type: ignore[call-arg]
        assert made.shape is None


def applied(api: Client, path: Path) -> int:
    wanted = read([(str(path), path.read_text())])
    plan = compare(wanted, remote.read(api, needed_kinds(wanted)))
    outcome = carry_out(api, plan, lambda change: None)
    assert (outcome.error, outcome.left) == ("", [])
    return len(outcome.done)


def test_file_of_a_fleet_names_the_folder_of_a_model(redis_client: Any, tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "llama" / "tokenizer.json").write_text("{}")
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("models: {acme-tuned: {max_model_len: 8192, config_file: llama}}")
    with fleet_api.as_person() as api:
        assert (applied(api, fleet), applied(api, fleet)) == (1, 0)
        card = ModelCard.objects.get()
        assert card.shape == shape_of_document(LLAMA).key
        assert card.tokenizer == str(tmp_path / "llama" / "tokenizer.json")
        fleet.write_text(export.text_of(remote.read(api, KINDS)))
        assert applied(api, fleet) == 0
        (tmp_path / "llama" / "config.json").write_text(json.dumps(MOE))
        fleet.write_text("models: {acme-tuned: {config_file: llama/config.json}}")
        assert applied(api, fleet) == 1
    assert ModelCard.objects.get().config == MOE
