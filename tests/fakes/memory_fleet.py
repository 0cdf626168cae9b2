"""A fleet in memory that answers as the REST API does: what names others keeps them, and each request is whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from greenserve.apply.kinds import KINDS, FieldType
from greenserve.apply.plan import present_row
from greenserve.client import ConflictError, FieldError, InvalidError, NotFoundError, ProblemDocument, StaleError

EMPTY: dict[FieldType, Any] = {
    **{FieldType.TEXT: "", FieldType.NUMBER: 0.0, FieldType.WHOLE: 0, FieldType.DECIMAL: "0", FieldType.FLAG: False},
    **{FieldType.OBJECT: {}, FieldType.LIST: [], FieldType.NAMES: []},
}


class MemoryFleet:
    """`rows` and `call` of greenserve.client.Client. `sent` has each change in its order."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in KINDS}
        self._next = 1
        self.sent: list[tuple[str, str]] = []

    def rows(self, path: str) -> Iterator[dict[str, Any]]:
        name = path.removesuffix("/")
        for number, row in self._rows[name].items():
            yield {"id": number, "etag": _etag(row), **row}

    def call(self, method: str, path: str, body: Any = None, *, etag: str | None = None) -> Any:
        name, _, rest = path.removesuffix("/").partition("/")
        if rest == "validate":
            return [{"valid": True, "consequences": []} for _ in body]
        self.sent.append((method, name))
        match method:
            case "POST":
                for item in body:
                    self._make(name, item)
            case "PATCH":
                wrong = [at for at, item in enumerate(body) if item["etag"] != _etag(self._rows[name][item["id"]])]
                if wrong:
                    raise InvalidError(
                        _problem(400, [FieldError(f"{at}.etag", "it is not what was read") for at in wrong])
                    )
                for item in body:
                    self._patch(name, item)
            case "DELETE":
                self._delete(name, int(rest.removeprefix("~")), etag)
        return None

    def _make(self, name: str, item: dict[str, Any]) -> None:
        row = {
            spec.name: item.get(spec.name, None if spec.nullable else next(iter(spec.choices), EMPTY.get(spec.type)))
            for spec in KINDS[name].fields
        }
        self._check(name, row)
        self._rows[name][self._next] = row
        self._next += 1

    def _patch(self, name: str, item: dict[str, Any]) -> None:
        row = {**self._rows[name][item["id"]], **{key: item[key] for key in item if key not in ("id", "etag")}}
        self._check(name, row)
        number = self._next if KINDS[name].versions else item["id"]
        self._next += KINDS[name].versions
        self._rows[name][number] = row

    def _delete(self, name: str, number: int, etag: str | None) -> None:
        if number not in self._rows[name]:
            raise NotFoundError(_problem(404))
        row = self._rows[name][number]
        if etag != _etag(row):
            raise StaleError(_problem(412))
        key = present_row(KINDS[name], {"id": number, "etag": "", **row}).key
        if any(key in keys for kind in KINDS for keys in [self._named(kind, name)]):
            raise ConflictError(_problem(409))
        del self._rows[name][number]

    def _check(self, name: str, row: dict[str, Any]) -> None:
        """A row names only rows that are there."""
        shown = present_row(KINDS[name], {"id": 0, "etag": "", **row})
        for spec in KINDS[name].references:
            value = shown.values[spec.name]
            keys = {present_row(KINDS[spec.of], there).key for there in self.rows(f"{spec.of}/")}
            named = () if value is None else value if spec.type is FieldType.NAMES else (value,)
            if missing := set(named) - keys:
                raise InvalidError(_problem(400, [FieldError(f"0.{spec.name}", f"there is no {missing}")]))

    def _named(self, kind: str, of: str) -> set[Any]:
        found: set[Any] = set()
        for spec in (spec for spec in KINDS[kind].references if spec.of == of):
            for row in self.rows(f"{kind}/"):
                value = present_row(KINDS[kind], row).values[spec.name]
                found |= set() if value is None else set(value) if spec.type is FieldType.NAMES else {value}
        return found


def _etag(row: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def _problem(status: int, errors: list[FieldError] | None = None) -> ProblemDocument:
    return ProblemDocument("about:blank", "", status, "refused", "/", errors=tuple(errors or ()))
