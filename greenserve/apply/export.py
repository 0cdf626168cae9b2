"""Writes the fleet that is there as a file which `read` takes, and for which nothing is to be done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from .kinds import KINDS, leaves
from .plan import Present, PresentRow, by_key
from .values import Key, key_text, sent
from .yaml_values import Dumper

HEAD = """\
# A fleet of GreenServe, as it was when this was written. `greenserve apply FILE` compares it with what is there now.
"""


def text_of(present: Present) -> str:
    """Returns the file: all fields of all rows, in an order that does not change from one export to the next.

    Of versions with one key the last is written, which is the one that counts.
    """
    rows = {name: [_fields(row) for row in _sorted(name, present[name])] for name in KINDS if present.get(name)}
    if not rows:
        return HEAD + "{}\n"
    return HEAD + "\n".join(
        str(yaml.dump({name: listed}, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120))
        for name, listed in rows.items()
    )


def _fields(row: PresentRow) -> dict[str, Any]:
    return {spec.name: sent(spec, row.values[spec.name]) for spec in KINDS[row.kind].fields}


def _sorted(name: str, rows: Iterable[PresentRow]) -> list[PresentRow]:
    specs = leaves(KINDS[name])

    def order(row: PresentRow) -> Key:
        return tuple(("", 0) if part is None else _orderable(part) for part, _ in zip(row.key, specs, strict=True))

    return sorted(by_key(list(rows)).values(), key=order)


def _orderable(part: Any) -> tuple[str, Any]:
    """Numbers by their size, and everything else by its text."""
    return ("", part) if isinstance(part, int) else (key_text((part,)), 0)
