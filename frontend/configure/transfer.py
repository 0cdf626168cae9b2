"""Import and export: a dry run first, then all rows or none."""

from __future__ import annotations

from datetime import UTC, datetime

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import UploadedFile
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from pools.access import audit, rights
from scheduler.operations import visibility
from scheduler.operations.configure import transfer

from .rows import owned_or_404


@never_cache
@require_safe
@rights.needs(rights.Right.VIEW)
def export(request: HttpRequest, kind: str, format: str) -> HttpResponse:
    owned = owned_or_404(kind)
    if format not in transfer.FORMATS:
        raise Http404("exports are csv or yaml")
    name = f"greenserve-{kind}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.{format}"
    types = {"csv": "text/csv; charset=utf-8", "yaml": "application/yaml"}
    return HttpResponse(
        transfer.export(owned, format, visibility.owned(request.user, owned)),
        content_type=types[format],
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@rights.needs(rights.Right.VIEW)
def bring_in(request: HttpRequest, kind: str) -> HttpResponse:
    """Shows as a table what a file would do; sent again with `apply`, the same text is stored."""
    owned = owned_or_404(kind)
    rights.require(request.user, owned.right)
    text, wrong, outcomes = request.POST.get("text", ""), "", None
    format = request.POST.get("format", "csv")
    file = request.FILES.get("file")
    if request.method == "POST":
        try:
            if file is not None:
                text, format = _read(file), "yaml" if str(file.name).endswith((".yaml", ".yml")) else "csv"
            if format not in transfer.FORMATS:
                raise ValidationError("a file is CSV or YAML")
            apply = bool(request.POST.get("apply"))
            outcomes = transfer.bring_in(audit.actor_of(request), owned, text, format, dry_run=not apply)
            if apply and not any(item.what == "refused" for item in outcomes):
                done = sum(item.what != "unchanged" for item in outcomes)
                messages.success(request, f"{done} of {len(outcomes)} rows are stored; the rest were so already.")
                return redirect("configure", kind)
        except ValidationError as error:
            wrong = " ".join(error.messages)
    context = {
        "owned": owned,
        "text": text,
        "format": format,
        "wrong": wrong,
        "outcomes": outcomes,
        "refused": sum(item.what == "refused" for item in outcomes or ()),
        "changing": sum(item.what in ("created", "changed") for item in outcomes or ()),
    }
    return render(request, "frontend/configure/import.html", context)


def _read(file: UploadedFile[bytes]) -> str:
    size = file.size or 0
    if size > transfer.MOST_BYTES:
        raise ValidationError(f"the file has more than {transfer.MOST_BYTES // 1_000_000} MB: split it")
    try:
        return str(file.read().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValidationError("the file is not UTF-8: save it as such") from None
