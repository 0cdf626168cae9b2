"""Does what administrators do with people and keys, and people with their own: each in a transaction, and audited.

Secrets are returned once, to be shown once; what is kept is a hash. Mistakes are ValidationErrors by field.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from allauth.mfa.models import Authenticator
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from pools.access import audit, rights
from pools.access.audit import Actor
from pools.models import AccessToken, ApiKey, Membership, Service, Site, Tenant
from pools.writes import KEY_PREFIX_LENGTH, hash_secret, new_secret

TOKEN_PREFIX = "gs_"
USED_STEP = timedelta(minutes=1)  # so exactly it is kept when a token was last used
Role = Membership.Role


def role_of(user: User) -> Role:
    """Returns the role that the person's rights come from, whether the account is in use or not."""
    if user.is_superuser:
        return Role.ADMINISTRATOR
    membership = Membership.objects.filter(user_id=user.pk).first()
    return Role.VIEWER if membership is None else Role(membership.role)


def shown(user: User) -> dict[str, Any]:
    """Returns a person's fields as the audit trail has them."""
    membership = Membership.objects.filter(user_id=user.pk).prefetch_related("sites").first()
    return {
        "username": user.get_username(),
        "email": user.email,
        "role": str(role_of(user)),
        "sites": [] if membership is None else sorted(site.name for site in membership.sites.all()),
        "active": user.is_active,
    }


@transaction.atomic
def create(
    actor: Actor, username: str, role: str, sites: Iterable[Site] = (), email: str = "", password: str | None = None
) -> tuple[User, str | None]:
    """Adds a person. Without a password one is made, returned, and must be changed when they first sign in."""
    user = get_user_model()(username=username.strip(), email=email.strip())
    given = password is not None
    chosen = password if password is not None else one_time_password()
    if given:
        _checked_password(chosen, user)
    user.set_password(chosen)
    user.full_clean(exclude=["password"])
    user.save()
    _set_membership(user, role, sites, must_change=not given)
    audit.record(actor, "create", user, None, shown(user))
    return user, None if given else chosen


@transaction.atomic
def set_role(actor: Actor, user: User, role: str, sites: Iterable[Site] = ()) -> None:
    """Takes effect with the person's next request. A change revokes their access tokens: those were made for the
    role that they had."""
    before = shown(user)
    if role != Role.ADMINISTRATOR:
        _keep_an_administrator(user, "role")
    if user.is_superuser:
        user.is_superuser = user.is_staff = False
        user.save(update_fields=["is_superuser", "is_staff"])
    _set_membership(user, role, sites)
    after = shown(user)
    if after != before:
        audit.record(actor, "update", user, before, after)
        _revoke_tokens(actor, user)


@transaction.atomic
def set_active(actor: Actor, user: User, active: bool) -> None:
    """Somebody who is not active cannot sign in, open sessions end at once, and access tokens are revoked for good.
    Nobody is deleted: the trail and the decisions keep their names."""
    if not active:
        _keep_an_administrator(user, "active")
    before = shown(user)
    user.is_active = active
    user.save(update_fields=["is_active"])
    audit.record(actor, "activate" if active else "deactivate", user, before, shown(user))
    if not active:
        _revoke_tokens(actor, user)


@transaction.atomic
def reset_password(actor: Actor, user: User) -> str:
    """Sets a new one-time password and returns it; all sessions of the person end, and their tokens are revoked."""
    password = one_time_password()
    user.set_password(password)
    user.save(update_fields=["password"])
    _require_change(user, True)
    audit.record(actor, "reset password", user)
    _revoke_tokens(actor, user)
    return password


@transaction.atomic
def change_password(actor: Actor, user: User, password: str, field: str = "password") -> None:
    """Sets the password that the person chose; all their other sessions end."""
    _checked_password(password, user, field)
    user.set_password(password)
    user.save(update_fields=["password"])
    _require_change(user, False)
    audit.record(actor, "change password", user)


@transaction.atomic
def reset_codes(actor: Actor, user: User) -> bool:
    """Takes two-step sign-in off, with its recovery codes. False where there was none."""
    removed, _ = Authenticator.objects.filter(user=user).delete()
    if removed:
        audit.record(actor, "remove two-step sign-in", user)
    return bool(removed)


@transaction.atomic
def new_token(
    actor: Actor,
    user: User,
    label: str,
    token_rights: Iterable[str],
    sites: Iterable[Site] = (),
    expires_at: datetime | None = None,
) -> tuple[AccessToken, str]:
    """Returns a new access token and its secret. It cannot have a right or a site that the person lacks."""
    asked = [right for right in rights.Right if right in set(token_rights)]
    grant = rights.grant_of(user)
    site_ids = sorted({site.pk for site in sites})
    errors: dict[str, str] = {}
    if not label.strip():
        errors["label"] = "Say what the token is for."
    if not asked:
        errors["rights"] = "Choose at least one right."
    elif not grant.rights.issuperset(asked):
        errors["rights"] = "A token has no right that its person lacks."
    if site_ids and grant.site_ids is not None and not grant.site_ids.issuperset(site_ids):
        errors["sites"] = "A token is for no site that its person's role is not for."
    if rights.Right.ADMINISTER in asked and site_ids:
        errors["sites"] = "The right to administer is for all sites: choose none."
    if expires_at is not None and expires_at <= timezone.now():
        errors["expires_at"] = "Choose a moment in the future."
    if errors:
        raise ValidationError(errors)
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    token = AccessToken(
        user=user,
        label=label.strip(),
        prefix=secret[:KEY_PREFIX_LENGTH],
        token_hash=hash_secret(secret),
        rights=[str(right) for right in asked],
        site_ids=site_ids,
        expires_at=expires_at,
    )
    token.full_clean()
    token.save()
    audit.record(actor, "create", token, None, audit.values(token))
    return token, secret


@transaction.atomic
def revoke_token(actor: Actor, token: AccessToken) -> bool:
    """Revokes a token; returns False where it was revoked already."""
    return _revoke(actor, token)


def find_token(secret: str, now: datetime) -> AccessToken | None:
    """Returns the valid token that a bearer secret is, with its person, or None. Notes when it was used."""
    if not secret.startswith(TOKEN_PREFIX):
        return None
    valid = Q(expires_at=None) | Q(expires_at__gt=now)
    found = (
        AccessToken.objects.filter(valid, token_hash=hash_secret(secret), revoked_at=None, user__is_active=True)
        .select_related("user")
        .first()
    )
    if found is not None and (found.last_used_at is None or now - found.last_used_at >= USED_STEP):
        AccessToken.objects.filter(pk=found.pk).update(last_used_at=now)
    return found


@transaction.atomic
def new_key(
    actor: Actor, tenant: Tenant, label: str, expires_at: datetime | None = None, **may: Any
) -> tuple[ApiKey, str]:
    """Returns a tenant's new key for the gateway, and its secret. Gateways learn of it with the next fleet snapshot.

    Args:
        may: What it may: its limits, services and addresses, by field.
    """
    _check_expiry(expires_at)
    secret = new_secret()
    key = ApiKey(
        tenant=tenant,
        label=label.strip(),
        prefix=secret[:KEY_PREFIX_LENGTH],
        key_hash=hash_secret(secret),
        expires_at=expires_at,
        **may,
    )
    _check_services(key)
    key.full_clean()
    key.save()
    audit.record(actor, "create", key, None, audit.values(key))
    return key, secret


@transaction.atomic
def change_key(actor: Actor, key: ApiKey, **changes: Any) -> ApiKey:
    """Changes the label, the end, or what the key may. Raises ValidationError naming the field."""
    key = ApiKey.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=key.pk)
    before = audit.values(key)
    if changes.get("expires_at", key.expires_at) != key.expires_at:
        _check_expiry(changes["expires_at"])
    for name, value in changes.items():
        setattr(key, name, value)
    if "services" in changes:
        _check_services(key)
    key.full_clean()
    key.save(update_fields=list(changes))
    audit.record(actor, "update", key, before, audit.values(key))
    return key


def _check_expiry(expires_at: datetime | None) -> None:
    if expires_at is not None and expires_at <= timezone.now():
        raise ValidationError({"expires_at": "Choose a moment in the future."})


def _check_services(key: ApiKey) -> None:
    named = set(key.services or ())
    strange = named - set(Service.objects.filter(name__in=named).values_list("name", flat=True))
    if strange:
        raise ValidationError(
            {"services": f"There is no service {sorted(strange)[0]!r}. Name services that are there."}
        )


@transaction.atomic
def revoke_key(actor: Actor, key: ApiKey) -> bool:
    """Revokes a key; returns False where it was revoked already."""
    return _revoke(actor, key)


def _revoke_tokens(actor: Actor, user: User) -> None:
    """Revokes all access tokens of a person whose rights or password somebody else has just set."""
    for token in AccessToken.objects.filter(user=user, revoked_at=None):
        _revoke(actor, token)


def _revoke(actor: Actor, row: AccessToken | ApiKey) -> bool:
    now = timezone.now()
    changed = type(row)._default_manager.filter(pk=row.pk, revoked_at=None).update(revoked_at=now)
    if changed:
        audit.record(actor, "revoke", row, {"revoked_at": None}, {"revoked_at": now})
    return bool(changed)


def one_time_password() -> str:
    """Some 100 bits, in groups that can be read out."""
    letters = "abcdefghjkmnpqrstuvwxyz23456789"
    return "-".join("".join(secrets.choice(letters) for _ in range(5)) for _ in range(4))


def administrators() -> QuerySet[User]:
    """Returns the people who can let others in: those in use whose role is administrator."""
    administers = Q(is_superuser=True) | Q(membership__role=Role.ADMINISTRATOR)
    return get_user_model().objects.filter(administers, is_active=True)


def _set_membership(user: User, role: str, sites: Iterable[Site], must_change: bool | None = None) -> None:
    if role not in Role.values:
        raise ValidationError({"role": f"Choose one of {', '.join(Role.values)}."})
    chosen = list(sites)
    if role == Role.ADMINISTRATOR and chosen:
        raise ValidationError({"sites": "An administrator is for all sites: choose none, or another role."})
    defaults: dict[str, Any] = {"role": role}
    if must_change is not None:
        defaults["must_change_password"] = must_change
    membership, _ = Membership.objects.update_or_create(user=user, defaults=defaults)
    membership.sites.set(chosen)
    user.__dict__.pop("_greenserve_grant", None)


def _require_change(user: User, required: bool) -> None:
    """Somebody made without a role keeps what they have: looking on."""
    Membership.objects.update_or_create(
        user=user,
        defaults={"must_change_password": required},
        create_defaults={
            "must_change_password": required,
            "role": role_of(user),
        },
    )


def _keep_an_administrator(user: User, field: str) -> None:
    """Locks the administrators, so that two cannot take each other's role at the same time."""
    found = list(administrators().select_for_update(of=("self",)).values_list("pk", flat=True))
    if found == [user.pk]:
        raise ValidationError({field: f"{user} is the only administrator: make another one first."})


def _checked_password(password: str, user: User, field: str = "password") -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise ValidationError({field: error.messages}) from None
