"""A modelled day's requests as sums, repeated over the past: objectives kept, tokens by tenant, lengths of answers."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from core.units import US_PER_S
from pools.models import Service
from telemetry.models.rollups import STEPS_S
from telemetry.seeding.modelled_day import DAY_S, MINUTE_S, Day
from telemetry.seeding.modelled_engine import Ints
from telemetry.storage import copying
from telemetry.storage.copying import Column


def write(service: Service, tenants: list[int], day: Day, start: datetime, end: datetime) -> None:
    """Writes the sums of [start, end), midnight (UTC) and a whole minute. Single lengths' minutes are of the last day
    alone: of a week they would be most of all rows."""
    n = round((end - start).total_seconds() / MINUTE_S)
    for step_s in STEPS_S:
        steps = _Steps(step_s, round(start.timestamp()), n)
        _write_slo(service, day, steps)
        _write_tenants(tenants, day, steps)
        _write_lengths(service, day, steps)


class _Steps:
    """Sums over steps of the past of what a day has by minute."""

    def __init__(self, step_s: int, start_s: int, minutes: int) -> None:
        self.step_s, self._n = step_s, minutes
        self._first = np.arange(0, minutes, step_s // MINUTE_S)
        self.start_us = (start_s + self._first * MINUTE_S) * US_PER_S
        self.until_us = (start_s + np.append(self._first[1:], minutes) * MINUTE_S) * US_PER_S
        self.recent = self._first >= (minutes - DAY_S // MINUTE_S if step_s == MINUTE_S else 0)

    def sums(self, by_minute: Ints) -> Ints:
        found: Ints = np.add.reduceat(np.resize(by_minute, self._n), self._first)
        return found

    def columns(self, which: list[Ints]) -> list[Column]:
        at_us = np.concatenate([self.start_us[some] for some in which])
        return [
            Column("step_s", copying.INTEGER, np.full(len(at_us), self.step_s)),
            copying.moments("start_at", at_us),
        ]


def _write_slo(service: Service, day: Day, steps: _Steps) -> None:
    kinds, judged, within = list(day.slo), [], []
    for one in day.slo.values():
        judged.append(steps.sums(one.judged))
        within.append(steps.sums(one.within))
    which = [np.flatnonzero(counts) for counts in judged]
    copying.write(
        "telemetry_slorollup",
        [
            *steps.columns(which),
            _same("service", service.name, which),
            Column("kind", "", _places(which), None, tuple(kind.encode() for kind in kinds)),
            Column("judged", copying.INTEGER, _picked(judged, which)),
            Column("within", copying.INTEGER, _picked(within, which)),
            copying.moments("until", np.concatenate([steps.until_us[some] for some in which])),
        ],
    )


def _write_tenants(tenants: list[int], day: Day, steps: _Steps) -> None:
    timely, output = ([steps.sums(one) for one in of] for of in (day.timely_tokens, day.output_tokens))
    which = [np.flatnonzero(tokens) for tokens in output]
    copying.write(
        "telemetry_tenantrollup",
        [
            *steps.columns(which),
            Column("tenant_id", copying.BIGINT, np.array(tenants, dtype=np.int64)[_places(which)]),
            Column("timely_tokens", copying.BIGINT, _picked(timely, which)),
            Column("output_tokens", copying.BIGINT, _picked(output, which)),
        ],
    )


def _write_lengths(service: Service, day: Day, steps: _Steps) -> None:
    names = sorted({name for name, _ in day.answers})
    counts = [steps.sums(requests) for requests, _ in day.answers.values()]
    timely = [steps.sums(tokens) for _, tokens in day.answers.values()]
    which = [np.flatnonzero((requests > 0) & steps.recent) for requests in counts]
    keys = np.array([(names.index(name), length) for name, length in day.answers], dtype=np.int64)[_places(which)]
    copying.write(
        "telemetry_lengthrollup",
        [
            *steps.columns(which),
            _same("service", service.name, which),
            Column("request_class", "", keys[:, 0], None, tuple(name.encode() for name in names)),
            Column("length", copying.INTEGER, keys[:, 1]),
            Column("requests", copying.INTEGER, _picked(counts, which)),
            Column("timely_tokens", copying.BIGINT, _picked(timely, which)),
        ],
    )


def _places(which: list[Ints]) -> Ints:
    return np.repeat(np.arange(len(which)), [len(some) for some in which])


def _picked(values: list[Ints], which: list[Ints]) -> Ints:
    return np.concatenate([one[some] for one, some in zip(values, which, strict=True)])


def _same(name: str, text: str, which: list[Ints]) -> Column:
    return Column(name, "", np.zeros_like(_places(which)), None, (text.encode(),))
