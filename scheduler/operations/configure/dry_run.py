"""Tries what would follow if several rows were stored together: stores each in turn, and takes all of it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model

from .consequences import Consequence, of


@dataclass(frozen=True, slots=True)
class Tried:
    """One row, and what would follow once those before it are stored."""

    name: str
    consequences: tuple[Consequence, ...]

    @property
    def possible(self) -> bool:
        return not any(item.level == "error" for item in self.consequences)


def of_several(rows: Iterable[Model], store: Callable[[Model], object]) -> list[Tried]:
    """Stores each with `store` in a transaction that is rolled back; what it refuses is an error of that row."""
    with transaction.atomic():
        found = [tried(row, store) for row in rows]
        transaction.set_rollback(True)
    return found


def tried(row: Model, store: Callable[[Model], object]) -> Tried:
    """Stores a row; the transaction around it is the caller's to roll back."""
    consequences = list(of(row))
    try:
        with transaction.atomic():
            store(row)
    except ValidationError as error:
        known = {(item.field, item.text) for item in consequences}
        consequences += [item for item in _refused(error) if (item.field, item.text) not in known]
    return Tried(str(row), tuple(consequences))


def _refused(error: ValidationError) -> list[Consequence]:
    if not hasattr(error, "error_dict"):
        return [Consequence("error", "", text) for text in error.messages]
    return [
        Consequence("error", "" if name == "__all__" else name, text)
        for name, texts in error.message_dict.items()
        for text in texts
    ]
