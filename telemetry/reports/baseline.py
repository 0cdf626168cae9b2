"""Replays the same requests in the simulator under single_pool. The baseline is modelled.

The baseline is a fleet that is always on: every GPU of the sites that is metered, in instances as large as their nodes
allow (at most eight GPUs), one pool by turns, first come first served, clocks at the top. Its energy has the idle time
of the whole span in it, as the meters' has. Its carbon is at each site's own mean intensity of the period.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.db import connection

from core.engine.engine_model import UnknownConfiguration, engine_model
from core.engine.engine_params import split_fault
from core.simulator.fields import ScenarioError
from core.simulator.kernel.simulated import SimulationError
from core.simulator.runs.runner import requests_of, run_scenario, warm_up
from core.simulator.scenario.scenario import Scenario, parse_scenario
from core.simulator.workload.trace import TraceError
from core.units import J_PER_WH, UJ_PER_J
from pools.models import Gpu, Service
from telemetry.report_values.basis import Baseline
from telemetry.report_values.errors import BadReport

POLICY = "single_pool"
MOST_REQUESTS = 5_000_000
SIZES = (8, 4, 2, 1)  # GPUs of an instance

COUNT_SQL = """
SELECT service, count(*) FILTER (WHERE {usable}), count(*) FILTER (WHERE ({usable}) IS NOT TRUE),
       sum(output_tokens) FILTER (WHERE {usable}), count(*) FILTER (WHERE status = 'ok' AND ({usable}) IS NOT TRUE)
FROM telemetry_requestrecord r LEFT JOIN pools_pool p ON p.id = r.pool_id
WHERE r.started_at >= %(start)s AND r.started_at < %(end)s AND p.site_id = ANY(%(sites)s) GROUP BY 1 ORDER BY 1
"""
USABLE = "status = 'ok' AND prompt_tokens > 0 AND output_tokens > 0"
TRACE_SQL = f"""
COPY (SELECT to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') AS "TIMESTAMP",
             prompt_tokens AS "ContextTokens", output_tokens AS "GeneratedTokens"
      FROM telemetry_requestrecord r JOIN pools_pool p ON p.id = r.pool_id
      WHERE r.started_at >= %(start)s AND r.started_at < %(end)s AND p.site_id = ANY(%(sites)s)
        AND service = %(service)s AND {USABLE}
      ORDER BY started_at, request_id) TO STDOUT (FORMAT csv, HEADER)
"""


class WithoutTokens(BadReport):
    """Requests were served whose tokens nobody counted, so that what they would take is not known."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Requests of a service: how many can be replayed, how many cannot, the former's output tokens, and how many of the
    latter were served."""

    usable: int
    left_out: int
    output_tokens: int
    without_tokens: int


@dataclass(frozen=True, slots=True)
class Block:
    """Instances of one kind at one site."""

    site: str
    service: str
    model: str
    engine: str
    gpu_type: str
    tp: int
    count: int


def replayed(
    site_ids: Sequence[int],
    start_s: int,
    end_s: int,
    intensity_ug_per_uj: Mapping[str, float | None],
    service: str | None = None,
) -> Baseline:
    """Replays what began in [start_s, end_s) at these sites.

    Args:
        intensity_ug_per_uj: By site, location-based micrograms for each microjoule at the GPUs; None: not known.
        service: This one alone, with its part of the GPUs by output tokens, and with the tokens of all that it served.

    Raises:
        BadReport: There is nothing to replay, too much of it, or a model or GPU that the engine model does not know.
        WithoutTokens: The service served requests whose tokens nobody counted.
    """
    params: dict[str, Any] = {
        "start": datetime.fromtimestamp(start_s, UTC),
        "end": datetime.fromtimestamp(end_s, UTC),
        "sites": list(site_ids),
    }
    counts = _counts(params)
    chosen = {name: count for name, count in counts.items() if service in (None, name)}
    if service is not None and (without := sum(count.without_tokens for count in chosen.values())):
        raise WithoutTokens("baseline", f"{without} requests were served without a count of their tokens")
    requests = sum(count.usable for count in chosen.values())
    if not requests:
        raise BadReport("baseline", "no request of the period has both its tokens counted: leave the baseline out")
    if requests > MOST_REQUESTS:
        raise BadReport("baseline", f"{requests} requests are more than {MOST_REQUESTS}: ask for a shorter period")
    try:
        every = _fleet(site_ids, {name: count.output_tokens for name, count in counts.items() if count.usable})
        blocks = [block for block in every if block.service in chosen]
        with tempfile.TemporaryDirectory(prefix="greenserve-baseline-") as folder:
            scenario = _scenario(blocks, params, Path(folder))
            warm_up(scenario)
            figures = run_scenario(scenario, requests_of(scenario), POLICY).figures
    except (UnknownConfiguration, ScenarioError, SimulationError, TraceError) as error:
        raise BadReport("baseline", f"cannot be modelled: {error}") from error
    by_site = _energy_j(figures, blocks, max(0.0, end_s - start_s - float(figures["simulated_s"])))
    carbon = [_times(intensity_ug_per_uj.get(site), energy_j) for site, energy_j in by_site.items()]
    return Baseline(
        policy=POLICY,
        energy_uj=round(sum(by_site.values()) * UJ_PER_J),
        location_ug=None if None in carbon else round(sum(ug for ug in carbon if ug is not None)),
        requests=requests,
        left_out=sum(count.left_out for count in chosen.values()) + int(figures["rejected"]),
        how=f"There, {sum(b.count * b.tp for b in blocks)} GPUs are always on at their top clocks. Modelled.",
        span_s=end_s - start_s,
    )


def _times(intensity_ug_per_uj: float | None, energy_j: float) -> float | None:
    return None if intensity_ug_per_uj is None else intensity_ug_per_uj * energy_j * UJ_PER_J


def _counts(params: Mapping[str, Any]) -> dict[str, Counted]:
    with connection.cursor() as cursor:
        cursor.execute(COUNT_SQL.format(usable=USABLE), params)
        return {
            service: Counted(usable, left_out, int(tokens or 0), without)
            for service, usable, left_out, tokens, without in cursor.fetchall()
        }


def _fleet(site_ids: Sequence[int], tokens: Mapping[str, int]) -> list[Block]:
    """Returns all metered GPUs of the sites in instances; several services have parts by output tokens."""
    services = {s.name: s for s in Service.objects.filter(name__in=tokens).select_related("model_card")}
    gpu_counts: dict[tuple[str, str, str], int] = defaultdict(int)
    gpus = Gpu.objects.filter(node__cluster__site__in=site_ids, meter_mark__isnull=False).select_related(
        "node__cluster__site"
    )
    for gpu in gpus.order_by("pk"):
        gpu_counts[gpu.node.cluster.site.name, gpu.node.name, gpu.gpu_type] += 1
    most: dict[tuple[str, str, int], int] = defaultdict(int)
    for (site, _, gpu_type), count in sorted(gpu_counts.items()):
        size = next(size for size in SIZES if size <= count)
        most[site, gpu_type, size] += count // size
    blocks = []
    for name in sorted(services):
        card = services[name].model_card
        share = tokens[name] / sum(tokens.values())
        own = []
        for (site, gpu_type, size), count in sorted(most.items()):
            tp = next(tp for tp in SIZES if tp <= size and not split_fault(card.engine_model_name, gpu_type, tp))
            if engine_model(card.engine_model_name, gpu_type, tp, card.engine).fits:
                able = count * (size // tp)
                part = able if len(services) == 1 else round(able * share)
                own.append(Block(site, name, card.engine_model_name, card.engine, gpu_type, tp, part))
        if own and not any(block.count for block in own):
            first = own[0]
            own[0] = Block(first.site, name, first.model, card.engine, first.gpu_type, first.tp, 1)
        blocks += [block for block in own if block.count]
    if not blocks:
        raise BadReport("baseline", "no instance of these models fits on the sites' GPUs: leave the baseline out")
    return blocks


def _scenario(blocks: Sequence[Block], params: Mapping[str, Any], folder: Path) -> Scenario:
    services: dict[str, Any] = {}
    for name in sorted({block.service for block in blocks}):
        trace = f"{len(services)}.csv"
        with (
            (folder / trace).open("wb") as file,
            connection.cursor() as cursor,
            cursor.copy(TRACE_SQL, {**params, "service": name}) as copy,
        ):
            for part in copy:
                file.write(part)
        model = next(block.model for block in blocks if block.service == name)
        services[name] = {"model": model, "workload": {"trace": trace}}
    fleet = [
        {
            "name": f"group{i}",
            "count": block.count,
            "model": block.model,
            "gpu": block.gpu_type,
            "tp": block.tp,
            "engine": block.engine,
            "site": block.site,
            "services": [block.service],
        }
        for i, block in enumerate(blocks)
    ]
    document = {
        "name": "baseline",
        "policy": POLICY,
        "overload": "allow",
        "fleet": fleet,
        "services": services,
        "sites": {site: {} for site in sorted({block.site for block in blocks})},
    }
    return parse_scenario(document, folder / "baseline.yaml")


def _energy_j(figures: Mapping[str, Any], blocks: Sequence[Block], idle_s: float) -> dict[str, float]:
    """Returns joules by site: what was simulated, and the loaded idle power of the time beyond it."""
    found = {site: float(part["energy_wh"]) * J_PER_WH for site, part in figures["by_site"].items()}
    for block in blocks:
        model = engine_model(block.model, block.gpu_type, block.tp, block.engine)
        idle_w = model.idle_watts(model.gpu_params.f_max) * block.count
        found[block.site] = found.get(block.site, 0.0) + idle_w * idle_s
    return dict(sorted(found.items()))
