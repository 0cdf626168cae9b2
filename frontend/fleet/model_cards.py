"""Models: what can be served, and what their profiles say of energy and latency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from core.engine import engine_params
from core.engine.corrections import configuration
from core.engine.engine_params import UnknownConfiguration
from core.types import Limits
from frontend import formats, reader_choices
from pools.model_files import shape_figures
from pools.models import Gpu, ModelCard, Profile, Slo
from scheduler.control.snapshot import measured_overheads
from scheduler.operations import visibility

from . import chart_pages, engine_basis, frontier, measured_serving
from .listing import Column, listing

COLUMNS = (
    Column("name", "Model"),
    Column("hugging_face_id", "Hugging Face"),
    Column("max_model_len", "Context", number=True, hint="Longest prompt plus output, in tokens"),
    Column("engine", "Engine"),
    Column("services", "Services", number=True),
    Column("profiles", "Profiles", number=True),
    Column("kinds", "Figures are"),
)
PROFILE_COLUMNS = (
    Column("mode", "Mode"),
    Column("request_class", "Class"),
    Column("max_rps", "Largest rate", number=True),
    Column("power_w", "Power", number=True),
    Column("energy_j", "J/request", number=True),
    Column("ttft_s", "TTFT", number=True),
    Column("tpot_s", "TPOT", number=True),
    Column("e2e_s", "E2E", number=True),
    Column("kind", "Kind"),
    Column("source", "Source"),
)
LATENCIES = {"e2e": "E2E", "tpot": "TPOT", "ttft": "TTFT"}
PROMPT_TOKENS, OUTPUT_TOKENS = 512.0, 256.0  # where the model's services name no expected lengths


@dataclass(frozen=True, slots=True)
class ModelRow:
    pk: int
    name: str
    hugging_face_id: str
    max_model_len: int
    engine: str
    services: int
    profiles: int
    kinds: str


@dataclass(frozen=True, slots=True)
class ProfileRow:
    mode: str
    gpu_type: str
    request_class: str
    max_rps: float
    power_w: float
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    kind: str
    source: str
    note: str

    @property
    def energy_j(self) -> float | None:
        """Joules for each request at the largest rate."""
        return self.power_w / self.max_rps if self.max_rps else None


@never_cache
@require_safe
def models(request: HttpRequest) -> HttpResponse:
    counts = dict(Profile.objects.values_list("model_card").annotate(count=Count("pk")).order_by())
    kinds: dict[int, list[str]] = {}
    for pk, kind in Profile.objects.order_by("kind").values_list("model_card", "kind").distinct():
        kinds.setdefault(pk, []).append(kind)
    rows = [
        ModelRow(
            card.pk,
            card.name,
            card.hugging_face_id,
            card.max_model_len,
            card.engine,
            card.service_count,
            counts.get(card.pk, 0),
            ", ".join(kinds.get(card.pk, [])) or "none",
        )
        for card in ModelCard.objects.annotate(service_count=Count("services"))
    ]
    context = {
        "title": "Models",
        "lead": "What can be served, and what is known of its energy and latency.",
        "listing": listing(
            request, rows, COLUMNS, search=lambda m: f"{m.name} {m.hugging_face_id}", filters={"engine": "Engine"}
        ),
        "rows_template": "frontend/fleet/parts/model_rows.html",
        "nothing": "No model yet.",
    }
    return render(request, "frontend/fleet/list.html", context)


def _profiles(card: ModelCard) -> list[ProfileRow]:
    found = Profile.objects.filter(model_card=card).select_related("request_class__partition")
    return [
        ProfileRow(
            mode=f"{p.gpu_type}/TP{p.tp}",
            gpu_type=p.gpu_type,
            request_class=f"{p.request_class.partition.name}/{p.request_class.name}",
            max_rps=p.max_rps,
            power_w=p.power_w,
            ttft_s=p.ttft_s,
            tpot_s=p.tpot_s,
            e2e_s=p.e2e_s,
            kind=p.kind,
            source=p.source,
            note=p.note,
        )
        for p in found
    ]


def _chosen(request: HttpRequest, rows: list[ProfileRow]) -> dict[str, Any]:
    """Returns class, latency and GPU type of the charts: those of the URL, else the first that exist."""
    classes = sorted({row.request_class for row in rows})
    types = sorted({*Gpu.objects.values_list("gpu_type", flat=True).distinct(), *(row.gpu_type for row in rows)})
    wanted, latency, gpu_type = (request.GET.get(name, "") for name in ("class", "latency", "gpu"))
    return {
        "classes": classes,
        "class": wanted if wanted in classes else (classes[-1] if classes else ""),
        "latencies": LATENCIES,
        "latency": latency if latency in LATENCIES else "e2e",
        "gpu_types": types,
        "gpu": gpu_type if gpu_type in types else (types[0] if types else ""),
    }


@never_cache
@require_safe
def model(request: HttpRequest, model_id: int) -> HttpResponse:
    card = get_object_or_404(ModelCard, pk=model_id)
    rows = _profiles(card)
    chosen = _chosen(request, rows)
    context = chart_pages.context(request, reverse("model-figures", args=[model_id]), ("frontier", "heat")) | {
        "model": card,
        "pick": chosen,
        "services": card.services.all(),
        "shape": _shape(card),
        "measured": engine_basis.measured_modes(card),
        "serving": measured_serving.rows(card),
        "overheads": measured_overheads.rows(
            list(visibility.whole_services(request.user).filter(model_card=card).select_related("model_card")),
            timezone.now(),
        ),
        "listing": listing(
            request, rows, PROFILE_COLUMNS, search=lambda p: f"{p.mode} {p.request_class} {p.source}", size=100
        ),
        "title": "profiles",
    }
    return render(request, "frontend/fleet/model.html", context)


def _shape(card: ModelCard) -> dict[str, str]:
    """Returns what the engine model goes by, in words with their source; empty: it does not know the model."""
    if not engine_params.knows_model(card.engine_model_name):
        return {}
    shape = engine_params.model(card.engine_model_name)
    return {
        "parameters": shape_figures.parameters(shape),
        "weights": shape_figures.weights(shape),
        "cache": f"{shape.kv_bytes / 1e3:,.0f} kB a token ({shape.kv_bits:g} bits)",
        "window": shape_figures.window(shape),
        "source": "computed from config.json" if card.shape else "of GreenServe's list of models",
        "key": shape.key,
    }


@never_cache
@require_safe
def model_figures(request: HttpRequest, model_id: int) -> HttpResponse:
    """Answers with the frontier of one class, and energy over TP and clock on one GPU type."""
    card = get_object_or_404(ModelCard, pk=model_id)
    rows = _profiles(card)
    chosen, look = _chosen(request, rows), reader_choices.look(request.GET)
    points = [
        frontier.Point(r.mode, r.request_class, r.gpu_type, r.kind, r.source, r.energy_j, latency_s, r.max_rps)
        for r in rows
        if r.request_class == chosen["class"]
        and r.energy_j is not None
        and (latency_s := getattr(r, f"{chosen['latency']}_s")) is not None
    ]
    others = {
        "frontier": frontier.frontier(
            points, look, LATENCIES[chosen["latency"]], f"class {chosen['class'] or 'unknown'}"
        ),
        "heat": _heat(card, chosen, look),
    }
    return chart_pages.answer(request, card.name, {}, others=others)


def _heat(card: ModelCard, chosen: dict[str, Any], look: Any) -> tuple[dict[str, Any], str]:
    """Draws energy over TP and clock at lengths and objectives of the model's first service, else at usual ones."""
    service = card.services.order_by("name").first()
    prompt = float((service and service.expected_prompt_tokens) or PROMPT_TOKENS)
    output = float((service and service.expected_output_tokens) or OUTPUT_TOKENS)
    slos = {slo.kind: slo.objective_s for slo in Slo.objects.filter(service=service)} if service else {}
    limits = Limits(slos.get("ttft"), slos.get("tpot"), slos.get("e2e"))
    words = [f"{kind.upper()} ≤ {formats.seconds(value)}" for kind, value in slos.items()]
    basis = f"{prompt:.0f} prompt and {output:.0f} output tokens" + (f", {', '.join(words)}" if words else "")
    try:
        cells = frontier.grid(card.engine_model_name, chosen["gpu"], card.engine, prompt, output, limits)
    except UnknownConfiguration as error:
        return frontier.heat((), look, chosen["gpu"] or "no GPU", f"the engine model does not know it ({error})", {})
    degrees = dict.fromkeys(cell.tp for cell in cells)
    keys = {tp: configuration(card.engine_model_name, chosen["gpu"], tp, card.engine) for tp in degrees}
    bases = {tp: engine_basis.words(key) for tp, key in keys.items()}
    return frontier.heat(cells, look, chosen["gpu"], basis, bases)
