from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from django.conf import settings
from django.test import override_settings

from frontend.debug_page import HiddenSettings
from greenserve.plain_errors import in_plain_words

URL = "postgresql://me:s%40fe-word@db.example:5432/name"


def test_commands_say_and_keep_errors_without_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GREENSERVE_VAR", str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", URL)
    monkeypatch.setenv("GREENSERVE_DATABASE_OWNER_URL", "postgresql://owns:hush-owner@db.example/name")
    monkeypatch.setenv("GREENSERVE_SECRET_KEY", "hush-secret-key")
    monkeypatch.setattr(sys, "argv", ["greenserve", "apply", "--at", "http://ada:hush@web/"])
    with pytest.raises(SystemExit), in_plain_words("greenserve"):
        raise ValueError(f"cannot reach {URL} with s@fe-word, hush-owner, hush-secret-key")
    log = tmp_path / "log" / "errors.log"
    for text in (capsys.readouterr().err, log.read_text()):
        assert "postgresql://me:***@db.example" in text
        assert not any(word in text for word in ("fe-word", "hush"))
    assert stat.S_IMODE(log.stat().st_mode) & 0o027 == 0
    assert stat.S_IMODE(log.parent.stat().st_mode) & 0o027 == 0


def test_debug_page_hides_where_redis_is() -> None:
    with override_settings(REDIS_URL="redis://:hush@cache/0", CELERY_BROKER_URL="redis://:hush@cache/0"):
        shown = HiddenSettings().get_safe_settings()
    assert "hush" not in str(shown["REDIS_URL"]) + str(shown["CELERY_BROKER_URL"])
    assert shown["LANGUAGE_CODE"] == "en"
    assert settings.DEFAULT_EXCEPTION_REPORTER_FILTER == "frontend.debug_page.HiddenSettings"
