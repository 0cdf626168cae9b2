"""The identity provider of GREENSERVE_OIDC_*: people sign in where their organisation has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from telemetry.providers.secrets import Secret

ROLES = ("viewer", "operator", "finance", "administrator")  # the last is the most: it wins where groups say several
PREFIX = "GREENSERVE_OIDC_"


@dataclass(frozen=True, slots=True)
class OidcProvider:
    """`url`: the issuer, under which `.well-known/openid-configuration` lies. `roles`: by group; `*` is everybody."""

    url: str
    client_id: str
    client_secret: Secret
    name: str = "single sign-on"
    groups_claim: str = "groups"
    roles: Mapping[str, str] = field(default_factory=dict)


def read(
    values: Mapping[str, str], hidden: Callable[[Mapping[str, str], str, Callable[[str], str], str], str | None]
) -> OidcProvider | None:
    """Returns None where GREENSERVE_OIDC_URL is not set. `hidden` reads a variable and never repeats it in an error."""
    url = hidden(values, PREFIX + "URL", _url, "write https://host/path, the issuer as your provider names it")
    if url is None:
        return None
    needed = "give what your provider says; GREENSERVE_OIDC_URL needs it"
    missing = "\0"  # no word: what is not given is an error of its own
    given = {name: values.get(PREFIX + name, "").strip() or missing for name in ("CLIENT_ID", "CLIENT_SECRET")}
    given = {PREFIX + name: word for name, word in given.items()}
    client_id = hidden(given, PREFIX + "CLIENT_ID", _word, needed) or ""
    secret = hidden(given, PREFIX + "CLIENT_SECRET", _word, needed) or ""
    groups = hidden(
        values, PREFIX + "GROUPS", _checked, f"write group=role; group=role, where roles are {', '.join(ROLES)}"
    )
    return OidcProvider(
        url=url,
        client_id=client_id,
        client_secret=Secret(secret),
        name=hidden(values, PREFIX + "NAME", _word, "give the name that stands on the button") or "single sign-on",
        groups_claim=hidden(values, PREFIX + "GROUPS_CLAIM", _word, "give the claim's name") or "groups",
        roles=_roles(groups or ""),
    )


def _url(raw: str) -> str:
    parts = urlsplit(raw)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not parts.hostname or (parts.scheme != "https" and not (local and parts.scheme == "http")):
        raise ValueError
    return raw.rstrip("/")


def _word(raw: str) -> str:
    if not raw or not raw.isprintable() or len(raw) > 500:
        raise ValueError
    return raw


def _checked(raw: str) -> str:
    _roles(raw)
    return raw


def _roles(raw: str) -> dict[str, str]:
    """Reads `ops=operator; cfo=finance`. Groups may have commas and equals signs, as in LDAP: the last one counts."""
    found: dict[str, str] = {}
    for part in filter(None, (word.strip() for word in raw.split(";"))):
        group, _, role = (word.strip() for word in part.rpartition("="))
        if not group or role not in ROLES:
            raise ValueError
        found[group] = role
    return found
