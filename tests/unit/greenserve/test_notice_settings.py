"""Variables about mail, webhooks and metrics: good ones read, bad ones named without being repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenserve import env, mail
from telemetry.alerts import webhook


def read(tmp_path: Path, **values: str) -> env.Env:
    return env.read({"GREENSERVE_VAR": str(tmp_path), **values})


def test_nothing_is_set_by_default(tmp_path):
    found = read(tmp_path)
    assert (found.mail_server, found.alert_emails, found.alert_webhook_url, found.metrics_token) == (
        None,
        (),
        None,
        None,
    )
    assert found.otlp_url is None


def test_values_are_read_and_secrets_do_not_show(tmp_path):
    found = read(
        tmp_path,
        GREENSERVE_EMAIL_URL="smtp://me:p%40ss@mail.example.org",
        GREENSERVE_ALERT_EMAILS="a@example.org, b@example.org",
        GREENSERVE_ALERT_WEBHOOK_URL="https://hooks.example.org/T0/secret-path",
        GREENSERVE_ALERT_WEBHOOK_SECRET="0123456789abcdef",
        GREENSERVE_METRICS_TOKEN="fedcba9876543210",
    )
    assert found.mail_server is not None
    assert (found.mail_server.host, found.mail_server.port, found.mail_server.user) == ("mail.example.org", 587, "me")
    assert found.mail_server.password is not None
    assert found.mail_server.password.reveal() == "p@ss"
    assert found.alert_emails == ("a@example.org", "b@example.org")
    for hidden in ("p@ss", "p%40ss", "secret-path", "0123456789abcdef", "fedcba9876543210"):
        assert hidden not in repr(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GREENSERVE_EMAIL_URL", "http://me:hidden@host"),
        ("GREENSERVE_EMAIL_URL", "smtp://me:hidden@"),
        ("GREENSERVE_EMAIL_URL", "smtp://me:hidden@host:99999"),
        ("GREENSERVE_EMAIL_URL", "smtp+plain://me:hidden@host"),
        ("GREENSERVE_ALERT_WEBHOOK_URL", "ftp://host/hidden"),
        ("GREENSERVE_ALERT_WEBHOOK_URL", "https:///hidden"),
        ("GREENSERVE_ALERT_WEBHOOK_SECRET", "hidden"),
        ("GREENSERVE_METRICS_TOKEN", "hidden and spaced out"),
        ("GREENSERVE_ALERT_EMAILS", "no address"),
        ("GREENSERVE_ALERT_WEBHOOK_PRIVATE", "perhaps"),
        ("GREENSERVE_OTLP_URL", "collector:4318"),
    ],
)
def test_bad_value_is_named_and_what_is_secret_is_not_repeated(tmp_path, name, value):
    with pytest.raises(env.BadEnvironment) as caught:
        read(tmp_path, **{name: value})
    assert name in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "port", "scheme"),
    [("smtps://h", 465, "smtps"), ("smtp://h", 587, "smtp"), ("smtp+plain://h:2525", 2525, "smtp+plain")],
)
def test_mail_server_has_its_schemes_port(url, port, scheme):
    found = mail.parse(url)
    assert (found.port, found.scheme, found.password) == (port, scheme, None)


@pytest.mark.parametrize(
    ("url", "private", "words"),
    [
        ("http://example.org/x", False, "https"),
        ("https://user:pass@example.org/x", False, "without user"),
        ("https://example.org/x#part", False, "fragment"),
        ("https://example.org/a b", False, "letters"),
        ("ftp://example.org/x", True, "https"),
        ("https://[::1/x", False, "no URL"),
    ],
)
def test_bad_webhook_is_refused_in_words_that_do_not_repeat_it(url, private, words):
    with pytest.raises(ValueError, match=words) as caught:
        webhook.target(url, private)
    assert "example.org" not in str(caught.value)


def test_webhook_keeps_its_path_out_of_sight():
    to = webhook.target("https://example.org:8443/hook?token=hidden", private=False)
    assert (to.host, to.port, to.path, to.tls) == ("example.org", 8443, "/hook?token=hidden", True)
    assert "hidden" not in repr(to)
