"""Loads the demo fleet: creates what is missing, changes nothing that is there.

Testbed of FREESH (arXiv 2511.00807), section 4: location 1 has nodes of 4 A100 and 4 H100, location 2 of 8 A100,
4 A100 and 2 H100, location 3 of 8 A100. The paper draws on PJM's marginal emission rates without naming its nodes
of the grid; the three PJM zones here are our choice, and their curves are synthetic (`carbon_curve.py`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.apps import apps
from django.db import transaction

from core.engine import engine_model
from core.policy.knobs import DYNAMO, WHOLE
from pools.models import (
    Cluster,
    Gpu,
    ModelCard,
    Node,
    Partition,
    Pool,
    Profile,
    ProfileSource,
    RequestClass,
    Service,
    Site,
    Slo,
    Tenant,
)
from pools.writes import ensure_partition, ensure_pools

PROFILES_FILE = Path(__file__).with_name("freesh_profiles.csv")
PROFILES_SOURCE = "FREESH (arXiv 2511.00807), profile constants of its released code"
A100, H100 = "A100-80GB", "H100-SXM-80GB"
TENANTS = {"acme": "Acme", "birch": "Birch", "cobalt": "Cobalt", "dune": "Dune"}
SPEEDUP = 30.0  # the demo's grid day lasts 48 minutes: one 5-minute step, 10 s


@dataclass(frozen=True, slots=True)
class SiteSpec:
    name: str
    label: str
    grid_zone: str
    time_zone: str
    curve: str
    nodes: dict[str, tuple[str, int]]  # node -> (GPU type, GPUs)


SITES = (
    SiteSpec(
        "location-1",
        "Location 1",
        "US-PJM-DOM",
        "America/New_York",
        "solar",
        {"loc1-a100": (A100, 4), "loc1-h100": (H100, 4)},
    ),
    SiteSpec(
        "location-2",
        "Location 2",
        "US-PJM-COMED",
        "America/Chicago",
        "wind",
        {"loc2-a100-8": (A100, 8), "loc2-a100-4": (A100, 4), "loc2-h100": (H100, 2)},
    ),
    SiteSpec("location-3", "Location 3", "US-PJM-AEP", "America/New_York", "coal", {"loc3-a100": (A100, 8)}),
)

# FREESH table 4: input and output lengths at which the two partitions cut. No upper bounds: every request has a class.
PARTITIONS = {"freesh-a": (184, 444), "freesh-b": (25, 232)}
# FREESH table 7: thresholds of the clock loop in seconds (TTFT, TPOT, E2E), classes in order of size.
THRESHOLDS = {"SS": (0.3, 0.15, 7.0), "SL": (0.3, 0.15, 27.0), "LS": (0.6, 0.15, 10.0), "LL": (0.6, 0.15, 30.0)}
# The demo's traffic: 3 requests/s, in its busiest five seconds some 5; mean lengths of the Azure conversation trace of
# 2023 (AzurePublicDataset, CC-BY).
EXPECTED_LOAD = {"expected_rps": 5.0, "expected_prompt_tokens": 1155, "expected_output_tokens": 211}
OBJECTIVES_S = {"ttft": 2.0, "tpot": 0.15, "e2e": 60.0}


@transaction.atomic
def load() -> Service:
    """Idempotent: rows are found by their natural keys, and those that exist keep their values."""
    sites = [_site(rank, spec) for rank, spec in enumerate(SITES)]
    card, _ = ModelCard.objects.get_or_create(
        name="Llama3-70B",
        # 16,384 rather than the model's 8,192 so that the longest request of the Azure trace (14,050 + 1,000) fits.
        defaults={
            "hugging_face_id": "meta-llama/Meta-Llama-3-70B-Instruct",
            "max_model_len": 16_384,
            "engine": "vllm-v1",
        },
    )
    partitions = [_partition(name, *bounds) for name, bounds in PARTITIONS.items()]
    _profiles(card)
    service, created = Service.objects.get_or_create(
        name="llama3-70b",
        defaults={
            "model_card": card,
            "partition": partitions[0],
            "description": "Demo service on simulated nodes.",
            **EXPECTED_LOAD,
        },
    )
    if created:
        service.partitions.set(partitions)
        for kind, objective_s in OBJECTIVES_S.items():
            Slo.objects.create(service=service, kind=kind, objective_s=objective_s, percentile=99.0)
    for site in sites:
        for request_class in RequestClass.objects.filter(partition__in=partitions):
            Pool.objects.get_or_create(service=service, site=site, request_class=request_class)
    for name in (WHOLE, DYNAMO):  # for policies that ask for them; the carbon loop does not choose them
        ensure_pools(service, ensure_partition(name))
    for name, label in TENANTS.items():
        Tenant.objects.get_or_create(name=name, defaults={"label": label})
    return service


def _site(rank: int, spec: SiteSpec) -> Site:
    site, _ = Site.objects.get_or_create(
        name=spec.name,
        defaults={
            "label": spec.label,
            "grid_zone": spec.grid_zone,
            "time_zone": spec.time_zone,
            "currency": "USD",
            "rank": rank,
        },
    )
    cluster, _ = Cluster.objects.get_or_create(site=site, name="main")
    for name, (gpu_type, count) in spec.nodes.items():
        node, _ = Node.objects.get_or_create(name=name, defaults={"cluster": cluster, "simulated": True})
        _gpus(node, gpu_type, count)
    # pools may not import telemetry, which stands above it; the feed belongs to the site all the same.
    apps.get_model("telemetry", "CarbonFeed").objects.get_or_create(
        site=site,
        signal="average",
        defaults={
            "provider": "static_csv",
            "config": {
                "file": "pools.demo:carbon_day.csv",
                "zone": spec.grid_zone,
                "repeat": "day",
                "speedup": SPEEDUP,
            },
            "source": f"Synthetic {spec.curve} day, not measured; played {SPEEDUP:g} times as fast: 5 min last 10 s",
        },
    )
    return site


def _gpus(node: Node, gpu_type: str, count: int) -> None:
    """Makes GPUs as the simulated node reports them: `SIM-<node>-<index>`, limits from the engine model."""
    params = engine_model.gpu(gpu_type)
    for index in range(count):
        Gpu.objects.get_or_create(
            uuid=f"SIM-{node.name}-{index}",
            defaults={
                "node": node,
                "index": index,
                "gpu_type": gpu_type,
                "memory_gb": params.mem_gb,
                "min_mhz": params.f_min,
                "max_mhz": params.f_max,
                "tdp_w": params.tdp_w,
            },
        )


def _partition(name: str, input_cut: int, output_cut: int) -> Partition:
    partition, created = Partition.objects.get_or_create(
        name=name, defaults={"source": "FREESH (arXiv 2511.00807), table 4; thresholds of table 7"}
    )
    if created:
        for rank, (label, thresholds) in enumerate(THRESHOLDS.items()):
            ttft_s, tpot_s, e2e_s = thresholds
            RequestClass.objects.create(
                partition=partition,
                name=label,
                rank=rank,
                input_min=input_cut if label[0] == "L" else 0,
                input_max=None if label[0] == "L" else input_cut,
                output_min=output_cut if label[1] == "L" else 0,
                output_max=None if label[1] == "L" else output_cut,
                ttft_threshold_s=ttft_s,
                tpot_threshold_s=tpot_s,
                e2e_threshold_s=e2e_s,
            )
    return partition


def profile_rows() -> Iterator[dict[str, str]]:
    """Yields the fixture's rows as text; an empty figure is unknown."""
    with PROFILES_FILE.open(newline="") as file:
        yield from csv.DictReader(file)


def _profiles(card: ModelCard) -> None:
    classes = {(c.partition.name, c.name): c for c in RequestClass.objects.select_related("partition")}
    for row in profile_rows():
        Profile.objects.get_or_create(
            model_card=card,
            request_class=classes[row["partition"], row["request_class"]],
            gpu_type=row["gpu_type"],
            tp=int(row["tp"]),
            source=PROFILES_SOURCE,
            defaults={
                "max_rps": float(row["max_rps"]),
                "power_w": float(row["power_w"]),
                "ttft_s": _figure(row["ttft_s"]),
                "tpot_s": _figure(row["tpot_s"]),
                "e2e_s": _figure(row["e2e_s"]),
                "kind": ProfileSource.PUBLISHED,
                "note": row["note"],
            },
        )


def _figure(text: str) -> float | None:
    return float(text) if text else None
