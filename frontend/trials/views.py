"""The list of trials with the form of a new one, a trial's page, its report as files, and its early end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from core.policy import presets
from frontend import formats
from pools.access.audit import actor_of
from pools.access.rights import Right, has, needs
from scheduler.models import Trial
from scheduler.operations import visibility
from scheduler.trials import modelled, outcome, tasks, trial_report, turns
from scheduler.trials.outcome import ATTAINMENT, Difference, Outcome
from telemetry.reports.writers import figure_files

SHOWN = 100
DOTS = {"planned": "waiting", "running": "starting", "done": "fresh", "cancelled": "over"}
FILES = {
    "pdf": "application/pdf",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "csv": "text/csv; charset=utf-8",
    "blocks.csv": "text/csv; charset=utf-8",
}
BASELINE_FILE = "baseline.csv"  # where there is a baseline


class TrialForm(forms.ModelForm):  # type: ignore[type-arg]
    """Plans a trial of two presets; knobs of one's own go by REST."""

    class Meta:
        model = Trial
        fields: ClassVar[list[str]] = [
            *("service", "other", "policy_a", "policy_b", "begins_at", "block_h", "pairs", "warm_up_s", "reason"),
        ]
        labels: ClassVar[Mapping[str, str]] = {
            "other": "Second service, by sites",
            "policy_a": "Policy A",
            "policy_b": "Policy B",
            "begins_at": "Begins",
            "block_h": "Block, h",
            "warm_up_s": "Warm-up, s",
        }
        widgets: ClassVar[Mapping[str, Any]] = {
            "policy_a": forms.Select(choices=presets.choices()),
            "policy_b": forms.Select(choices=presets.choices()),
            "begins_at": forms.DateTimeInput({"type": "datetime-local"}),
        }

    def _post_clean(self) -> None:
        """Leaves the checks to `turns.plan`, which a form and REST have in common, and only fills the trial."""
        self.instance = forms.models.construct_instance(self, self.instance, self.fields, None)


@never_cache
@require_safe
@needs(Right.VIEW)
def trials_page(request: HttpRequest) -> HttpResponse:
    found = visibility.trials(request.user, Trial.objects.select_related("service", "other", "created_by"))
    rows = [(trial, DOTS[trial.state]) for trial in found[:SHOWN]]
    context = {"rows": rows, "operates": has(request.user, Right.OPERATE)}
    return render(request, "frontend/trials/list.html", context)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@needs(Right.OPERATE)
def new_trial(request: HttpRequest) -> HttpResponse:
    """Shows the form of a trial; a POST plans it."""
    form = TrialForm(request.POST if request.method == "POST" else None, label_suffix="")
    if request.method == "POST" and form.is_valid():
        try:
            made = turns.plan(actor_of(request), form.instance)
        except ValidationError as error:
            form.add_error(None, error)
        else:
            return redirect("trial", made.pk)
    return render(request, "frontend/trials/new.html", {"form": form})


@never_cache
@require_safe
@needs(Right.VIEW)
def trial(request: HttpRequest, trial_id: int) -> HttpResponse:
    found = _visible(request, trial_id)
    shown = outcome.of(found)
    figures = {block.index: block for block in shown.blocks}
    baseline, planned = modelled.modelled(found, shown), found.blocks.select_related("service")
    files = (*FILES, BASELINE_FILE) if baseline.blocks else tuple(FILES)
    context = {
        "trial": found,
        "dot": DOTS[found.state],
        "open": found.state in turns.OPEN,
        "operates": has(request.user, Right.OPERATE),
        "rows": [_words(row, shown) for row in shown.differences],
        "objective": shown.objective,
        "files": [
            (kind, kind.capitalize().replace(".csv", ", CSV") if "." in kind else kind.upper()) for kind in files
        ],
        "blocks": [(block, figures.get(block.index), baseline.of_block(block.index)) for block in planned],
        "baseline": baseline,
        "baseline_policy": modelled.POLICY,
        "savings": [(one, found.policy_a if one.arm == "A" else found.policy_b) for one in baseline.savings],
        "counted": len(shown.blocks) - len(shown.left_out),
        "begun": len(shown.blocks),
        "currency": shown.currency,
    }
    return render(request, "frontend/trials/trial.html", context)


@never_cache
@require_safe
@needs(Right.VIEW)
def trial_file(request: HttpRequest, trial_id: int, kind: str) -> HttpResponse:
    """Answers with the trial's report as a file of one of `FILES`."""
    found = _visible(request, trial_id)
    if kind not in FILES and kind != BASELINE_FILE:
        raise Http404(f"no such file; there are {', '.join(FILES)}")
    shown = outcome.of(found)
    report = trial_report.report(found, shown, modelled.modelled(found, shown), timezone.now())
    differences, blocks, *others = report.tables
    if kind == BASELINE_FILE and not others:
        raise Http404("nobody has asked for the baseline of this trial")
    content: Mapping[str, Callable[[], str | bytes]] = {
        "pdf": lambda: figure_files.figures_pdf(report),
        "xlsx": lambda: figure_files.figures_xlsx(report),
        "csv": lambda: figure_files.figures_csv(differences),
        "blocks.csv": lambda: figure_files.figures_csv(blocks),
        BASELINE_FILE: lambda: figure_files.figures_csv(others[0]),
    }
    headers = {"Content-Disposition": f'attachment; filename="greenserve-trial-{trial_id}.{kind}"'}
    return HttpResponse(content[kind](), content_type=FILES.get(kind, FILES["csv"]), headers=headers)


@require_POST
@needs(Right.OPERATE)
def cancel_trial(request: HttpRequest, trial_id: int) -> HttpResponse:
    found = _visible(request, trial_id)
    try:
        turns.cancel(actor_of(request), found, request.POST.get("reason", ""))
    except ValidationError as error:
        messages.error(request, f"Nothing was changed. {' '.join(error.messages)}")
    return redirect("trial", found.pk)


@require_POST
@needs(Right.OPERATE)
def model_baseline(request: HttpRequest, trial_id: int) -> HttpResponse:
    """Asks for the modelled baseline of the blocks that count; a worker makes it."""
    found = _visible(request, trial_id)
    tasks.send(modelled.ask(found, request.user if isinstance(request.user, User) else None))
    return redirect(f"{reverse('trial', args=[found.pk])}#baseline")


def _visible(request: HttpRequest, trial_id: int) -> Trial:
    rows = visibility.trials(request.user, Trial.objects.select_related("service", "other", "created_by"))
    return get_object_or_404(rows, pk=trial_id)


def _words(row: Difference, found: Outcome) -> dict[str, Any]:
    """Writes a row of the result; the tone says whether the whole interval is on the better side. A mean of SLO
    attainment below the objective is marked."""
    own = row.difference
    ends = tone = ""
    if own is not None and own.low is not None and own.high is not None:
        ends = f"{_change(row, own.low)} to {_change(row, own.high)}"
        better = own.mean > 0 if row.key == ATTAINMENT else own.mean < 0
        tone = "" if own.low <= 0.0 <= own.high else "good" if better else "bad"
    unit = row.unit or found.currency
    means = [
        (formats.percent(value, 2) if unit == "share" else formats.quantity(value, unit), found.is_below(row, value))
        for value in (row.mean_a, row.mean_b)
    ]
    return {
        "label": row.label,
        "means": means,
        "mean": _change(row, own.mean) if own else formats.UNKNOWN,
        "ends": ends,
        "tone": tone,
        "pairs": own.pairs if own else 0,
    }


def _change(row: Difference, value: float) -> str:
    unit = "%" if row.share else "points"
    return f"{value * 100:+.1f}\u00a0{unit}".replace("-", "\u2212")
