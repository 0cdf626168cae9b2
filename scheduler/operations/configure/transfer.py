"""Import and export of what operators own, as CSV or YAML. An import is all or nothing, and can be tried first.

A dry run is the import itself, rolled back: a row may name another one that stands above it in the same file. Cells of
CSV have no JSON: `spread` says what stands there instead.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models, transaction
from django.db.models import Model, QuerySet

from core import safe_yaml
from core.cells import csv_text, original
from pools.access import audit
from pools.access.audit import Actor
from scheduler.operations.configure import changes, consequences, registry
from scheduler.operations.configure.forms import form_of
from scheduler.operations.configure.registry import Owned
from scheduler.operations.configure.spread import UnreadableCellError, gather, spread

FORMATS = ("csv", "yaml")
MOST_ROWS = 5000
MOST_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """The fate of one row, real or tried. `line`: where it begins in the file."""

    line: int
    key: str
    what: str  # created | changed | unchanged | refused
    notes: tuple[str, ...] = ()


def key_of(instance: Model) -> str:
    """Returns what a person knows a row by: its `lookup` fields, those of others by their own, with slashes."""
    parts = []
    for name in registry.of(instance).lookup:
        value = getattr(instance, name)
        if isinstance(value, Model):
            value = key_of(value)
        parts.append(value.isoformat() if hasattr(value, "isoformat") else "" if value is None else str(value))
    return "/".join(parts)


def export(owned: Owned, format: str, found: QuerySet[Any]) -> str:
    """Writes these rows of a kind as an import reads them."""
    rows = [_row(owned, item) for item in found.select_related(*owned.related)]
    if format == "yaml":
        return str(yaml.safe_dump(rows, sort_keys=False, allow_unicode=True)) if rows else "[]\n"
    lines = [dict(_cells(owned, row)) for row in rows]
    columns = [name for field in owned.fields for name in _columns_of(owned, field, lines)]
    return csv_text(columns, ([line.get(name) for name in columns] for line in lines))


def _cells(owned: Owned, row: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name in owned.fields:
        if _is_json(owned, name):
            yield from spread(name, row[name], owned.field(name).get_default())
        else:
            yield name, ";".join(row[name]) if name in owned.many else row[name]


def _columns_of(owned: Owned, field: str, lines: Sequence[Mapping[str, object]]) -> list[str]:
    """Returns the columns of a field: those that any row needs, places of lists by their number; or else its own."""
    if not _is_json(owned, field):
        return [field]
    found = {name for line in lines for name in line if name == field or name.startswith(f"{field}.")}
    needed = {name for name in found if any(line.get(name) is not None for line in lines)}
    return sorted(needed, key=lambda name: [part.zfill(6) for part in name.split(".")]) or [field]


def _is_json(owned: Owned, name: str) -> bool:
    return name in owned.fields and isinstance(owned.field(name), models.JSONField)


def _row(owned: Owned, instance: Model) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in owned.fields:
        field = owned.field(name)
        if isinstance(field, models.ManyToManyField):
            found[name] = [key_of(other) for other in getattr(instance, name).all()]
        elif field.is_relation:
            other = getattr(instance, name)
            found[name] = None if other is None else key_of(other)
        else:
            value = getattr(instance, name)
            plain = value is None or isinstance(value, (bool, int, float, str, list, dict))
            found[name] = value if plain else value.isoformat() if hasattr(value, "isoformat") else str(value)
    return found


def bring_in(actor: Actor, owned: Owned, text: str, format: str, *, dry_run: bool) -> list[RowOutcome]:
    """Reads rows and enters or changes them, found by `lookup`. With one refused, none is stored; nor in a dry run.

    Raises:
        ValidationError: The file as a whole makes no sense; the words say where.
    """
    rows = list(_parsed(owned, text, format))
    found = []
    with transaction.atomic():
        names: dict[type[Model], dict[str, Model]] = {}
        for line, values in rows:
            found.append(_one(actor, owned, line, values, names))
        if dry_run or any(item.what == "refused" for item in found):
            transaction.set_rollback(True)
    return found


def _one(
    actor: Actor, owned: Owned, line: int, values: Mapping[str, Any], names: dict[type[Model], dict[str, Model]]
) -> RowOutcome:
    label = "/".join(str(values.get(name) or "") for name in owned.lookup)
    try:
        with transaction.atomic():
            return _entered(actor, owned, line, values, names)
    except ValidationError as error:
        if hasattr(error, "error_dict"):
            notes = [f"{name}: {' '.join(texts)}" for name, texts in error.message_dict.items()]
        else:
            notes = error.messages
        return RowOutcome(line, label, "refused", tuple(note.removeprefix("__all__: ") for note in notes))
    except PermissionDenied as error:
        return RowOutcome(line, label, "refused", (str(error),))


def _entered(
    actor: Actor, owned: Owned, line: int, values: Mapping[str, Any], names: dict[type[Model], dict[str, Model]]
) -> RowOutcome:
    data = {name: _given(owned, name, value, names) for name, value in values.items()}
    instance = _stored(owned, data)
    before = None if instance is None else audit.values(instance)
    form = form_of(owned)({**_initial(owned, instance), **data}, instance=instance)
    if not form.is_valid():
        raise ValidationError({name: _texts(errors) for name, errors in form.errors.as_data().items()})
    notes = tuple(item.text for item in consequences.of(form.instance) if item.level == "warning")
    if instance is None:
        made, what = changes.create(actor, form.instance, form.related), "created"
    else:
        made = changes.update(actor, form.instance, form.related)
        what = "unchanged" if audit.values(made) == before else "changed"
    if type(made) in names:
        names[type(made)][key_of(made)] = made
    return RowOutcome(line, key_of(made), what, notes)


def _texts(errors: Iterable[ValidationError]) -> list[str]:
    return [text for error in errors for text in error.messages]


def _initial(owned: Owned, instance: Model | None) -> dict[str, Any]:
    """Returns the values that a file which leaves a column out keeps, or the defaults."""
    form = form_of(owned)(instance=instance)
    found = {}
    for name, field in form.fields.items():
        value = form.get_initial_for_field(field, name)
        value = [other.pk for other in value] if isinstance(value, list) and name in owned.many else value
        found[name] = field.prepare_value(value)
    return found


def _given(owned: Owned, name: str, value: object, names: dict[type[Model], dict[str, Model]]) -> Any:
    """Returns a value as the form takes it; one that names others becomes their keys in the database."""
    field = owned.field(name)
    if isinstance(field, models.ManyToManyField):
        wanted = value if isinstance(value, list) else [part for part in str(value or "").split(";") if part.strip()]
        return [_named(name, field.related_model, str(part).strip(), names).pk for part in wanted]
    if field.is_relation:
        return None if value in (None, "") else _named(name, field.related_model, str(value).strip(), names).pk
    if isinstance(field, models.JSONField) and not isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, str) and isinstance(field, models.BooleanField):
        if field.null and not value.strip():
            return None
        return value.strip().lower() in ("true", "yes", "on", "1")
    return value.isoformat() if hasattr(value, "isoformat") else value


def _named(field: str, model: Any, key: str, names: dict[type[Model], dict[str, Model]]) -> Model:
    if model not in names:
        related = registry.of(model).related
        names[model] = {key_of(row): row for row in model._default_manager.select_related(*related)}
    found = names[model].get(key)
    if found is None:
        owned = registry.of(model)
        raise ValidationError({field: f"there is no {owned.one} '{key}'; known are {_some(names[model])}"})
    return found


def _some(known: Mapping[str, Any]) -> str:
    names = sorted(known)
    return (", ".join(names[:8]) + (" ..." if len(names) > 8 else "")) or "none yet"


def _stored(owned: Owned, data: Mapping[str, Any]) -> Model | None:
    """Returns the row that the lookup fields name; None: it is a new one."""
    wanted = {}
    for name in owned.lookup:
        if name not in data:
            raise ValidationError({name: "needed: a row is found by it"})
        field = owned.field(name)
        value = None if data[name] == "" and field.null else data[name]
        wanted[name if not field.is_relation else f"{name}_id"] = value
    try:
        return owned.model._default_manager.filter(**wanted).first()
    except (ValueError, TypeError, ValidationError):
        return None  # the form says which value is wrong


def _parsed(owned: Owned, text: str, format: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line and fields of each row.

    Raises ValidationError when the text cannot be read, or has unknown columns.
    """
    if len(text) > MOST_BYTES:
        raise ValidationError(f"the file has more than {MOST_BYTES // 1_000_000} MB: split it")
    rows = list(_of_yaml(text) if format == "yaml" else _of_csv(owned, text))
    if not rows:
        raise ValidationError("there are no rows in it; the first line of a CSV names the columns")
    if len(rows) > MOST_ROWS:
        raise ValidationError(f"it has {len(rows)} rows; at most {MOST_ROWS} go at once")
    for line, row in rows:
        unknown = [str(name) for name in row if name not in owned.fields]
        if unknown:
            known = ", ".join(owned.fields)
            raise ValidationError(f"line {line}: no such column: {', '.join(unknown)}; known are {known}")
        yield line, row


def _of_csv(owned: Owned, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), restkey="(too many cells)")
    try:
        for row in reader:
            if any(value for value in row.values()):
                yield reader.line_num, _gathered(owned, {name: _original(value) for name, value in row.items()})
    except (csv.Error, UnreadableCellError) as error:
        raise ValidationError(f"line {reader.line_num}: {error}") from None


def _gathered(owned: Owned, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row with the columns of each JSON field in one, as JSON."""
    found: dict[str, Any] = {}
    parts: dict[str, dict[str, str]] = {}
    for column, cell in row.items():
        field = str(column).partition(".")[0]
        if _is_json(owned, field):
            parts.setdefault(field, {})[column] = str(cell)
            found[field] = ""  # where its first column stands
        else:
            found[column] = cell
    for field, cells in parts.items():
        found[field] = json.dumps(gather(field, cells, owned.field(field).get_default()))
    return found


def _original(cell: Any) -> Any:
    """Returns what the export's cell stands for; cells beyond the header's are a list, which is refused by name."""
    return original(cell) if isinstance(cell, str) else cell or ""


def _of_yaml(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        root = safe_yaml.compose(text)
        if root is None:
            return
        if not isinstance(root, yaml.SequenceNode):
            raise ValidationError("a YAML import is a list of rows, each of fields: - name: oslo")
        for node in root.value:
            line = node.start_mark.line + 1
            if not isinstance(node, yaml.MappingNode):
                raise ValidationError(f"line {line}: a row is fields with values, like name: oslo")
            yield line, {str(name): value for name, value in safe_yaml.value(node).items()}
    except safe_yaml.BadYamlError as error:
        raise ValidationError(f"this is no YAML: {error}") from None
