"""What pages with charts share: the range they show, the JSON that draws them, each chart as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.gzip import gzip_page

from frontend import reader_choices
from frontend.charts.decision_marks import decision_marks
from frontend.charts.line_figures import LineChart, figure, table
from frontend.charts.plot_style import Figure
from telemetry.selectors.frames import DecisionTick, TimeRange

NEVER_S = 7 * 86_400.0  # a browser's timers count milliseconds in 32 bits


def context(request: HttpRequest, url: str, charts: tuple[str, ...], note: str = "") -> dict[str, Any]:
    """Returns the context of `parts/range_bar.html` and `parts/charts.html`; the view at `url` returns `answer`."""
    return {
        "chosen": reader_choices.chosen(request.GET),
        "ranges": [(key, label) for key, (_, label) in reader_choices.RANGES.items()],
        "charts": charts,
        "charts_url": url,
        "charts_note": note,
    }


def answer(
    request: HttpRequest,
    name: str,
    charts: Mapping[str, LineChart],
    ticks: tuple[DecisionTick, ...] = (),
    others: Mapping[str, tuple[Figure, str]] | None = None,
    window: TimeRange | None = None,
    *,
    final: bool = False,
) -> HttpResponse:
    """Answers with all figures of a page, or with `csv` in the URL that chart's table. `others` are drawn already.

    `window`: what they show, where it is not the one that was asked for. `final`: they stay as they are.
    """
    wanted = request.GET.get("csv")
    if wanted is not None:
        if others and wanted in others:
            return csv_file(f"{name}-{wanted}", others[wanted][1])
        if wanted not in charts:
            raise Http404("no such chart")
        return csv_file(f"{name}-{wanted}", table(charts[wanted]))
    look = reader_choices.look(request.GET)
    figures = {key: figure(chart, look) for key, chart in charts.items()}
    figures |= {key: drawn for key, (drawn, _) in (others or {}).items()}
    return drawn_json(request, figures, ticks, window, final)


@gzip_page  # nothing of what it answers is secret, and a refresh every few seconds is a fifth as long
def drawn_json(
    request: HttpRequest,
    figures: Mapping[str, Figure],
    ticks: Sequence[DecisionTick] = (),
    window: TimeRange | None = None,
    final: bool = False,
) -> HttpResponse:
    """Returns the JSON that `charts.js` draws; the decisions' marks are sent once for all charts on the time axis.

    `window`: what was drawn, where it is not the one that was asked for.
    """
    chosen = reader_choices.chosen(request.GET)
    body = {
        "range": chosen.key,
        "refresh_s": NEVER_S if final else reader_choices.refresh_s(window or chosen.window),
        "figures": figures,
        "decisions": decision_marks(reader_choices.look(request.GET), ticks),
    }
    return JsonResponse(body, json_dumps_params={"allow_nan": False, "separators": (",", ":"), "ensure_ascii": False})


def csv_file(name: str, text: str) -> HttpResponse:
    stamped = f"greenserve-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.csv"
    return HttpResponse(
        text,
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{stamped}"'},
    )
