"""Measured profiles of engines: every version, the one that decisions go by, and how far it is from the closed form."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from pools.access import audit, rights
from pools.models import EngineProfile
from scheduler.operations import engine_profiles as operations

from .listing import Column, listing

COLUMNS = (
    Column("model", "Model"),
    Column("gpu_type", "GPU type"),
    Column("tp", "TP", number=True),
    Column("engine", "Engine"),
    Column("state", "State", hint="Decisions go by the published version of a configuration"),
    Column("source", "Source"),
    Column("age_s", "Measured", hint="Or else, when it was brought in"),
    Column("points", "Points", number=True),
    Column("time_off", "Time off", number=True, hint="The point furthest from the closed form"),
    Column("power_off", "Power off", number=True, hint="The point furthest from the closed form"),
    Column("origin", "Origin"),
)
PUBLISHED, KEPT = "published", "kept"


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A version. `time_off`, `power_off`: shares by which its furthest point differs; None: no closed form knows it."""

    pk: int
    model: str
    gpu_type: str
    tp: int
    engine: str
    version: str
    state: str
    source: str
    origin: str
    points: int
    age_s: float
    measured_known: bool
    time_off: float | None
    power_off: float | None

    @classmethod
    def of(cls, row: EngineProfile) -> ProfileRow:
        off = operations.difference(row)
        age_s = (timezone.now() - (row.measured_at or row.created_at)).total_seconds()
        return cls(
            *(row.pk, row.model_name, row.gpu_type, row.tp, row.engine, row.version),
            PUBLISHED if row.published_at else KEPT,
            *(
                row.source,
                row.origin,
                row.point_count,
                age_s,
                row.measured_at is not None,
            ),
            None if off is None else off.time - 1.0,
            None if off is None else off.power - 1.0,
        )


@never_cache
@require_safe
def engine_profiles(request: HttpRequest) -> HttpResponse:
    rows = [ProfileRow.of(row) for row in EngineProfile.objects.defer("points")]
    context = {
        "title": "Engine profiles",
        "lead": "What was measured of engines. Decisions go by the published version of a configuration, and by the "
        "closed form where there is none.",
        "listing": listing(
            request,
            rows,
            COLUMNS,
            search=lambda row: f"{row.model} {row.gpu_type} {row.engine} {row.origin} {row.version}",
            filters={"state": "State", "source": "Source", "gpu_type": "GPU type"},
        ),
        "rows_template": "frontend/fleet/parts/engine_profile_rows.html",
        "nothing": "Nothing was measured yet: `greenserve node profile` measures an engine.",
        "note": "Time and power off: of all points of a version, the largest difference from the closed form.",
    }
    return render(request, "frontend/fleet/engine_profiles.html", context)


@never_cache
@require_safe
def engine_profile(request: HttpRequest, profile_id: int) -> HttpResponse:
    row = get_object_or_404(EngineProfile.objects.defer("points"), pk=profile_id)
    others = EngineProfile.objects.filter(
        shape=row.shape, gpu_type=row.gpu_type, tp=row.tp, engine=row.engine, published_at__isnull=False
    ).exclude(pk=row.pk)
    context = {
        "row": row,
        "shown": ProfileRow.of(row),
        "other": others.defer("points").first(),
        "may_operate": rights.has(request.user, rights.Right.OPERATE) and rights.everywhere(request.user),
    }
    return render(request, "frontend/fleet/engine_profile.html", context)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@rights.needs(rights.Right.OPERATE)
def bring_in(request: HttpRequest) -> HttpResponse:
    """Stores the profiles of a file, all or none; each row that cannot be used is named."""
    wrong = ""
    file = request.FILES.get("file")
    if request.method == "POST":
        try:
            if file is None:
                raise ValidationError("choose a file")
            text, is_json = _read(file), str(file.name).lower().endswith(".json")
            read = operations.bring_in_json if is_json else operations.bring_in_csv
            found = read(audit.actor_of(request), text, publish=bool(request.POST.get("publish")))
        except ValidationError as error:
            wrong = _words(error)
        else:
            new = sum(one.created for one in found)
            messages.success(request, f"{new} of {len(found)} versions are new; the rest were there already.")
            return redirect("engine-profiles")
    return render(request, "frontend/fleet/engine_profile_import.html", {"wrong": wrong})


@require_POST
@rights.needs(rights.Right.OPERATE)
def publish(request: HttpRequest, profile_id: int) -> HttpResponse:
    operations.publish(audit.actor_of(request), _row(profile_id))
    messages.success(request, "It is published: decisions go by it within seconds.")
    return redirect("engine-profile", profile_id)


@require_POST
@rights.needs(rights.Right.OPERATE)
def withdraw(request: HttpRequest, profile_id: int) -> HttpResponse:
    operations.withdraw(audit.actor_of(request), _row(profile_id))
    messages.success(request, "It is withdrawn: decisions go by the closed form within seconds.")
    return redirect("engine-profile", profile_id)


@never_cache
@require_safe
@rights.needs(rights.Right.VIEW)
def csv(request: HttpRequest, profile_id: int) -> HttpResponse:
    row = get_object_or_404(EngineProfile, pk=profile_id)
    return HttpResponse(
        operations.csv_of(row),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{operations.file_name(row)}"'},
    )


def _row(profile_id: int) -> EngineProfile:
    return get_object_or_404(EngineProfile.objects.defer("points"), pk=profile_id)


def _read(file: UploadedFile[bytes]) -> str:
    if (file.size or 0) > operations.MOST_BYTES:
        raise ValidationError(f"the file has more than {operations.MOST_BYTES // 1_000_000} MB: split it")
    try:
        return str(file.read().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValidationError("the file is not UTF-8: save it as such") from None


def _words(error: ValidationError) -> str:
    """Returns what is wrong, with the field that it is in."""
    if hasattr(error, "error_dict"):
        return " ".join(f"{name}: {' '.join(texts)}" for name, texts in error.message_dict.items())
    return " ".join(error.messages)
