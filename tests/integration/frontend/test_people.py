"""People, rights, keys and the audit trail, as pages and as rules."""

from __future__ import annotations

import csv
import html
import io
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import ANY

import pytest
from allauth.account.internal.flows import login
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal import auth as totp
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from click.testing import CliRunner
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.core.cache import cache
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import DatabaseError, transaction
from django.db.models import ProtectedError
from django.test import Client
from django.urls import get_resolver, reverse
from django.utils import timezone
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from rest_framework.test import APIRequestFactory

from frontend.api.rest.authentication import TokenAuthentication
from frontend.people import account, people_pages, sign_in_limits
from greenserve.cli import cli
from pools.access import audit, people, rights
from pools.access.rights import Right
from pools.models import AccessToken, ApiKey, AuditEntry, Membership, Site, Tenant
from tests.fakes import seed
from tests.fakes.oidc import FakeOidc
from tests.fakes.people import PASSWORD, ROLES, person

pytestmark = pytest.mark.django_db
SYSTEM = audit.Actor()
PUBLIC = {"login", "account_login", "mfa_authenticate", "openid_connect_login", "openid_connect_callback", "healthz"}
ADMINISTRATORS = {"people", "person", "keys", "key-tenants", "audit", "audit-csv"}  # to look at
OWN = {"account-password", "account-two-step", "account-two-step-off", "account-codes", "account-tokens", "time-zone"}
OWN |= {"account-token-revoke", "login", "account_login", "logout", "mfa_authenticate"}
FORMS = {
    "engine-profile-import",
    "offer",
    "trial-new",
    "whatif-new",
    "whatif-apply",
    "whatif-experiment",
}  # of operators
NOBODYS = {"int": "999999", "uuid": "00000000-0000-0000-0000-000000000000"}
WRITES = {
    "acknowledge-alert": Right.OPERATE,
    "silence-alerts": Right.OPERATE,
    "end-silence": Right.OPERATE,
    "reports": Right.FINANCE,
    "report-sign": Right.FINANCE,
    "report-cancel": Right.FINANCE,
    "trial-cancel": Right.OPERATE,
    "people": Right.ADMINISTER,
    "person": Right.ADMINISTER,
    "person-active": Right.ADMINISTER,
    "person-password": Right.ADMINISTER,
    "person-two-step-off": Right.ADMINISTER,
    "keys": Right.ADMINISTER,
    "key-revoke": Right.ADMINISTER,
    "token-revoke": Right.ADMINISTER,
}


@pytest.fixture(autouse=True)
def _fresh_cache(settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick: it is not what is tested
    cache.clear()


@pytest.fixture
def site() -> Site:
    return Site.objects.create(name="ashburn", label="Ashburn", grid_zone="US-PJM")


def client_of(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


def pages() -> dict[str, str]:
    """Each named page with a path of it; numbers are of nothing that exists."""
    found: dict[str, str] = {}

    def walk(patterns, prefix: str) -> None:
        for pattern in patterns:
            route = prefix + str(pattern.pattern)
            if hasattr(pattern, "url_patterns"):
                walk(pattern.url_patterns, route)
            elif pattern.name and not route.startswith(("api/", "v1/", "metrics")):
                path = re.sub(r"<(\w+):\w+>", lambda m: NOBODYS.get(m[1], "nothing"), route)
                found[pattern.name] = "/" + re.sub(r"<\w+>", "nothing", path)

    walk(get_resolver().url_patterns, "")
    return found


def test_pages_answer_each_role_as_its_rights_say_when_looked_at():
    clients = {role: client_of(person(role)) for role in ROLES}
    for name, path in pages().items():
        if name in PUBLIC:
            continue
        answer = Client().get(path)
        assert (answer.status_code, answer.headers.get("Location", "").split("?")[0]) == (302, "/sign-in/"), name
        if name in ADMINISTRATORS:
            found = {role: client.get(path).status_code == 403 for role, client in clients.items()}
            assert found == {role: role != "administrator" for role in ROLES}, name
        else:
            status = clients["viewer"].get(path).status_code
            assert (status == 403) == (name in FORMS), (name, path)
            assert status < 500, (name, path)


def test_only_those_with_the_right_change_something():
    clients = {role: client_of(person(role)) for role in ROLES}
    paths = pages()
    for name, right in WRITES.items():
        assert Client().post(paths[name]).status_code == 302, name
        for role, client in clients.items():
            refused = client.post(paths[name]).status_code == 403
            assert refused == (right not in rights.RIGHTS[role]), (name, role)
    viewer = clients["viewer"]
    for name, path in paths.items():
        if name not in OWN:
            assert viewer.post(path).status_code in (403, 404, 405), name


def test_refusal_says_what_is_missing_and_whom_to_ask(site):
    page = client_of(person("viewer")).get("/people/").content.decode()
    assert "administer" in page
    assert "Your role is viewer. Ask an administrator" in page
    elsewhere = Site.objects.create(name="berlin", label="Berlin", grid_zone="DE")
    scoped = person("operator", sites=[site])
    with pytest.raises(PermissionDenied, match="Berlin is none of your sites"):
        rights.require(scoped, Right.OPERATE, elsewhere)
    assert rights.has(scoped, Right.OPERATE, site)
    assert list(rights.sites_of(scoped)) == [site]
    assert not rights.everywhere(scoped)
    with pytest.raises(ProtectedError):  # with no site left the role would be for all
        site.delete()


def test_nobody_has_rights_when_not_in_use_or_not_signed_in(client):
    out = person("administrator")
    people.create(SYSTEM, "second", "administrator", password="a long enough phrase")
    people.set_active(SYSTEM, out, False)
    assert not rights.has(get_user_model().objects.get(pk=out.pk), Right.VIEW)
    for nobody in (None, AnonymousUser()):
        assert not rights.has(nobody, Right.VIEW)
        with pytest.raises(PermissionDenied, match="You are not signed in"):
            rights.require(nobody, Right.VIEW)
    assert client.post("/sign-in/", {"username": "administrator", "password": PASSWORD}).status_code == 200


def test_the_last_administrator_stays_one():
    only = person("administrator")
    for change in (lambda: people.set_active(SYSTEM, only, False), lambda: people.set_role(SYSTEM, only, "viewer")):
        with pytest.raises(ValidationError, match="only administrator"):
            change()
    client = client_of(only)
    answer = client.post(reverse("person", args=[only.pk]), {"role": "viewer"})
    assert answer.status_code == 400
    assert "only administrator" in answer.content.decode()


# -- signing in ------------------------------------------------------------------------------------


def sign_in(client: Client, password: str, name: str = "viewer", **extra):
    return client.post("/sign-in/", {"username": name, "password": password}, **extra)


def test_sign_in_is_refused_for_a_while_when_the_password_was_wrong_too_often(client):
    person("viewer")
    for _ in range(sign_in_limits.OF_NAME_AND_ADDRESS):
        assert "Please enter a correct" in sign_in(client, "wrong").content.decode()
    page = sign_in(client, PASSWORD).content.decode()
    assert "Too many failed attempts. Try again in 15 min, at" in page
    assert "_auth_user_id" not in client.session
    assert sign_in(Client(), PASSWORD, REMOTE_ADDR="198.51.100.7").status_code == 302  # another address is not locked
    for _ in range(sign_in_limits.OF_NAME_AND_ADDRESS):
        sign_in(client, "wrong", name="nobody")
    assert "Too many failed" in sign_in(client, "wrong", name="nobody").content.decode()  # as if they existed
    kept = str(list(AuditEntry.objects.values()))
    assert "nobody" not in kept  # what is typed there may be a password
    assert "wrong" in kept
    assert PASSWORD not in kept


def test_addresses_are_limited_too_and_time_heals(client, monkeypatch):
    monkeypatch.setattr(sign_in_limits, "OF_ADDRESS", 3)
    for n in range(3):
        sign_in(client, "wrong", name=f"guess-{n}")
    assert "Too many failed" in sign_in(client, PASSWORD).content.decode()
    later = timezone.now() + sign_in_limits.WINDOW + timedelta(seconds=1)
    assert sign_in_limits.free_again_at(sign_in_limits.name_key("viewer"), "127.0.0.1", later) is None


def test_client_address_is_the_proxys_word_only_when_proxies_are_ours(rf, settings):
    request = rf.get("/", REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR="203.0.113.9, 198.51.100.7")
    assert audit.client_address(request) == "10.0.0.1"
    settings.GREENSERVE_PROXIES = 1
    assert audit.client_address(request) == "198.51.100.7"


def test_one_time_password_must_be_changed_before_anything_else(client):
    page = client_of(person("administrator")).post("/people/", {"username": "nora", "role": "operator"})
    given = re.search(r"One-time password</dt><dd><code>([^<]+)", page.content.decode())
    assert given
    assert page.headers["Cache-Control"].count("no-store")
    assert sign_in(client, given[1], "nora").status_code == 302
    assert client.get("/decisions/").url == "/account/"
    assert client.get("/api/v1/sites/").status_code == 403
    short = client.post("/account/password/", {"current": given[1], "new": "short", "again": "short"})
    assert "at least 12 characters" in short.content.decode()
    new = {"current": given[1], "new": "a long enough phrase", "again": "a long enough phrase"}
    assert client.post("/account/password/", new).status_code == 302
    assert client.get("/decisions/").status_code == 200
    assert not Membership.objects.get(user__username="nora").must_change_password
    assert given[1] not in str(list(AuditEntry.objects.values()))


def code_of(secret: str, offset: int = 0) -> str:
    counters = list(yield_hotp_counters_from_time())
    return format_hotp_value(hotp_value(secret, counters[len(counters) // 2] + offset))


@pytest.fixture
def one_code(monkeypatch):
    """No new code while a test runs: else the one that it computes may be out of date when it is looked at."""
    now = time.time()
    monkeypatch.setattr(totp, "time", SimpleNamespace(time=lambda: now))


def test_two_step_sign_in_goes_round_with_code_and_recovery_code(client, one_code):
    user = person("viewer")
    client.force_login(user)
    page = client.get("/account/two-step/").content.decode()
    assert "<svg" in page
    secret = re.search(r"Key: <code>([^<]+)", page)[1].replace(" ", "")
    wrong = client.post("/account/two-step/", {"current": "not it", "code": code_of(secret)})
    assert "not your password" in wrong.content.decode()
    on = client.post("/account/two-step/", {"current": PASSWORD, "code": code_of(secret)})
    codes = re.findall(r"<li><code>(\d+)", on.content.decode())
    assert len(codes) == 10
    assert secret not in str(list(Authenticator.objects.values("data")))  # encrypted

    def begin() -> Client:
        fresh = Client()
        assert sign_in(fresh, PASSWORD).url == "/sign-in/code/"
        assert fresh.get("/decisions/").status_code == 302  # half-way is not in
        return fresh

    fresh = begin()
    assert "Incorrect code" in fresh.post("/sign-in/code/", {"code": "000000"}).content.decode()
    assert "Incorrect code" in fresh.post("/sign-in/code/", {"code": code_of(secret, -1)}).content.decode()
    assert fresh.post("/sign-in/code/", {"code": code_of(secret)}).status_code == 302
    assert fresh.get("/decisions/").status_code == 200
    fresh = begin()
    assert fresh.post("/sign-in/code/", {"code": codes[0]}).status_code == 302
    fresh = begin()
    assert "Incorrect code" in fresh.post("/sign-in/code/", {"code": codes[0]}).content.decode()  # once
    for _ in range(sign_in_limits.OF_NAME_AND_ADDRESS):
        fresh.post("/sign-in/code/", {"code": "000000"})
    assert "Too many failed" in fresh.post("/sign-in/code/", {"code": codes[1]}).content.decode()

    assert client.post("/account/two-step/off/", {"current": PASSWORD}).status_code == 302
    assert sign_in(Client(), PASSWORD).url == "/"


def test_role_follows_the_groups_at_each_oidc_sign_in_and_is_none_without_one(settings, client):
    person("administrator", "ada")
    with FakeOidc(subject="s-1", username="ada", groups=["ops", "other"]) as provider:
        settings.ENV = replace(settings.ENV, oidc=provider.settings({"ops": "operator"}))
        settings.SOCIALACCOUNT_PROVIDERS = provider.allauth()
        assert "Sign in with Fake SSO" in client.get("/sign-in/").content.decode()
        answer = provider.follow(client, reverse("openid_connect_login", args=["sso"]))
        assert (answer.status_code, answer.headers["Location"]) == (302, "/")
        user = get_user_model().objects.get(pk=client.session["_auth_user_id"])
        assert user.username != "ada"  # a name alone is nobody's account
        assert people.role_of(user) == "operator"
        assert client.get("/decisions/").status_code == 200
        _, secret = people.new_token(SYSTEM, user, "ci", ["operate"])
        provider.groups = ["other"]
        again = Client()
        provider.follow(again, reverse("openid_connect_login", args=["sso"]))
        assert again.session["_auth_user_id"] == str(user.pk)
        assert people.role_of(user) == "none"
        with pytest.raises(AuthenticationFailed):
            authenticated(secret)
        page = client.get("/decisions/")
        assert (page.status_code, "have no role in GreenServe yet" in page.content.decode()) == (403, True)
        settings.ENV = replace(settings.ENV, oidc=provider.settings({"ops": "operator", "*": "viewer"}))
        provider.follow(client, reverse("openid_connect_login", args=["sso"]))
        assert people.role_of(user) == "viewer"
    refused = client_of(person("viewer", "vic")).get(reverse("openid_connect_login", args=["other"]))
    assert refused.status_code == 404
    silent = Client().get(reverse("openid_connect_login", args=["sso"]), follow=True)  # the provider is gone
    assert "does not answer as it should" in silent.content.decode()


def test_who_has_no_role_sees_their_account_and_nothing_else(settings):
    with FakeOidc(subject="s-2", username="eve", groups=["ops"]) as provider:
        settings.ENV = replace(settings.ENV, oidc=provider.settings({}))
        settings.SOCIALACCOUNT_PROVIDERS = provider.allauth()
        client = Client()
        provider.follow(client, reverse("openid_connect_login", args=["sso"]))
    open_to_her = set()
    for name, path in pages().items():
        answer = client.get(path)
        if answer.status_code not in (403, 404) and name not in PUBLIC:
            open_to_her.add(name)
    assert open_to_her == {"account", "account-password", "logout", "time-zone"}
    assert client.get("/api/v1/sites/").status_code == client.get("/api/v1/schema/").status_code == 403
    user = get_user_model().objects.get(pk=client.session["_auth_user_id"])
    people.set_role(SYSTEM, user, "viewer")
    assert client.get("/decisions/").status_code == 200


# -- keys and tokens -------------------------------------------------------------------------------


def authenticated(secret: str):
    request = Request(APIRequestFactory().get("/", HTTP_AUTHORIZATION=f"Bearer {secret}"))
    return TokenAuthentication().authenticate(request)


def test_token_opens_the_api_within_its_rights_and_sites_until_it_ends(site):
    user = person("operator")
    other = Site.objects.create(name="berlin", label="Berlin", grid_zone="DE")
    page = client_of(user).post(
        "/account/tokens/",
        {"label": "nightly", "rights": ["view"], "sites": ["ashburn"], "lifetime": "7", "current": PASSWORD},
    )
    secret = re.search(r"<code>(gs_[\w-]+)", page.content.decode())[1]
    assert secret not in str(list(AccessToken.objects.values()) + list(AuditEntry.objects.values()))
    found, token = authenticated(secret)
    assert found == user
    assert rights.has(found, Right.VIEW, site)
    assert not rights.has(found, Right.VIEW, other)
    assert not rights.has(found, Right.OPERATE)  # the person has it, the token does not
    token.refresh_from_db()
    assert token.last_used_at is not None
    assert audit.actor_of(type("R", (), {"auth": token, "user": found})(), "api").key.startswith("nightly gs_")

    for bad in ("gs_nothing", "", "two words"):
        with pytest.raises(AuthenticationFailed):
            authenticated(bad)
    AccessToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(AuthenticationFailed):
        authenticated(secret)
    AccessToken.objects.update(expires_at=None)
    assert authenticated(secret)
    people.revoke_token(SYSTEM, token)
    with pytest.raises(AuthenticationFailed):
        authenticated(secret)


TOKEN = {"label": "nightly", "rights": ["view"], "lifetime": "7"}


def test_making_a_token_asks_for_the_password_again_and_counts_wrong_ones():
    client = client_of(person("operator"))
    page = client.post("/account/tokens/", TOKEN).content.decode()
    assert "This field is required" in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))  # several forms of the page ask for a password
    for _ in range(sign_in_limits.OF_NAME_AND_ADDRESS):
        wrong = client.post("/account/tokens/", TOKEN | {"current": "not it"})
        assert (wrong.status_code, "not your password" in wrong.content.decode()) == (400, True)
    assert "Too many failed" in client.post("/account/tokens/", TOKEN | {"current": PASSWORD}).content.decode()
    assert not AccessToken.objects.exists()


def test_making_a_token_asks_for_a_code_when_two_step_sign_in_is_on(one_code):
    user = person("operator")
    client = client_of(user)
    secret = "JBSWY3DPEHPK3PXP"
    totp.TOTP.activate(user, secret)
    assert "Code of your app" in client.get("/account/").content.decode()
    by_password = client.post("/account/tokens/", TOKEN | {"current": PASSWORD})
    assert (by_password.status_code, AccessToken.objects.count()) == (400, 0)
    assert "Incorrect code" in client.post("/account/tokens/", TOKEN | {"app_code": "000000"}).content.decode()
    assert "gs_" in client.post("/account/tokens/", TOKEN | {"app_code": code_of(secret)}).content.decode()
    again = client.post("/account/tokens/", TOKEN | {"app_code": code_of(secret)})  # a code counts once
    assert (again.status_code, AccessToken.objects.count()) == (400, 1)


def test_making_a_token_asks_for_a_fresh_sign_in_when_the_provider_has_the_password(settings, client, monkeypatch):
    with FakeOidc(subject="s-1", username="ada", groups=["ops"]) as provider:
        settings.ENV = replace(settings.ENV, oidc=provider.settings({"ops": "operator"}))
        settings.SOCIALACCOUNT_PROVIDERS = provider.allauth()
        provider.follow(client, reverse("openid_connect_login", args=["sso"]))
        assert "gs_" in client.post("/account/tokens/", TOKEN).content.decode()
        now = time.time()
        later = SimpleNamespace(time=lambda: now + account.FRESH_S)
        monkeypatch.setattr(account, "time", later)
        monkeypatch.setattr(login, "time", later)
        stale = client.post("/account/tokens/", TOKEN).content.decode()
        assert "Sign in at Fake SSO again first" in html.unescape(stale)
        assert client.post("/account/two-step/off/").status_code == 400
        link = html.unescape(re.search(r'<a href="(/sign-in/sso/start/[^"]+)"', stale)[1])
        assert "prompt=login" in client.get(link).headers["Location"]
        assert provider.follow(client, link).headers["Location"] == "/account/"
        assert "gs_" in client.post("/account/tokens/", TOKEN).content.decode()


def test_token_has_no_more_than_its_person_when_asked_for_more(site):
    viewer = person("viewer", sites=[site])
    berlin = Site.objects.create(name="berlin", label="Berlin", grid_zone="DE")
    with pytest.raises(ValidationError) as refused:
        people.new_token(SYSTEM, viewer, "", ["operate"], [berlin])
    assert set(refused.value.error_dict) == {"label", "rights", "sites"}
    token, secret = people.new_token(SYSTEM, person("operator"), "ci", ["view", "operate"])
    Membership.objects.filter(user=token.user).update(role="viewer")  # as if by hand, in the database
    found, _ = authenticated(secret)
    assert not rights.has(found, Right.OPERATE)  # it shrinks with its person


def reset_by_command(user) -> None:
    assert CliRunner().invoke(cli, ["user", "password", user.username]).exit_code == 0


def change_role_on_the_page(user) -> None:
    assert client_of(person("administrator")).post(reverse("person", args=[user.pk]), {"role": "finance"}).url


@pytest.mark.parametrize(
    ("change", "page", "form"),
    [
        (lambda user: people.reset_password(SYSTEM, user), 302, 302),
        (reset_by_command, 302, 302),
        (lambda user: people.set_active(SYSTEM, user, False), 302, 302),
        (lambda user: people.set_role(SYSTEM, user, "viewer"), 200, 403),
        (change_role_on_the_page, 200, 403),
        (lambda user: people.set_role(SYSTEM, user, "operator", Site.objects.all()), 200, 200),
    ],
    ids=["reset", "command", "blocked", "role", "page", "sites"],
)
def test_tokens_are_revoked_and_sessions_follow_when_somebody_else_changes_the_person(site, change, page, form):
    user = person("operator")
    session = client_of(user)
    token, secret = people.new_token(SYSTEM, user, "ci", ["view", "operate"])
    change(get_user_model().objects.get(pk=user.pk))
    with pytest.raises(AuthenticationFailed):
        authenticated(secret)
    assert session.get("/decisions/").status_code == page
    assert session.post("/configure/models/new/").status_code == form
    assert AuditEntry.objects.filter(kind="accesstoken", action="revoke", object_key=token.pk).count() == 1
    people.set_active(SYSTEM, user, True)
    with pytest.raises(AuthenticationFailed):  # not even then
        authenticated(secret)


def test_tokens_stay_when_nothing_about_the_person_changes(client):
    user = person("operator")
    _, secret = people.new_token(SYSTEM, user, "ci", ["view"])
    people.set_role(SYSTEM, user, "operator")
    people.change_password(SYSTEM, user, "a long enough phrase")  # by themselves
    assert authenticated(secret)


def test_tenant_key_is_shown_once_and_revoked(django_capture_on_commit_callbacks, redis_client):
    Tenant.objects.create(name="acme", label="Acme")
    client = client_of(person("administrator"))
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        page = client.post("/keys/", {"tenant": "acme", "label": "web", "lifetime": "30"}).content.decode()
    assert len(callbacks) == 1  # gateways
    secret = re.search(r"<code>(gs-[\w-]+)", page)[1]
    key = ApiKey.objects.get(label="web")
    assert key.key_hash not in str(list(AuditEntry.objects.values()))
    assert secret not in client.get("/keys/").content.decode()
    people.change_key(SYSTEM, key, addresses=["192.0.2.0/24"], concurrent_requests=1200)
    assert "from 192.0.2.0/24; 1,200 requests at a time" in client.get("/keys/").content.decode()
    client.post(reverse("key-revoke", args=[key.pk]))
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert "revoked" in client.get("/keys/").content.decode()


def test_new_key_says_at_each_field_what_is_wrong_and_keeps_what_was_typed(redis_client):
    seeded = seed.fleet(timezone.now())
    client, tenant, service = client_of(person("administrator")), seeded.tenants[0], seeded.service
    given = {
        "tenant": tenant.name,
        "label": "shop",
        "lifetime": "30",
        "services": [service.name],
        "addresses": "192.0.2.0/24, 2001:db8::/48\n10.0.0.1/8",
        "requests_per_minute": "0",
        "tokens_per_minute": "1000",
    }
    before = ApiKey.objects.count()
    answer = client.post("/keys/", given | {"services": ["none"]})
    assert answer.status_code == 400
    assert set(answer.context["form"].errors) == {"services", "requests_per_minute"}
    answer = client.post("/keys/", given | {"requests_per_minute": ""})
    assert set(answer.context["form"].errors) == {"addresses"}
    page = answer.content.decode()
    assert "10.0.0.1/8" in page.split('id="id_addresses_error"')[1], "the error names the network"
    assert "192.0.2.0/24, 2001:db8::/48" in page.split('name="addresses"')[1].split("</textarea>")[0]
    assert ApiKey.objects.count() == before
    right = given | {"requests_per_minute": "", "addresses": "192.0.2.0/24, 2001:db8::/48"}
    assert client.post("/keys/", right).status_code == 200
    made = ApiKey.objects.get(label="shop")
    assert (made.services, made.addresses) == ([service.name], ["192.0.2.0/24", "2001:db8::/48"])
    assert (made.requests_per_minute, made.tokens_per_minute, made.concurrent_requests) == (None, 1000, None)


def test_key_is_of_a_tenant_that_is_found_as_its_name_is_typed():
    Tenant.objects.bulk_create([Tenant(name=f"team-{n:02}", label=f"Of floor {n}") for n in range(30)])
    client = client_of(person("administrator"))
    assert "team-07" not in client.get("/keys/").content.decode()
    for typed in ("AM-07", "Floor 7"):
        shown = client.get("/keys/tenants/", {"tenant": typed}).content.decode()
        assert re.findall(r'<option value="([^"]+)">([^<]+)', shown) == [("team-07", "Of floor 7")]
    assert client.get("/keys/tenants/").content.decode().count("<option") == people_pages.SUGGESTED
    answer = client.post("/keys/", {"tenant": "team-99", "label": "web"})
    assert answer.status_code == 400
    assert "No tenant has that name." in answer.content.decode()
    assert 'value="team-99"' in answer.content.decode()
    assert not ApiKey.objects.exists()


def test_keys_and_tokens_are_turned_over_by_themselves(monkeypatch):
    monkeypatch.setattr(people_pages, "PAGE", 2)
    administrator = person("administrator")
    tenant = Tenant.objects.create(name="acme")
    for n in range(5):
        people.new_key(SYSTEM, tenant, f"key {n}")
        people.new_token(SYSTEM, administrator, f"token {n}", ["view"])
    page = client_of(administrator).get("/keys/?page=2&tokens=3").content.decode()
    assert re.findall(r"(?:key|token) \d", re.sub("aria-label=[^>]+", "", page)) == ["key 2", "key 1", "token 0"]
    links = {html.unescape(link) for link in re.findall(r'href="(\?[^"]+)"', page)}
    assert links == {"?page=1&tokens=3", "?page=3&tokens=3", "?tokens=2&page=2#all-tokens"}


# -- audit -----------------------------------------------------------------------------------------


def test_audit_shows_who_changed_what_before_and_after(site, django_assert_max_num_queries):
    admin = person("administrator")
    client = client_of(admin)
    before = audit.values(site)
    site.pue = 1.2
    audit.record(audit.Actor(admin, "ci gs_abc…", "api"), "update", site, before, audit.values(site))
    audit.record(SYSTEM, "update", site, {"webhook_secret": "hush"}, {"nested": {"api_key": "hush2"}, "max_tokens": 5})
    with django_assert_max_num_queries(8):
        page = client.get("/audit/", {"kind": "site", "object": "ashburn"}).content.decode()
    assert "<del>1.54</del> → " in page
    assert "<ins>1.2</ins>" in page
    assert "hush" not in page
    assert "max tokens" in page
    assert "No such entry is on record" in client.get("/audit/?who=nobody").content.decode()
    assert client.get("/audit/?since=2026-13-45").status_code == 400
    assert "No such entry is on record" in client.get("/audit/?since=2090-01-01T00:00").content.decode()
    audit.note(SYSTEM, "update", "site", label="=cmd()")
    text = b"".join(client.get("/audit.csv?kind=site").streaming_content).decode()
    assert "hush" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len({row["entry"] for row in rows}) == 3
    assert {row["field"]: (row["before"], row["after"]) for row in rows} == {
        **{"pue": ("1.54", "1.2"), "max_tokens": ("", "5"), "": ("", "")},
        **{"webhook_secret": ANY, "nested.api_key": ANY},
    }
    assert ",'=cmd()," in text


def test_audit_pages_by_cursor_and_refuses_changes(site):
    client = client_of(person("administrator"))
    for n in range(120):
        audit.record(SYSTEM, "update", site, {"rank": n}, {"rank": n + 1})
    seen, path = [], "/audit/?kind=site"
    while path:
        page = client.get(path).content.decode()
        seen += re.findall(r"<del>(\d+)</del>", page)
        older = re.search(r'href="(\?[^"]*before=\d+)" rel="next"', page)
        path = older and "/audit/" + older[1].replace("&amp;", "&")
    assert [int(n) for n in seen] == list(range(119, -1, -1))
    for change in (lambda q: q.update(who="x"), lambda q: q.delete()):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            change(AuditEntry.objects.all())


def test_requests_carry_their_id_into_the_trail(client):
    person("viewer")
    answer = sign_in(client, PASSWORD, headers={"x-request-id": "abc-123"})
    assert answer.headers["X-Request-ID"] == "abc-123"
    entry = AuditEntry.objects.get(action="sign-in")
    assert (entry.request_id, entry.address, entry.who, entry.channel) == ("abc-123", "127.0.0.1", "viewer", "page")
    assert sign_in(client, "x", headers={"x-request-id": "a b\n"}).headers["X-Request-ID"] != "a b\n"


# -- production ------------------------------------------------------------------------------------


@pytest.mark.slow("a process of its own")
def test_deploy_check_is_clean_with_the_production_settings(tmp_path):
    names = {"GREENSERVE_DEMO": "0", "GREENSERVE_HTTPS": "1", "GREENSERVE_PROXIES": "1"}
    names |= {"GREENSERVE_WEB_NAMES": "greenserve.example.org", "GREENSERVE_VAR": str(tmp_path)}
    root = Path(settings.BASE_DIR)
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "INFO"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GREENSERVE_")}
    done = subprocess.run(command, cwd=root, env=kept | names, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_pages_allow_no_inline_script_and_nothing_from_elsewhere(client):
    policy = client.get("/sign-in/").headers["Content-Security-Policy"]
    scripts = next(part for part in policy.split(";") if part.strip().startswith("script-src")).split()[1:]
    assert scripts == ["'self'"]
    assert "default-src 'none'" in policy
    assert "http" not in policy


# -- the command -----------------------------------------------------------------------------------


def test_command_makes_the_first_administrator_and_a_token(site, client):
    run = CliRunner().invoke
    made = run(cli, ["user", "create", "ada", "--role", "administrator"])
    assert made.exit_code == 0, made.output
    assert sign_in(client, made.output.split(": ")[-1].strip(), "ada").status_code == 302
    refused = run(cli, ["user", "role", "ada", "viewer"])
    assert (refused.exit_code, "only administrator" in refused.output) == (2, True)
    assert run(cli, ["user", "create", "nora", "--role", "operator", "--site", "ashburn"]).exit_code == 0
    assert "there is no site 'x'" in run(cli, ["user", "role", "nora", "operator", "--site", "x"]).output
    made = run(cli, ["user", "token", "nora", "--label", "nightly", "--right", "view"])
    found, _ = authenticated(made.output.strip())
    assert found.get_username() == "nora"
    assert (
        "rights: A token has no right"
        in run(cli, ["user", "token", "nora", "--label", "x", "--right", "finance"]).output
    )
    assert "nora: operator, ashburn" in run(cli, ["user", "list"]).output
    assert run(cli, ["user", "password", "nobody"]).exit_code == 2
    assert set(AuditEntry.objects.exclude(kind="sign-in").values_list("channel", flat=True)) == {"command"}
