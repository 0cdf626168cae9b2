"""Template filters for quantities; the rules are `frontend.formats`."""

from __future__ import annotations

from datetime import UTC, datetime

from django import template

from frontend import formats
from telemetry.report_values.unit_scale import written

register = template.Library()


@register.filter
def si(value: float | None, unit: str) -> str:
    return formats.si(value, unit)


@register.filter
def seconds(value: float | None) -> str:
    return formats.seconds(value)


@register.filter
def percent(share: float | str | None, digits: int = 1) -> str:
    """Writes a share, which may be an exact decimal, in percent."""
    return formats.percent(None if share is None else float(share), digits)


@register.filter
def figures(value: float | None, digits: int = 3) -> str:
    return formats.UNKNOWN if value is None else formats.figures(value, digits)


@register.filter
def decimal(text: str | None, places: int = 2) -> str:
    """Writes an exact decimal with so many places, thousands apart; what is not nothing is never written as nothing."""
    return formats.UNKNOWN if text is None else written(float(text), places)


@register.filter
def kwh(energy_j: float | None) -> str:
    """Metered energy the way it is billed."""
    return formats.UNKNOWN if energy_j is None else formats.si(energy_j / 3_600.0, "Wh")


@register.filter
def moment(at_s: float | None) -> datetime | None:
    """Converts Unix seconds to a time that `date` and `time` filters write in the reader's zone."""
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)


@register.filter
def words(name: str) -> str:
    return formats.words(str(name))


@register.filter
def make_list_of(names: str) -> list[str]:
    """Splits a comma-separated text into a list: headings of a table."""
    return names.split(",")


@register.filter
def code(text: str) -> list[tuple[str, bool]]:
    """Splits at backticks: pieces with whether each is a command, for `{% for piece, is_code in text|code %}`."""
    return [(piece, bool(n % 2)) for n, piece in enumerate(text.split("`")) if piece]


@register.filter
def pairs(text: str) -> list[tuple[str, str]]:
    """Splits `Name:key,Other:` into pairs: headings of a table with the keys that they sort by."""
    return [(label, key) for label, _, key in (part.partition(":") for part in text.split(","))]


@register.filter
def unlocalised(value: float) -> str:
    """Writes a number as attributes of HTML need it."""
    return f"{value:.4g}"


@register.filter
def change(share: float | None) -> str:
    """Says in words how much more or less it is than in the same hours of last week."""
    if share is None:
        return formats.UNKNOWN
    return f"{share * 100:+.1f}\u00a0% on last week\u2019s same hours"
