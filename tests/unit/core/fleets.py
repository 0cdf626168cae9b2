"""Small fleets to plan for, and strategies that draw them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from core.types import (
    CarbonObservation,
    ClassDemand,
    Limits,
    Mode,
    ModeProfile,
    PartitionOption,
    PoolKey,
    PoolView,
    SiteView,
    Source,
)

A2, A4, A8, H4 = (
    Mode("A100-80GB", 2),
    Mode("A100-80GB", 4),
    Mode("A100-80GB", 8),
    Mode("H100-SXM-80GB", 4),
)
MODES = (A2, A4, A8, H4)


def profile(max_rps: float, power_w: float, **latencies: float) -> ModeProfile:
    return ModeProfile(
        max_rps,
        power_w,
        latencies.get("ttft_s"),
        latencies.get("tpot_s"),
        latencies.get("e2e_s"),
        Source.PUBLISHED,
    )


# Power grows slower than capacity: larger modes are cheaper per request, smaller ones cheaper for little demand.
PROFILES = {A2: profile(2.0, 740.0), A4: profile(5.0, 1_400.0), A8: profile(12.0, 2_300.0), H4: profile(9.0, 1_250.0)}


def demand(name: str, rps: float, limits: Limits | None = None) -> ClassDemand:
    return ClassDemand(name, (rps / 2, rps), limits or Limits())


def partition(name: str = "p", **rps: float) -> PartitionOption:
    classes = tuple(demand(item, value) for item, value in rps.items())
    return PartitionOption(name, classes, {(item, mode): figures for item in rps for mode, figures in PROFILES.items()})


def site(name: str, *intensity: float | None, a100: int = 8, h100: int = 0, pue: float = 1.0) -> SiteView:
    gpus = {gpu: count for gpu, count in (("A100-80GB", a100), ("H100-SXM-80GB", h100)) if count}
    return SiteView(name, gpus, pue, intensity or (300.0, 300.0))


def observation(sites: tuple[SiteView, ...], *partitions: PartitionOption) -> CarbonObservation:
    return CarbonObservation(1_000.0, 300.0, sites, partitions)


def pool(
    rps: float,
    budget: dict[str, int],
    workers: dict[Mode, int] | None = None,
    profiles: dict[Mode, ModeProfile] | None = None,
    limits: Limits | None = None,
) -> PoolView:
    return PoolView(
        PoolKey("north", "LS"),
        budget,
        workers or {},
        demand("LS", rps, limits),
        PROFILES if profiles is None else profiles,
    )


@st.composite
def drawn_partitions(draw: st.DrawFn, name: str) -> PartitionOption:
    names = ("SS", "LL")[: draw(st.integers(1, 2))]
    classes = tuple(demand(item, draw(st.floats(0.0, 12.0))) for item in names)
    profiles = {
        (item, mode): profile(draw(st.sampled_from([0.0, 1.0, 2.5, 4.0, 9.0])), draw(st.floats(200.0, 3_000.0)))
        for item in names
        for mode in MODES
    }
    return PartitionOption(name, classes, profiles)


@st.composite
def drawn_sites(draw: st.DrawFn) -> tuple[SiteView, ...]:
    return tuple(
        replace(
            site(
                name,
                *draw(st.lists(st.floats(0.0, 900.0), min_size=2, max_size=2)),
                a100=draw(st.sampled_from([0, 2, 4, 8, 12])),
                h100=draw(st.sampled_from([0, 2, 4])),
                pue=draw(st.floats(1.0, 1.6)),
            ),
            price_usd_per_kwh=tuple(draw(st.lists(st.floats(0.0, 0.5), min_size=2, max_size=2))),
        )
        for name in ("north", "south")
    )
