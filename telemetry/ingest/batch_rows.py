"""The rows of a message: which can be stored, and what is wrong with the others. Touches no database.

Rows of an agent's batch are numbered GPUs' samples first, then instances', clock decisions, and hosts' samples.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.bounds import Bound
from pools import wire
from telemetry.ingest.agent_batches import numbers
from telemetry.models import DeadRow, RequestRecord

Body = wire.AgentBatch | wire.RequestBatch
Mask = NDArray[np.bool_]
Kind = DeadRow.DeadKind

DAY_S = 86_400
MAX_EARLY_S = 3_600.0
KEPT_S = 14 * DAY_S  # of what is set aside
TOKENS = Bound(0.0, 1e9)  # of one request
STATUSES = set(RequestRecord.Status.values)


@dataclass(frozen=True, slots=True)
class SetAside:
    """Rows that cannot be stored. `body`: a message with these rows alone, or the whole message as it came.

    `due_s`: the Unix time at which rows that are only ahead of the clock can be stored; None: they are not.
    """

    kind: DeadRow.DeadKind
    source: str
    rows: int
    why: str
    body: bytes
    due_s: float | None = None


class _RoughBatch(wire.Message, frozen=True):
    """A RequestBatch whose rows are still to be read."""

    gateway: str
    boot: str
    seq: int
    rows: list[msgspec.Raw]


def read(stream: str, data: bytes | None) -> tuple[Body | None, list[SetAside]]:
    """Returns the message with the rows that can be read and make sense, and the others; None: it cannot be read."""
    try:
        if data is None:
            raise msgspec.DecodeError("no field 'b'")
        if stream == wire.REQUEST_STREAM:
            return _requests(data)
        batch = wire.decode(data, wire.AgentBatch)
        if wire.node_of_stream(stream) not in (None, batch.agent):
            return None, [whole(data, f"it says that it is of {batch.agent!r}, whose stream this is not")]
        return batch, []
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, [whole(data or b"", str(error))]


def whole(data: bytes, why: str, source: str = "") -> SetAside:
    return SetAside(Kind.MESSAGE, source, 0, why, data)


def _requests(data: bytes) -> tuple[Body, list[SetAside]]:
    try:
        batch = wire.decode(data, wire.RequestBatch)
        aside: list[SetAside] = []
    except msgspec.ValidationError:
        batch, aside = _one_by_one(msgspec.json.decode(data, type=_RoughBatch))
    rows = [_credible(row) for row in batch.rows]
    batch = msgspec.structs.replace(batch, rows=rows)
    wrong = [_wrong(row) for row in rows]
    if not any(wrong):
        return batch, aside
    bad = np.array([bool(why) for why in wrong])
    whys = list(compress(wrong, bad))
    return pick(batch, ~bad), aside + _asides(batch, bad, whys, [None] * len(whys))


def _one_by_one(rough: _RoughBatch) -> tuple[wire.RequestBatch, list[SetAside]]:
    rows, aside = [], []
    for raw in rough.rows:
        try:
            rows.append(msgspec.json.decode(raw, type=wire.RequestRow))
        except msgspec.ValidationError as error:
            body = msgspec.json.encode(msgspec.structs.replace(rough, rows=[raw]))
            aside.append(SetAside(Kind.REQUEST, rough.gateway, 1, str(error), body))
    return wire.RequestBatch(rough.gateway, rough.boot, rough.seq, rows), aside


def _credible(row: wire.RequestRow) -> wire.RequestRow:
    """Returns the row; one whose token counts cannot be without them, and with the reason as its error."""
    fault = next(
        (
            f"{count} {what}"
            for what, count in (("prompt tokens", row.prompt_tokens), ("output tokens", row.output_tokens))
            if count is not None and not TOKENS.least <= count <= TOKENS.most
        ),
        "",
    )
    if not fault:
        return row
    error = row.error or f"the token counts are not credible: {fault}"
    return msgspec.structs.replace(
        row, prompt_tokens=None, output_tokens=None, timely_tokens=None, tokens_source=None, error=error
    )


def _wrong(row: wire.RequestRow) -> str:
    """Returns what keeps a row from being stored; empty: nothing that can be seen here."""
    if row.status not in STATUSES:
        return f"request {row.request_id!r}: unknown status {row.status!r}"
    if not 0 < len(row.request_id) <= 64 or "\0" in row.request_id:
        return f"request id {row.request_id!r} is empty, too long or not text"
    if row.instance_uid:
        try:
            uuid.UUID(row.instance_uid)
        except ValueError:
            return f"request {row.request_id!r}: instance {row.instance_uid!r} is not a uid"
    return ""


def times_s(bodies: Sequence[Body]) -> NDArray[np.float64]:
    """Returns the times of all rows, in Unix seconds; of one message in the order of its rows."""
    batches = [body for body in bodies if isinstance(body, wire.AgentBatch)]
    others = [row.at_s for batch in batches for row in batch.instances]
    others += [row.at_s for batch in batches for row in batch.clocks]
    others += [row.at_s for batch in batches for row in batch.hosts]
    for body in bodies:
        if isinstance(body, wire.RequestBatch):
            others += [row.started_at_s for row in body.rows]
    of_gpus = numbers([batch.gpus for batch in batches if batch.gpus.numbers])[:, wire.GPU_NUMBERS.index("at_s")]
    return np.concatenate([of_gpus, np.array(others, dtype=np.float64)])


def timely(at_s: NDArray[np.float64], now_s: float, days: int) -> Mask:
    """Says of each time whether it is of the last `days` days and not ahead of the clock by an hour or more."""
    return (at_s > now_s - days * DAY_S) & (at_s < now_s + MAX_EARLY_S)


def without(body: Body, bad: Mask, whys: Sequence[str]) -> tuple[Body, list[SetAside]]:
    """Returns the message without the rows of `bad`, and these; `whys`: what is wrong with each of them."""
    return pick(body, ~bad), _asides(body, bad, whys, [None] * len(whys))


def without_strange_times(body: Body, now_s: float, days: int) -> tuple[Body, list[SetAside]]:
    """Returns the message with the rows of the last `days` days, and the others."""
    at_s = times_s([body])
    bad = ~timely(at_s, now_s, days)
    if not bad.any():
        return body, []
    whys = [
        f"time {at!r} is {_distance(at - now_s)}, not of the last {days} days: is a clock wrong?"
        for at in at_s[bad].tolist()
    ]
    early = np.where(at_s >= now_s, at_s, np.inf)
    due_s = [at if at < now_s + KEPT_S else None for at in early[bad].tolist()]
    return pick(body, ~bad), _asides(body, bad, whys, due_s)


def _distance(ahead_s: float) -> str:
    return f"{ahead_s:.0f} s ahead" if ahead_s > 0.0 else f"{-ahead_s:.0f} s ago"


def _asides(body: Body, bad: Mask, whys: Sequence[str], due_s: Sequence[float | None]) -> list[SetAside]:
    """Sets request records aside one by one, and samples of a batch together, with what is wrong with the first."""
    if isinstance(body, wire.AgentBatch):
        known = [at for at in due_s if at is not None]
        return [aside(pick(body, bad), whys[0], max(known) if len(known) == len(due_s) else None)]
    places = np.arange(len(bad))
    found = zip(np.flatnonzero(bad), whys, due_s, strict=True)
    return [aside(pick(body, places == n), why, due) for n, why, due in found]


def aside(body: Body, why: str, due_s: float | None = None) -> SetAside:
    """Sets all rows of a message aside."""
    kind = Kind.SAMPLES if isinstance(body, wire.AgentBatch) else Kind.REQUEST
    return SetAside(kind, source(body), count(body), why, wire.encode(body), due_s)


def source(body: Body) -> str:
    return body.agent if isinstance(body, wire.AgentBatch) else body.gateway


def count(body: Body) -> int:
    if isinstance(body, wire.RequestBatch):
        return len(body.rows)
    return body.gpus.rows + len(body.instances) + len(body.clocks) + len(body.hosts)


def halves(body: Body) -> tuple[Body, Body]:
    first = np.arange(count(body)) < count(body) // 2
    return pick(body, first), pick(body, ~first)


def pick(body: Body, which: Mask) -> Body:
    """Returns the message with some of its rows."""
    if isinstance(body, wire.RequestBatch):
        return msgspec.structs.replace(body, rows=list(compress(body.rows, which)))
    found: dict[str, Any] = {}
    at = body.gpus.rows
    for name in ("instances", "clocks", "hosts"):
        rows = getattr(body, name)
        found[name] = list(compress(rows, which[at : at + len(rows)]))
        at += len(rows)
    return msgspec.structs.replace(body, gpus=_pick_gpus(body.gpus, which[: body.gpus.rows]), **found)


def _pick_gpus(gpus: wire.GpuSamples, which: Mask) -> wire.GpuSamples:
    if which.all():
        return gpus
    if not which.any():
        return wire.GpuSamples()
    of = gpus.of_what
    labels = wire.GpuLabels(
        list(compress(of.gpu_uuids, which)),
        list(compress(of.instance_uids, which)),
        list(compress(of.instance_states, which)),
    )
    kept = np.frombuffer(gpus.numbers, dtype="<f8").reshape(gpus.rows, -1)[which]
    return wire.GpuSamples(msgspec.msgpack.encode(labels), kept.tobytes())
