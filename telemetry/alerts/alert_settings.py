"""What settings say about alerts, checked: a bad value is named where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.utils.module_loading import import_string

from telemetry.providers.secrets import Secret

from . import webhook
from .alert_rules import rules
from .alert_state_machine import Rule
from .sources import Source

PERIODS_AGO = 4.0  # rounds missed until waiting begins anew


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels on which people are notified of alerts. None or empty: this channel is not used.

    `webhook_private`: a webhook may lie at a private address, and there speak plain http; `webhook_hosts`: these may,
    whatever `webhook_private` is.
    """

    emails: tuple[str, ...] = ()
    webhook_url: Secret | None = None
    webhook_secret: Secret | None = None
    webhook_private: bool = False
    webhook_hosts: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        return (*(("email",) if self.emails else ()), *(("webhook",) if self.webhook_url else ()))


def period_s() -> float:
    return float(settings.GREENSERVE_ALERTS["period_s"])


def longest_pause_s() -> float:
    return PERIODS_AGO * period_s()


def all_rules() -> dict[str, Rule]:
    """Raises ValueError naming the rule and field that cannot be used."""
    changes: Mapping[str, Mapping[str, Any]] = settings.GREENSERVE_ALERTS["rules"]
    return rules(float(settings.GREENSERVE_CARBON_REFRESH_S), changes)


def sources() -> list[Source]:
    return [import_string(path) for path in settings.GREENSERVE_ALERTS["sources"]]


def channels() -> Channels:
    found = settings.GREENSERVE_ALERTS
    return Channels(
        found["emails"] if settings.MAIL_SERVER is not None else (),
        *(found["webhook_url"], found["webhook_secret"], found["webhook_private"], found["webhook_hosts"]),
    )


@register
def check(**_: object) -> list[CheckMessage]:
    """For `manage.py check`, and so before anything is started: what is set makes sense, and does what it says."""
    found, wrong = settings.GREENSERVE_ALERTS, list[CheckMessage]()
    try:
        all_rules()
    except ValueError as error:
        wrong.append(Error(f"GREENSERVE_ALERTS['rules']: {error}", id="greenserve.E001"))
    if found["emails"] and settings.MAIL_SERVER is None:
        wrong.append(
            Error("GREENSERVE_ALERT_EMAILS needs a mail server: set GREENSERVE_EMAIL_URL", id="greenserve.E002")
        )
    if found["webhook_url"] is not None:
        try:
            webhook.target(found["webhook_url"].reveal(), found["webhook_private"], found["webhook_hosts"])
        except ValueError as error:
            wrong.append(Error(f"GREENSERVE_ALERT_WEBHOOK_URL: {error}", id="greenserve.E003"))
    return wrong
