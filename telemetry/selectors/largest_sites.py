"""Selects of many sites the largest few, and adds up all others as one: what a chart can show. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from telemetry.selectors.frames import SiteCarbon, SitePower, Values

OTHERS = "others"  # no site's name: a site of this name is distinguished by its colour


def names(sites: Sequence[SitePower], most: int | None, named: Collection[str] | None = None) -> frozenset[str]:
    """Returns the `most` sites that used most energy, of those `named`; all of these where only one would be left over.

    Energies count to three figures, then the order of sites: near equals do not take turns with each refresh.
    """
    if named is not None:
        sites = [site for site in sites if site.site in named]
    if most is None or len(sites) <= most + 1:
        return frozenset(site.site for site in sites)
    used = {site.site: float(f"{sum(v or 0.0 for v in (*site.in_use_w, *site.idle_w)):.2e}") for site in sites}
    ordered = sorted(sites, key=lambda site: -used[site.site])
    return frozenset(site.site for site in ordered[:most])


def powers(sites: Sequence[SitePower], drawn: Collection[str]) -> tuple[SitePower, ...]:
    kept = tuple(site for site in sites if site.site in drawn)
    rest = [site for site in sites if site.site not in drawn]
    if not rest:
        return kept
    others = SitePower(
        site=OTHERS,
        label=f"{len(rest)} other{'s' * (len(rest) > 1)}",
        colour=None,
        in_use_w=total([site.in_use_w for site in rest]),
        idle_w=total([site.idle_w for site in rest]),
        silent=tuple(any(column) for column in zip(*(site.silent for site in rest), strict=True)),
        together=len(rest),
    )
    return (*kept, others)


def carbons(sites: Sequence[SiteCarbon], drawn: Collection[str]) -> tuple[SiteCarbon, ...]:
    kept = tuple(site for site in sites if site.site in drawn)
    rest = [site for site in sites if site.site not in drawn]
    if not rest:
        return kept
    others = SiteCarbon(
        site=OTHERS,
        label=f"{len(rest)} other{'s' * (len(rest) > 1)}",
        colour=None,
        rate_g_per_h=total([site.rate_g_per_h for site in rest]),
        unknown=tuple(any(column) for column in zip(*(site.unknown for site in rest), strict=True)),
        together=len(rest),
    )
    return (*kept, others)


def total(series: Sequence[Values]) -> Values:
    """Returns sums of what is known in each bucket; None where nothing is."""
    return tuple(
        sum(known) if (known := [value for value in column if value is not None]) else None
        for column in zip(*series, strict=True)
    )
