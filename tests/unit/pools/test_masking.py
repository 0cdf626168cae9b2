"""No password, key or token is in what people read, whoever wrote it."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
import uvloop
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError

from greenserve import env
from pools import masking
from pools.gateway import __main__ as gateway
from pools.gateway.picker import __main__ as picker
from pools.masking import masked

URL = "postgresql://me:s%40fe-word@db.example:5432/name"
REDIS_URL = "redis://:hush-hush@cache.example:6379/0"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"no server at {URL}!", "no server at postgresql://me:***@db.example:5432/name!"),
        ("redis://:s@fe@cache/0", "redis://:***@fe@cache/0"),
        ("unix:///run/redis.sock?db=1&password=hush", "unix:///run/redis.sock?db=1&password=***"),
        ("it is at http://10.0.0.1:8000/x for me@example.org", "it is at http://10.0.0.1:8000/x for me@example.org"),
        ("Authorization: Bearer abcdefgh.12345", "Authorization: Bearer ***"),
        (f"key gs-{'x' * 43}, token gs_{'y' * 43}, gsj_{'z' * 43}", "key gs-***, token gs_***, gsj_***"),
        ("gs-1 is a name, and a bearer of news is none", "gs-1 is a name, and a bearer of news is none"),
        ("connection to server at 127.0.0.1 failed", "connection to server at 127.0.0.1 failed"),
    ],
)
def test_addresses_lose_their_passwords_wherever_they_stand(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_a_known_password_is_masked_as_written_and_as_meant() -> None:
    said = 'invalid percent-encoded token: "s%40fe-word"; password "s@fe-word" of me; query hush'
    shown = 'invalid percent-encoded token: "***"; password "***" of me; query ***'
    assert masked(said, URL, None, "unix:///run/redis.sock?password=hush") == shown


@pytest.fixture
def said() -> Iterator[Callable[[], str]]:
    """What a process logs to a handler of its own, once its logs are masked; puts all back as it was."""
    before = logging.getLogRecordFactory(), sys.excepthook, threading.excepthook
    stream, log = io.StringIO(), logging.getLogger("masked")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log.addHandler(handler)
    yield stream.getvalue
    log.removeHandler(handler)
    logging.setLogRecordFactory(before[0])
    sys.excepthook, threading.excepthook = before[1:]


def bad_address_of_postgresql() -> None:
    psycopg.connect(URL.replace("%40", "%zz"))


def answer_of_redis() -> None:
    raise redis.AuthenticationError(f"wrong password 'hush-hush' at {REDIS_URL}")


def error_of_django() -> None:
    try:
        raise psycopg.OperationalError(f"no server at {URL}, s@fe-word is no password of me")
    except psycopg.OperationalError as error:
        raise OperationalError("the database is away") from error


def bad_settings() -> None:
    raise ImproperlyConfigured(f"DATABASE_URL={URL} REDIS_URL={REDIS_URL} key the-secret-key-of-all")


SECRETS = ("fe-word", "hush", "the-secret-key")
RAISES = (bad_address_of_postgresql, answer_of_redis, error_of_django, bad_settings)


@pytest.mark.parametrize("raises", RAISES)
def test_log_lines_and_tracebacks_have_no_secrets(raises: Callable[[], None], said: Callable[[], str]) -> None:
    known = [*masking.passwords(URL.replace("%40", "%zz")), *masking.passwords(URL), *masking.passwords(REDIS_URL)]
    masking.mask_logs(*known, "the-secret-key-of-all", None)
    try:
        raises()
    except Exception as error:
        logging.getLogger("masked").exception("it failed: %s", error, stack_info=True)
    text = said()
    assert "Traceback" in text
    assert raises.__name__ in text, "the traceback itself is there"
    assert not any(word in text for word in SECRETS), text


def test_errors_that_nobody_catches_have_no_secrets(
    said: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    masking.mask_logs(*masking.passwords(REDIS_URL))
    try:
        answer_of_redis()
    except redis.AuthenticationError as error:
        sys.excepthook(type(error), error, error.__traceback__)
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
    text = capsys.readouterr().err
    assert text.count("AuthenticationError: wrong password '***'") == 2
    assert "hush" not in text


def test_short_passwords_do_not_blot_ordinary_lines(said: Callable[[], str]) -> None:
    masking.mask_logs("a")
    logging.getLogger("masked").error("all is at redis://:a@cache/0")
    assert said() == "ERROR all is at redis://:***@cache/0\n"


def test_settings_know_all_their_secrets_and_mask_logs(tmp_path: Path) -> None:
    import greenserve.settings  # noqa: F401 - as each process with Django does

    assert logging.getLogRecordFactory().__name__ == "MaskedRecord"
    found = env.read(
        {
            "GREENSERVE_VAR": str(tmp_path),
            "DATABASE_URL": URL,
            "GREENSERVE_DATABASE_OWNER_URL": "postgresql://owns:hush-owner@db/name",
            "REDIS_URL": REDIS_URL,
            "GREENSERVE_SECRET_KEY": "hush-secret-key",
            "GREENSERVE_EMAIL_URL": "smtp://me:hush-mail@mail.example",
            "GREENSERVE_EIA_KEY": "hush-eia",
            **{f"GREENSERVE_{name}TOKEN": f"hush-{name}-long-enough" for name in ("", "WORKER_", "METRICS_")},
            "GREENSERVE_ALERT_WEBHOOK_SECRET": "hush-webhook-secret",
            "GREENSERVE_ALERT_WEBHOOK_URL": "https://hooks.example/hush-path",
            "GREENSERVE_OIDC_URL": "https://id.example",
            "GREENSERVE_OIDC_CLIENT_ID": "us",
            "GREENSERVE_OIDC_CLIENT_SECRET": "hush-oidc",
        }
    )
    assert set(found.secrets) == {
        *("s%40fe-word", "s@fe-word", "hush-owner", "hush-hush", "hush-secret-key", "hush-mail", "hush-eia"),
        *("hush--long-enough", "hush-WORKER_-long-enough", "hush-METRICS_-long-enough", "hush-webhook-secret"),
        *("https://hooks.example/hush-path", "hush-oidc"),
    }


@pytest.mark.parametrize("program", [gateway, picker])
def test_gateway_and_picker_mask_their_logs(
    program: object, said: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "redis-url"
    where.write_text(REDIS_URL)

    def run(serving: object) -> int:
        serving.close()  # type: ignore[attr-defined]
        logging.getLogger("masked").error("no hush-hush at %s", REDIS_URL)
        return 0

    monkeypatch.setattr(uvloop, "run", run)
    words = ["--redis-url-file", str(where), "--spool", str(tmp_path)]
    assert program.main([*words, "--redis-insecure"]) == 0  # type: ignore[attr-defined]
    assert said() == "ERROR no *** at redis://:***@cache.example:6379/0\n"
