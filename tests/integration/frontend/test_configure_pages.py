"""The pages of configuration and control, without a browser: every kind, imports and exports, policies, overrides."""

from dataclasses import replace

import pytest
from django.urls import reverse
from django.utils import timezone

from core.engine.gpu_types import SHIPPED
from pools.models import Adapter, GpuType, Node, Pool, Service, Site
from scheduler.models import Decision, LoopPause, Override, ServiceMode
from scheduler.operations.configure import registry
from tests.integration.scheduler.each_preset import PARAMETERS

pytestmark = pytest.mark.django_db
CONFIRMED = {"confirmed": "yes"}


@pytest.fixture
def service(demo_rows, redis_client):
    return Service.objects.get()


def first_pool(service: Service) -> Pool:
    """Of the partition in force, which is the one whose pools can be pinned; those of others are of the same ranks."""
    return service.pools.filter(request_class__partition=service.partition)[0]


def test_every_kind_has_its_pages_when_an_administrator_looks(service, admin_client, django_assert_max_num_queries):
    for page in ("configure", "overrides", "setup"):
        assert admin_client.get(reverse(page)).status_code == 200
    for kind, owned in registry.OWNED.items():
        with django_assert_max_num_queries(25):
            assert admin_client.get(reverse("configure", args=[kind]), {"q": "a"}).status_code == 200
        assert admin_client.get(reverse("configure-new", args=[kind])).status_code == 200
        empty = admin_client.post(reverse("configure-consequences", args=[kind]), {})
        assert empty.status_code == 200
        assert admin_client.post(reverse("configure-new", args=[kind]), {}).context["form"].errors
        row = owned.model._default_manager.first()
        if row is not None:
            page = admin_client.get(reverse("configure-edit", args=[kind, row.pk])).content.decode()
            assert "Consequences" in page or owned.one in page
            assert admin_client.get(reverse("configure-new", args=[kind]), {"clone": row.pk}).status_code == 200
            assert admin_client.get(reverse("configure-delete", args=[kind, row.pk])).status_code == 200


@pytest.mark.parametrize("format", ["csv", pytest.param("yaml", marks=pytest.mark.slow("the same in another format"))])
def test_nothing_changes_when_an_export_is_imported(service, admin_client, format):
    GpuType.of_sheet(replace(SHIPPED["L40S-48GB"], name="Ours")).save()
    Adapter.objects.create(service=service, name="legal", source="acme/legal", rank=16)
    fleet = ("sites", "clusters", "nodes", "gpu-types", "gpus", "feeds")
    for kind in (*fleet, "services", "models", "classes", "profiles", "slos", "adapters"):
        text = admin_client.get(reverse("configure-export", args=[kind, format])).content.decode()
        answer = admin_client.post(reverse("configure-import", args=[kind]), {"text": text, "format": format})
        whats = {(item.key, item.what, item.notes) for item in answer.context["outcomes"]}
        assert {what for _, what, _ in whats} == {"unchanged"}, (kind, whats)


def test_rows_are_all_stored_or_none_when_they_are_imported(service, admin_client):
    url = reverse("configure-import", args=["nodes"])
    cluster = Node.objects.first().cluster
    good = f"- {{name: n-new, cluster: {cluster}, schedulable: false}}\n"
    bad = good + "- name: n-other\n  cluster: nowhere/else\n"
    answer = admin_client.post(url, {"text": bad, "format": "yaml", "apply": "1"})
    assert [(item.line, item.what) for item in answer.context["outcomes"]] == [(1, "created"), (2, "refused")]
    assert "there is no cluster 'nowhere/else'" in answer.context["outcomes"][1].notes[0]
    assert not Node.objects.filter(name="n-new").exists()
    admin_client.post(url, {"text": good, "format": "yaml"})
    assert not Node.objects.filter(name="n-new").exists()  # only tried
    assert admin_client.post(url, {"text": good, "format": "yaml", "apply": "1"}).status_code == 302
    assert Node.objects.get(name="n-new").schedulable is False
    answer = admin_client.post(url, {"text": "nonsense: [", "format": "yaml"})
    assert "no YAML" in answer.context["wrong"]
    answer = admin_client.post(url, {"text": "name,colour\nx,red\n", "format": "csv"})
    assert "no such column: colour" in answer.context["wrong"]


def test_a_warning_is_shown_first_when_a_row_is_stored(service, admin_client):
    site = Site.objects.exclude(clusters=None).first()
    url = reverse("configure-edit", args=["sites", site.pk])
    form = admin_client.get(url).context["form"]
    data = {name: "" if (value := form[name].value()) is None else value for name in form.fields}
    data["power_cap_w"] = "5"
    shown = admin_client.post(url, data)
    assert "when idle" in shown.content.decode()
    assert Site.objects.get(pk=site.pk).power_cap_w is None
    assert admin_client.post(url, data | {"seen": shown.context["seen"]}).status_code == 302
    assert Site.objects.get(pk=site.pk).power_cap_w == 5.0


def test_several_rows_are_changed_when_they_are_ticked(service, admin_client):
    ids = list(Node.objects.values_list("pk", flat=True)[:2])
    url = reverse("configure-bulk", args=["nodes"])
    assert admin_client.get(url, {"id": ids, "field": "schedulable"}).status_code == 200
    assert admin_client.post(url, {"id": ids, "field": "schedulable"}).status_code == 302  # not ticked: off
    assert Node.objects.filter(schedulable=False).count() == 2


def test_consequences_are_shown_for_each_row_before_several_are_changed(service, admin_client):
    ids = list(Site.objects.values_list("pk", flat=True)[:2])
    url, data = reverse("configure-bulk", args=["sites"]), {"id": ids, "field": "power_cap_w", "power_cap_w": "5"}
    fragment = admin_client.post(f"{url}?part=consequences", data).content.decode()
    assert fragment.count("when idle") == 2
    shown = admin_client.post(url, data)
    assert shown.content.decode().count("when idle") == 2
    assert "Change all of them anyway" in shown.content.decode()
    assert not Site.objects.filter(power_cap_w=5.0).exists()
    assert admin_client.post(url, data | {"seen": shown.context["seen"]}).status_code == 302
    assert Site.objects.filter(power_cap_w=5.0).count() == 2
    wrong = admin_client.post(url, {"id": ids, "field": "time_zone", "time_zone": "Mars/Olympus"})
    assert wrong.status_code == 200
    assert "Not possible" in wrong.content.decode()
    assert not Site.objects.filter(time_zone="Mars/Olympus").exists()


def test_only_what_differs_is_kept_when_a_policy_is_given(service, admin_client):
    url = reverse("configure-policy", args=[service.pk])
    page = admin_client.get(url, {"preset": "dynamollm"})
    data = {f"knob-{knob.name}": knob.value for knob in page.context["knobs"]} | {"policy": "dynamollm"}
    assert not any(knob.differs for knob in page.context["knobs"])
    wrong = admin_client.post(url, data | {"knob-tp": "none"})
    assert "tp" in {knob.name for knob in wrong.context["knobs"] if knob.error}
    asked = admin_client.post(url, data | {"knob-clock": "fixed"}).content.decode()
    assert "Give llama3-70b the policy dynamollm?" in asked
    assert '<input type="hidden" name="knob-clock" value="fixed">' in asked
    assert Service.objects.get(pk=service.pk).policy != "dynamollm"
    assert admin_client.post(url, data | {"knob-clock": "fixed"} | CONFIRMED).status_code == 302
    found = Service.objects.get(pk=service.pk)
    assert (found.policy, found.knobs) == ("dynamollm", {"clock": "fixed"})


def test_tuning_is_set_in_a_folded_part_of_the_policys_form(service, admin_client):
    url = reverse("configure-policy", args=[service.pk])
    page = admin_client.get(url, {"preset": "dynamollm"})
    assert "<details><summary>Tuning" in page.content.decode()
    assert 'placeholder="none" title="none: all do"' in page.content.decode()
    data = {f"knob-{row.name}": row.value for row in [*page.context["knobs"], *page.context["tuning"]]}
    wrong = admin_client.post(url, data | {"policy": "dynamollm", "knob-dynamo.wave": "0"})
    assert [(row.name, row.error) for row in wrong.context["tuning"] if row.error] == [
        ("dynamo.wave", "dynamo.wave: must be at least 1, not 0")
    ]
    assert "<details open><summary>Tuning" in wrong.content.decode()
    low = admin_client.post(url, data | {"policy": "dynamollm", "knob-threshold.kv_low": "0.9"})
    assert [row.name for row in low.context["tuning"] if row.error] == ["threshold.kv_low"]

    given = {"policy": "dynamollm", "knob-dynamo.wave": "4", "knob-placement.spread": "0.9"}
    shown = admin_client.post(url, data | given | CONFIRMED, follow=True).content.decode()

    found = Service.objects.get(pk=service.pk)
    assert (found.policy, found.knobs) == (
        "dynamollm",
        {"tuning": {"dynamo": {"wave": 4}, "placement": {"spread": 0.9}}},
    )
    assert found.own_policy().tuning.dynamo.wave == 4
    assert "placement.spread has no effect live: a live GPU is one" in shown
    assert "dynamo.wave has no effect" not in shown
    page = admin_client.get(reverse("service", args=[service.name])).content.decode()
    assert "<code>dynamo.wave</code></td><td>2</td><td><strong>4</strong>" in page


def test_clock_advice_can_be_approved_down_to_a_floor(service, admin_client):
    pool = first_pool(service)
    words = "Advice, not carried out: 1310 MHz; it stays at 1410 MHz."
    values = {"service": service, "pool": pool, "reason": "slack", "summary": words, "inputs": {"advised_mhz": 1310.0}}
    Decision.objects.create(kind="clock", at=timezone.now(), **values)
    assert words not in admin_client.get(reverse("overrides")).content.decode()  # it acts
    ServiceMode.objects.update_or_create(service=service, defaults={"mode": "approve", "gateways_only": True})
    page = admin_client.get(reverse("overrides")).content.decode()
    assert words in page
    assert 'name="floor_mhz" type="number" min="1" required value="1310"' in page
    data = {"kind": "clock", "pool": pool.pk, "floor_mhz": "1310", "for_s": "900", "reason": "a quiet night"}
    page = admin_client.post(reverse("overrides-new"), data, follow=True).content.decode()
    assert "may go down to 1310 MHz" in page


def test_words_are_shown_when_an_operation_makes_no_sense(service, admin_client):
    data = {"service": service.pk, "loop": "carbon", "reason": " ", "for_s": "900"}
    page = admin_client.post(reverse("overrides-pause"), data, follow=True)
    assert "say why" in page.content.decode()
    pool = first_pool(service)
    data = {"kind": "workers", "pool": pool.pk, "workers": "two", "for_s": "900", "reason": "a trial"}
    page = admin_client.post(reverse("overrides-new"), data, follow=True)
    assert "written like 2 x A100-80GB/TP4" in page.content.decode()
    assert not LoopPause.objects.exists()
    assert not Override.objects.exists()


def test_the_form_for_a_service_says_what_classes_of_ones_own_need(service, admin_client):
    page = admin_client.get("/configure/services/new/").content.decode()
    hint = page.partition('id="id_partition_helptext"')[2].partition("</p>")[0]
    assert "For classes of your own set the knob partition=NAME." in hint


def test_addresses_of_0_1_are_answered_for_one_version(service, admin_client):
    moved = admin_client.get("/holds/?range=1h")
    assert (moved.status_code, moved.headers["Location"]) == (301, "/overrides/?range=1h")
    assert admin_client.post("/holds/").status_code == 405
    data = {"service": service.pk, "loop": "carbon", "reason": "a trial", "for_s": "900"}
    assert admin_client.post("/holds/pause/", data | CONFIRMED).headers["Location"] == "/overrides/"
    resume = f"/holds/resume/{LoopPause.objects.get().pk}/"
    assert admin_client.post(resume, CONFIRMED).headers["Location"] == "/overrides/"
    assert LoopPause.objects.exclude(ended_at=None).exists()
    mode = {"service": service.pk, "mode": "advise"}
    assert admin_client.post("/holds/mode/", mode | CONFIRMED).status_code == 302
    assert ServiceMode.objects.get(service=service).mode == "advise"
    data = {"kind": "workers", "pool": first_pool(service).pk, "workers": "", "for_s": "900", "reason": "a trial"}
    admin_client.post("/holds/overrides/", data)
    assert admin_client.post(f"/holds/overrides/{Override.objects.get().pk}/end/", CONFIRMED).status_code == 302
    assert not Override.objects.filter(ended_at=None).exists()


@pytest.mark.parametrize("preset", PARAMETERS.values())
def test_form_of_a_preset_sets_nothing_otherwise_when_it_is_saved_as_it_came(service, admin_client, preset):
    address = reverse("configure-policy", args=[service.pk])
    shown = admin_client.get(address, {"preset": preset}).context["knobs"]
    # a browser sends the first choice of a list in which none is selected
    sent = {f"knob-{k.name}": k.value if not k.choices or k.value in k.choices else k.choices[0] for k in shown}
    assert admin_client.post(address, {"policy": preset, **sent, **CONFIRMED}).status_code == 302
    service.refresh_from_db()
    assert (service.policy, service.knobs) == (preset, {})


def test_switch_is_confirmed_with_its_watts_before_it_is_carried_out(service, admin_client):
    """The demo's service has no instance yet: nothing is drawn, and what is not known is said."""
    data = {"service": service.pk, "loop": "clock", "for_s": "900", "reason": "measuring"}
    page = admin_client.post(reverse("overrides-pause"), data).content.decode()
    for words in (
        "Pause the clock loop of llama3-70b?",
        "Power now, metered",
        "Power then, predicted",
        "Clocks are at",
    ):
        assert words in page
    assert not LoopPause.objects.exists()
    assert admin_client.post(reverse("overrides-pause"), data | CONFIRMED).status_code == 302
    assert LoopPause.objects.exists()
    form = admin_client.get(reverse("configure-edit", args=["services", service.pk])).context["form"]
    sent = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
    sent = {name: value for name, value in sent.items() if value is not None} | {"policy": "single_pool", "knobs": "{}"}
    sent["partitions"] = list(service.partitions.values_list("pk", flat=True))
    asked = admin_client.post(reverse("configure-edit", args=["services", service.pk]), sent)
    assert "Give llama3-70b the policy single_pool?" in asked.content.decode()
    assert Service.objects.get(pk=service.pk).policy != "single_pool"


def test_page_of_advice_has_both_policies(service, admin_client):
    page = admin_client.get(reverse("advice", args=[service.name])).content.decode()
    assert "Nothing advises" in page
    admin_client.post(reverse("overrides-control-mode"), {"service": service.pk, "mode": "advise"} | CONFIRMED)
    Service.objects.filter(pk=service.pk).update(policy="single_pool")
    page = admin_client.get(reverse("advice", args=[service.name])).content.decode()
    assert "No loop of greenserve has acted yet" in page
    assert 'data-label="Policy">single_pool' in page
    assert "greenserve in force, in gateways only" in admin_client.get(reverse("overrides")).content.decode()
