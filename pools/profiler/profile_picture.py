"""A picture of a profile, as values: time and power of an iteration over the batch, for each clock, and its hull."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.chart_values import Line, LinePanel, LinePanels
from core.engine.profiles import Point

from .result import ProfilingResult


def profile_panels(outcome: ProfilingResult) -> LinePanels:
    """Returns three panels: seconds and watts of decodes over their batch (context as measured), and the hull."""
    profile = outcome.profile
    decodes = [point for point in profile.points if point.batch]
    clocks = sorted({point.mhz for point in decodes})

    def curves(value: Callable[[Point], float | None]) -> tuple[Line, ...]:
        return tuple(
            _curve(
                f"{mhz:g} MHz, {'shorter' if shortest else 'longer'} contexts",
                [point for point in decodes if point.mhz == mhz],
                value,
                colour,
                shortest,
            )
            for colour, mhz in enumerate(clocks)
            for shortest in (True, False)
        )

    corners = [*outcome.hull, *outcome.hull[:1]]
    hull = Line("hull of what was measured", [x for x, _ in corners], [y for _, y in corners], len(clocks))
    return LinePanels(
        f"{profile.model} on {profile.tp} x {profile.gpu}",
        profile.origin,
        "batch, sequences",
        (
            LinePanel("iteration, ms", curves(lambda point: point.t_s * 1e3)),
            LinePanel("power, W", curves(lambda point: point.watts)),
            LinePanel("context a sequence, tokens", (hull,)),
        ),
        doubling=True,
        marked=True,
    )


def _curve(
    name: str, points: Sequence[Point], value: Callable[[Point], float | None], colour: int, shortest: bool
) -> Line:
    """Returns each batch's point with its shortest or longest context."""
    chosen: dict[int, Point] = {}
    for point in sorted(points, key=lambda one: one.context_tokens, reverse=shortest):
        chosen[point.batch] = point
    batches = sorted(chosen)
    return Line(name, batches, [value(chosen[batch]) for batch in batches], colour, dashed=not shortest)
