"""Sign-in and API keys of the demo: made at random once, kept in one file, restored into a fresh database from it."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.db import transaction

from pools.models import Tenant
from pools.writes import new_secret, register_key

from .demo_fleet import TENANTS

ADMIN = "admin"


class CredentialsError(Exception):
    """The credentials file cannot be used; the text says what to do."""


def credentials_path(var_dir: Path | str) -> Path:
    return Path(var_dir) / "demo-credentials.json"


def ensure_demo_credentials(var_dir: Path | str) -> dict[str, Any]:
    """Returns `{"admin": {"user", "password"}, "api_keys": {tenant: secret}}` and makes the database agree with it.

    The file under `var_dir` (mode 0600) is the only place where the secrets stand. Without it new ones are made and
    the demo's administrator gets the new password; with it, what the database lacks is restored and nothing else is
    touched: a password that somebody changed stays changed.

    Raises:
        CredentialsError: the file is there but is not what we wrote.
    """
    path = credentials_path(var_dir)
    fresh = not path.exists()
    found = _create(path) if fresh else _read(path)
    with transaction.atomic():
        user, created = get_user_model().objects.get_or_create(
            username=found["admin"]["user"], defaults={"is_staff": True, "is_superuser": True}
        )
        if created or fresh:
            user.set_password(found["admin"]["password"])
            user.save(update_fields=["password"])
        for name, secret in found["api_keys"].items():
            tenant, _ = Tenant.objects.get_or_create(name=name, defaults={"label": TENANTS.get(name, "")})
            register_key(tenant, secret, label="demo")
    return found


def _create(path: Path) -> dict[str, Any]:
    """Writes a new file whole or not at all; the loser of a race takes the winner's."""
    made = {
        "admin": {"user": ADMIN, "password": secrets.token_urlsafe(12)},
        "api_keys": {name: new_secret() for name in TENANTS},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(made, file, indent=2)
        file.write("\n")
    try:
        os.link(draft, path)
    except FileExistsError:
        return _read(path)
    finally:
        draft.unlink()
    return made


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        ok = isinstance(found["admin"]["user"], str) and isinstance(found["admin"]["password"], str)
        ok = ok and all(isinstance(secret, str) and secret for secret in found["api_keys"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        ok = False
    if not ok:
        raise CredentialsError(f"{path} is damaged: remove it and start again to get new credentials")
    return found
