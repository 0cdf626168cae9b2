"""Measured profiles of engines: people bring them in, publish one version of a configuration, and withdraw it.

A version is known by its content: what is there already is not stored again. Decisions go by the published version as
soon as processes have read it (`pools.engine_measurements`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from core.cells import csv_text
from core.engine import profiles
from core.engine.corrections import configuration
from core.engine.engine_model import UnknownConfiguration, closed_form
from core.engine.engine_params import GpuParams
from core.engine.profiled_engine import ProfiledEngine, Scale
from core.engine.profiles import UNCATALOGUED, ProfileError
from pools import engine_measurements
from pools.access import audit
from pools.access.audit import Actor
from pools.models import EngineProfile, ModelCard

from . import records

MOST_ROWS = 100_000
MOST_BYTES = 30_000_000
_TEXTS = {"model": 200, "gpu": 40, "engine": 40, "origin": 300}  # characters that the table has room for


@dataclass(frozen=True, slots=True)
class BroughtIn:
    """A version, and whether this import stored it."""

    row: EngineProfile
    created: bool


def bring_in_csv(actor: Actor, text: str, *, publish: bool = False) -> list[BroughtIn]:
    """Stores the profiles of a CSV. See `bring_in`."""
    try:
        return bring_in(actor, profiles.rows_of_csv(text.removeprefix("\ufeff")), publish=publish)
    except csv.Error as error:
        raise ValidationError({"file": f"not CSV: {error}"}) from None


def bring_in_json(actor: Actor, text: str, *, publish: bool = False) -> list[BroughtIn]:
    """Stores the profiles of a JSON list of rows. See `bring_in`."""
    try:
        return bring_in(actor, profiles.rows_of_json(text.removeprefix("\ufeff")), publish=publish)
    except ProfileError as error:
        raise _refusal(error) from None


@transaction.atomic
def bring_in(actor: Actor, rows: Iterable[Mapping[str, Any]], *, publish: bool = False) -> list[BroughtIn]:
    """Stores a version for each configuration among the rows, all or none. A version that is there stays as it is.

    Args:
        publish: Also publishes them.

    Raises:
        ValidationError: A row that cannot be used: its number, field and reason.
        PermissionDenied: The actor may not operate the fleet.
    """
    records.require_right(actor)
    shapes = dict(ModelCard.objects.exclude(shape="").order_by("-pk").values_list("name", "shape"))
    try:
        found = profiles.profiles_of(_by_shape(_counted(rows), shapes))
    except ProfileError as error:
        raise _refusal(error) from None
    names = {shape: name for name, shape in shapes.items()}
    brought = [_kept(actor, one, names.get(one.model, one.model)) for one in found]
    if publish:
        for one in brought:
            _publish(actor, one.row)
    return brought


@transaction.atomic
def publish(actor: Actor, row: EngineProfile) -> EngineProfile:
    """Decisions go by this version from now on, in place of another of its configuration."""
    records.require_right(actor)
    _publish(actor, row)
    return row


@transaction.atomic
def withdraw(actor: Actor, row: EngineProfile) -> EngineProfile:
    """No decision goes by this version any more: the closed form answers, until another is published."""
    records.require_right(actor)
    list(_of_configuration(row).select_for_update().values_list("pk"))
    row.refresh_from_db(fields=["published_at"])
    if row.published_at is not None:
        _set_published(actor, "withdrawn", row, None)
        _follow_up()
    return row


def csv_of(row: EngineProfile) -> str:
    """Returns its points as an import reads them."""
    return csv_text(profiles.COLUMNS, profiles.table(row.measurements()))


def file_name(row: EngineProfile) -> str:
    """Returns the name of its CSV."""
    made = f"{row.model_name}-{row.gpu_type}-tp{row.tp}-{row.version[:8]}"
    return re.sub(r"[^\w.-]", "_", made, flags=re.ASCII) + ".csv"


def difference(row: EngineProfile) -> Scale | None:
    """Returns the ratios of its points to the closed form's figures that are furthest from 1.

    None: no closed form knows such an engine.
    """
    try:
        return _difference(row.pk, closed_form(*row.configuration).gpu_params)
    except UnknownConfiguration:
        return None


@lru_cache(maxsize=4096)
def _difference(pk: int, gpu: GpuParams) -> Scale:
    """A version's content never changes, but what operators say of a GPU may."""
    return ProfiledEngine(EngineProfile.objects.get(pk=pk).measurements()).furthest()


def _counted(rows: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    for number, row in enumerate(rows, 1):
        if number > MOST_ROWS:
            raise ProfileError(number, "file", f"more than {MOST_ROWS:,} rows: split it")
        yield row


def _by_shape(rows: Iterable[Mapping[str, Any]], shapes: Mapping[str, str]) -> Iterable[Mapping[str, Any]]:
    """Yields rows under the shape's key where the model is one that a card's config describes."""
    for row in rows:
        model = row.get("model")
        yield {**row, "model": shapes[model]} if isinstance(model, str) and model in shapes else row


def _refusal(error: ProfileError) -> ValidationError:
    where = "" if error.row is None else f"row {error.row}: "
    return ValidationError({error.field_name: f"{where}{error.reason}"})


def _kept(actor: Actor, one: profiles.Profile, name: str) -> BroughtIn:
    shape, gpu_type, tp, engine = configuration(one.model, one.gpu, one.tp, one.engine)
    _check(one)
    row, created = EngineProfile.objects.defer("points").get_or_create(
        **{"shape": shape, "gpu_type": gpu_type, "tp": tp, "engine": engine, "version": one.version},
        defaults={
            "model_name": name[:100],
            "source": one.source.value,
            "origin": one.origin,
            "points": profiles.json_rows(one),
            "point_count": len(one.points),
            "measured_at": None if one.measured_at_s is None else datetime.fromtimestamp(one.measured_at_s, UTC),
        },
    )
    if created:
        audit.record(actor, "created", row, None, _facts(row))
    return BroughtIn(row, created)


def _check(one: profiles.Profile) -> None:
    """Raises ValidationError for what the tables cannot keep, or no prediction can be made of."""
    for name, most in _TEXTS.items():
        text = getattr(one, name)
        if len(text) > most or "\0" in text:
            raise ValidationError({name: f"longer than {most} characters, or with characters that no text has"})
    if one.gpu == UNCATALOGUED:
        return
    try:
        ProfiledEngine(one)
    except ValueError as error:
        raise ValidationError({"t_s": f"{one.model} on {one.tp} x {one.gpu} ({one.engine}): {error}"}) from None


def _publish(actor: Actor, row: EngineProfile) -> None:
    others = {one.pk: one for one in _of_configuration(row).defer("points").select_for_update()}
    if others[row.pk].published_at is not None:
        row.published_at = others[row.pk].published_at
        return
    for other in others.values():
        if other.published_at is not None:
            _set_published(actor, "withdrawn", other, None)
    _set_published(actor, "published", row, timezone.now())
    _follow_up()


def _of_configuration(row: EngineProfile) -> Any:
    return EngineProfile.objects.filter(shape=row.shape, gpu_type=row.gpu_type, tp=row.tp, engine=row.engine)


def _set_published(actor: Actor, action: str, row: EngineProfile, at: datetime | None) -> None:
    before = _facts(row)
    row.published_at = at
    row.save(update_fields=["published_at"])
    audit.record(actor, action, row, before, _facts(row))


def _facts(row: EngineProfile) -> dict[str, Any]:
    """Returns what the audit trail says of a version: all but its points."""
    names = (
        *("model_name", "shape", "gpu_type", "tp", "engine", "version", "source", "origin", "point_count"),
        *("measured_at", "published_at"),
    )
    return {name: getattr(row, name) for name in names}


def _follow_up() -> None:
    transaction.on_commit(engine_measurements.refresh, robust=True)
    records.publish_later()
