"""Nodes and their GPUs: the inventory, who reports, what they draw, where meters fell silent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import Count, Max, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from frontend import formats, health, reader_choices
from frontend.charts.line_figures import LineChart, PlotLine
from pools import server_states
from pools.access import rights
from pools.models import Gpu, Instance, Node
from scheduler.operations.configure import registry
from telemetry import selectors
from telemetry.models import MeterMark
from telemetry.selectors import servers_off, single_entities
from telemetry.selectors.frames import TimeRange

from . import chart_pages, gpu_types, joining
from .listing import Column, listing

COLUMNS = (
    Column("name", "Node"),
    Column("state", "State"),
    Column("site", "Site"),
    Column("cluster", "Cluster"),
    Column("gpu_type", "GPU type"),
    Column("gpus", "GPUs", number=True),
    Column("instances", "Instances", number=True),
    Column("age_s", "Last report", number=True),
    Column("power_w", "Power", number=True, hint="Sum of the GPUs' means over the newest whole minute"),
    Column("sm_clock_mhz", "Clock", number=True, hint="Mean of the GPUs over the newest whole minute"),
    Column("temperature_c", "Hottest", number=True, hint="Highest of the newest whole minute"),
    Column("", "Placement"),
)
SAID_BY_AGENTS, SAID_BY_METERS = {"state", "age_s"}, {"power_w", "sm_clock_mhz", "temperature_c"}  # columns
CHARTS = ("power", "clock", "temperature")
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class NodeRow:
    """What an agent says is empty until it was asked for."""

    pk: int
    name: str
    site: str
    cluster: str
    gpu_type: str
    gpus: int
    instances: int
    placement: str
    state: str = ""
    age_s: float | None = None
    error: str = ""
    server: str = ""
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class GpuRow:
    """`missing_s`: how long the meter was silent in the last day, since it was first heard. `basis`: what plans know of
    its type, measured or by data sheet; empty: nothing."""

    row: Any
    age_s: float | None
    missing_s: float | None
    basis: str


def rows(request: HttpRequest, now_s: float, minute_s: float | None) -> list[NodeRow]:
    """Lists every node that this person may see.

    What agents and meters say is of all nodes only where the list is sorted or narrowed by it, else `said` adds it to
    those of a page. Two to four queries.
    """
    nodes = (
        Node.objects.filter(cluster__site__in=rights.sites_of(request.user))
        .order_by("cluster__site__rank", "cluster__site__name", "cluster__name", "name")
        .values_list(
            "pk", "name", "schedulable", "cluster__name", "cluster__site__name", "cluster__site__label", named=True
        )
    )
    gpus = {
        pk: (kind, count) for pk, kind, count in Gpu.objects.values_list("node").annotate(Max("gpu_type"), Count("pk"))
    }
    live = dict(
        Instance.objects.exclude(state=Instance.State.STOPPED)
        .values_list("node")
        .annotate(count=Count("pk"))
        .order_by()
        .values_list("node", "count")
    )
    found = [
        NodeRow(
            pk=node.pk,
            name=node.name,
            site=node.cluster__site__label or node.cluster__site__name,
            cluster=node.cluster__name,
            gpu_type=gpus.get(node.pk, ("none", 0))[0],
            gpus=gpus.get(node.pk, ("none", 0))[1],
            instances=live.get(node.pk, 0),
            placement="open" if node.schedulable else "closed",
        )
        for node in nodes
    ]
    sort = request.GET.get("sort", "").lstrip("-")
    by_agents = sort in SAID_BY_AGENTS or bool(request.GET.get("state"))
    return said(found, now_s, minute_s, agents=by_agents, meters=sort in SAID_BY_METERS, every=True)


def said(
    nodes: Sequence[NodeRow],
    now_s: float,
    minute_s: float | None,
    *,
    agents: bool = True,
    meters: bool = True,
    every: bool = False,
) -> list[NodeRow]:
    """Returns nodes as agents or meters report them. `every`: they are all nodes.

    Reads Redis and makes two queries, and two more where servers are off.
    """
    found = list(nodes)
    if agents:
        heard, servers = health.read_messages([node.name for node in found]).agents, server_states.switched()
        for i, node in enumerate(found):
            state = health.by_plan(
                health.judge_node(node.name, heard.get(node.name), now_s), servers.get(node.name), now_s
            )
            found[i] = replace(node, state=state.state, age_s=state.age_s, error=state.error, server=state.server)
    if meters:
        metered = single_entities.nodes_in_minute(minute_s, None if every else [node.pk for node in found])
        for i, node in enumerate(found):
            if last := metered.get(node.pk):
                found[i] = replace(
                    node, power_w=last.power_w, sm_clock_mhz=last.sm_clock_mhz, temperature_c=last.temperature_c
                )
    return found


@never_cache
@require_safe
def nodes(request: HttpRequest) -> HttpResponse:
    now_s = time.time()
    minute_s = single_entities.newest_minute_s(now_s)
    minute = f"Power, clock and temperature: the minute from {reader_choices.clock(minute_s)}." if minute_s else ""
    found = listing(
        request,
        rows(request, now_s, minute_s),
        COLUMNS,
        search=lambda n: f"{n.name} {n.site} {n.cluster} {n.gpu_type}",
        filters={"site": "Site", "state": "State", "gpu_type": "GPU type", "placement": "Placement"},
        options={"state": health.NODE_STATES},
    )
    found.page.object_list = said(list(found.page.object_list), now_s, minute_s)
    context = {
        "title": "Nodes",
        "makes": registry.OWNED["nodes"],
        "lead": "Machines with GPUs and an agent.",
        "listing": found,
        "rows_template": "frontend/fleet/parts/node_rows.html",
        "nothing": "No node yet. A node is a machine with GPUs; its agent reports once it is started.",
        "note": f"{minute} A node is silent when its agent has not spoken for "
        f"{formats.seconds(health.AGENT_SILENT_S)}.".strip(),
    }
    return render(request, "frontend/fleet/list.html", context)


def _find(request: HttpRequest, name: str) -> Node:
    found: Node | None = (
        Node.objects.select_related("cluster__site")
        .filter(name=name, cluster__site__in=rights.sites_of(request.user))
        .first()
    )
    if found is None:
        raise Http404("no such node")
    return found


@never_cache
@require_safe
def node(request: HttpRequest, name: str) -> HttpResponse:
    found, now_s = _find(request, name), time.time()
    messages = health.read_messages([name])
    servers = server_states.of(Node.objects.filter(pk=found.pk))
    (state,) = health.judge_nodes([name], messages, now_s, servers)
    agent = messages.agents.get(name)
    joined = {
        "node": found,
        "joining": joining.of(found, state, found.gpus.count()),
        "certified_until": "" if found.simulated else joining.certified_until(found),
        "may_operate": rights.has(request.user, rights.Right.OPERATE),
    }
    if request.GET.get("part") == "joining":
        return render(request, "frontend/fleet/parts/joining.html", joined)
    context = (
        joined
        | chart_pages.context(request, reverse("node-figures", args=[name]), CHARTS)
        | {
            "health": state,
            "finds": None if agent is None else agent.finds,
            "silent_s": health.AGENT_SILENT_S,
            "power": servers.get(name),
            "gpus": _gpus(found, now_s),
            "instances": Instance.objects.filter(node=found)
            .filter(~Q(state=Instance.State.STOPPED))
            .select_related("pool__site", "pool__request_class"),
        }
    )
    return render(request, "frontend/fleet/node.html", context)


@never_cache
@require_safe
def node_gpus(request: HttpRequest, name: str) -> HttpResponse:
    """Renders what a row of the list shows when it is opened."""
    found = _find(request, name)
    context = {"node": found, "gpus": _gpus(found, time.time())}
    return render(request, "frontend/fleet/parts/node_gpus.html", context)


def _gpus(node: Node, now_s: float) -> list[GpuRow]:
    """Returns the node's GPUs with their newest values. Makes three queries."""
    opened = dict(MeterMark.objects.filter(gpu__node=node).values_list("gpu_id", "opened_at"))
    off = servers_off.gpu_seconds(TimeRange.last(DAY_S, now_s), node_id=node.pk)
    off_s = sum(float(seconds.sum()) for seconds in off.values()) / max(1, len(opened))
    return [_gpu(row, opened.get(row.id), off_s, now_s) for row in single_entities.node_gpus(node.pk, now_s)]


def _gpu(row: Any, opened_at: Any, off_s: float, now_s: float) -> GpuRow:
    """Returns a row. `off_s`: how long the server was off by plan in the last day, which is no silence."""
    age_s = max(0.0, now_s - row.seen_at.timestamp()) if row.seen_at else None
    basis = gpu_types.basis(row.gpu_type)
    if row.heard_s is None or opened_at is None:
        return GpuRow(row, age_s, None, basis)
    span_s = min(DAY_S, now_s // 60 * 60 - opened_at.timestamp())
    return GpuRow(row, age_s, max(0.0, span_s - row.heard_s - off_s), basis)


@never_cache
@require_safe
def node_figures(request: HttpRequest, name: str) -> HttpResponse:
    window = selectors.readable(reader_choices.chosen(request.GET).window)
    return chart_pages.answer(request, f"node-{name}", charts(_find(request, name), window), window=window)


def charts(node: Node, window: TimeRange) -> dict[str, LineChart]:
    """Draws power, clock and temperature of each GPU. Makes two queries."""
    frame = single_entities.node_series(node.pk, window)
    names = dict(Gpu.objects.filter(node=node).values_list("pk", "index"))
    found = {f"GPU {names.get(gpu, gpu)}": lines for gpu, lines in frame.gpus.items()}
    source = "samples of the node's agent, each second"

    def chart(question: str, unit: str, name: str, *, prefixed: bool = False) -> LineChart:
        lines = tuple(PlotLine(gpu, getattr(values, name)) for gpu, values in found.items())
        return LineChart(question, unit, source, window, lines, prefixed=prefixed, silent=frame.silent)

    return {
        "power": chart("What does each GPU draw?", "W", "power_w", prefixed=True),
        "clock": chart("Which clock does each GPU run at?", "MHz", "sm_clock_mhz"),
        "temperature": chart("How hot does each GPU get?", "°C", "temperature_c"),
    }
