"""Writes `resources.py` and `async_resources.py`: a class for each resource, a method for each operation."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .document import ROOT, Document, Operation, Schema, pascal
from .models import docstring
from .python_types import Names, Types

HEAD = '''"""The REST API's resources{words}.

Made from the API's OpenAPI document by `make client`: change the API, not this.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Unpack
from uuid import UUID

from . import models as m
from .calls import Call, Upload, key_segment, segment
from .paging import PAGE_SIZE, {rows}
from .transport import {transport}, new_key
from .waiting import {waits}
'''
LEFT_OUT = {"fields", "cursor", "limit", "format"}  # of queries: rows are whole, and pages are the client's business
KEYWORDS = {"from": "from_"}
TEXT_KINDS = {"text/csv": ("csv", "str"), "application/vnd.apache.arrow.stream": ("arrow", "bytes")}
WORDS = {"list": "Returns the rows, a page at a time.", "get": "Returns one."}  # before what the API says of both
HARMLESS = ("validate", "validate_change", "preview")


@dataclass
class Method:
    """One method's source, but for what differs between the two worlds."""

    name: str
    arguments: list[str]
    returns: str
    words: str
    call: list[str]
    kind: str | None  # what the answer is decoded as; None: it has no body
    content: str | None = None  # an expression of `answer`, where it is no JSON
    named: dict[str, str] = field(default_factory=dict)


class Writer:
    """Writes one of the two modules."""

    def __init__(self, document: Document, names: Names, asynchronous: bool) -> None:
        self.document, self.asynchronous = document, asynchronous
        self.answers, self.bodies = Types(names, body=False, prefix="m."), Types(names, body=True, prefix="m.")
        self.names = names
        self.a = "Async" if asynchronous else ""

    def module(self) -> str:
        head = HEAD.format(
            words=", for asyncio" if self.asynchronous else "",
            rows=f"{self.a}Rows",
            transport=f"{self.a}Transport",
            waits=f"{self.a}Waits",
        )
        groups: dict[str, list[Operation]] = {}
        for one in self.document.operations():
            groups.setdefault(one.group, []).append(one)
        parts = [head, *(self._group(name, operations) for name, operations in groups.items()), self._all(list(groups))]
        return "\n\n".join(parts)

    def _all(self, groups: list[str]) -> str:
        lines = [f"class {self.a}Resources:", '    """All resources, each as an attribute."""', ""]
        lines.append(f"    def __init__(self, transport: {self.a}Transport) -> None:")
        lines += [f"        self.{name} = {self.a}{pascal(name)}(transport)" for name in groups]
        return "\n".join([*lines, ""])

    def _group(self, name: str, operations: list[Operation]) -> str:
        base = f"({self.a}Waits)" if name == "jobs" else ""
        paths = sorted({re.sub(r"\{.*", "", one.path) for one in operations}, key=len)
        lines = [f"class {self.a}{pascal(name)}{base}:", f'    """`{paths[0]}`"""', ""]
        lines += [
            f"    def __init__(self, transport: {self.a}Transport) -> None:",
            "        self._transport = transport",
        ]
        for operation in operations:
            for method in self._methods(operation):
                lines += ["", *self._source(method)]
        return "\n".join([*lines, ""])

    def _methods(self, one: Operation) -> list[Method]:
        answers = one.answers()
        json = answers.get("application/json")
        if one.method == "GET" and json is not None and (row := self.document.row(json)):
            return [self._list(one, row)]
        plain = self._plain(one, json)
        found = [plain] if plain else []
        if many := self._many(one):
            found.append(many)
        if form := one.bodies().get("multipart/form-data"):
            found += self._upload(one, form)
        for kind in answers:
            if kind in TEXT_KINDS:
                found.append(self._text(one, kind))
        return found

    def _list(self, one: Operation, row: str) -> Method:
        names, arguments, query = self._query(one)
        if any(parameter["name"] == "limit" for parameter in one.parameters("query")):
            arguments.append("page_size: int = PAGE_SIZE")
            query.append('"limit": page_size')
        kind = f"m.{row}"
        call = ['"GET"', self._path(one), *([f"{{{', '.join(query)}}}"] if query else [])]
        starred = ["*", *arguments] if arguments else []
        return Method("list", starred, f"{self.a}Rows[{kind}]", one.words, call, kind, named=names)

    def _plain(self, one: Operation, json: Schema | None) -> Method | None:
        """Returns the method for one row, of those operations that take or return one."""
        body = one.bodies().get("application/json")
        if body is not None and body.get("type") == "array":
            return None
        names, arguments, query = self._query(one)
        if one.takes("If-Match"):
            arguments.append("etag: str")
        call = [f'"{one.method}"', self._path(one)]
        call += [f"query={{{', '.join(query)}}}"] if query else []
        if body is not None:
            component = self.document.one_of_many(body) or self.document.component(body)
            assert component is not None, one.path
            arguments += self._key(one)
            arguments.append(f"**fields: Unpack[m.{self.names.components[component]}]")
            call.append("body=fields")
        else:
            arguments += self._key(one)
        call += self._headers(one)
        positional = self._positional(one)
        starred = [*positional, *(["*"] if arguments and not arguments[0].startswith("**") else []), *arguments]
        if json is None:
            content = "answer.content" if one.answers() else None
            returns = "bytes" if content else "None"
            call += ['accept="*/*"'] if content else []
            return Method(one.name, starred, returns, one.words, call, None, content, names)
        inner = self.document.one_of_many(json)
        kind = f"m.{self.names.components[inner]}" if inner else self.answers.of(json)
        return Method(one.name, starred, kind, one.words, call, kind, named=names)

    def _many(self, one: Operation) -> Method | None:
        """Returns the method that takes a list; None: the operation takes none."""
        body, json = one.bodies().get("application/json"), one.answers().get("application/json")
        if body is None or json is None:
            return None
        takes = self.document.one_of_many(body)
        returns = self.document.one_of_many(json)
        if returns is None or (takes is None and body.get("type") != "array"):
            return None
        changes = "m." + self.names.components[f"Patched{self._row_of(one)}Request"].removesuffix("s")
        items = [f"m.{self.names.components[takes]}"] if takes else []
        items += [] if one.name == "create" else [changes]
        name = one.name if one.name.endswith("_many") else f"{one.name}_many"
        arguments = [*self._positional(one), f"bodies: Sequence[{' | '.join(items)}]", "/"]
        keys = self._key(one)
        call = [f'"{one.method}"', self._path(one), "body=bodies", *self._headers(one)]
        kind = f"tuple[m.{self.names.components[returns]}, ...]"
        return Method(name, [*arguments, *(["*", *keys] if keys else [])], kind, one.words, call, kind)

    def _row_of(self, one: Operation) -> str:
        """Returns the component of the rows of the operation's resource."""
        lists = [other for other in self.document.operations() if other.group == one.group and other.name == "list"]
        found = self.document.row(lists[0].answers()["application/json"])
        assert found is not None
        return found

    def _upload(self, one: Operation, form: Schema) -> list[Method]:
        """Returns the method that sends a file beside the body; none where the form has no file."""
        fields = self.document.schemas[str(self.document.component(form))]["properties"]
        files = [name for name, schema in fields.items() if schema.get("format") == "binary"]
        if not files:
            return []
        (file,), (text,) = files, [name for name in fields if name not in files]
        body = self.document.component(one.bodies()["application/json"])
        arguments = [*self._positional(one), f"{file}: bytes", "/", "*", *self._key(one)]
        arguments.append(f"**fields: Unpack[m.{self.names.components[str(body)]}]")
        upload = f'body=Upload({{"{text}": fields}}, "{file}", {file})'
        call = [f'"{one.method}"', self._path(one), upload, *self._headers(one)]
        kind = self.answers.of(one.answers()["application/json"])
        return [Method(f"{one.name}_with_{file}", arguments, kind, one.words, call, kind)]

    def _text(self, one: Operation, kind: str) -> Method:
        name, returns = TEXT_KINDS[kind]
        names, arguments, query = self._query(one)
        content = "answer.content.decode()" if returns == "str" else "answer.content"
        call = ['"GET"', self._path(one), f"query={{{', '.join(query)}}}", f'accept="{kind}"']
        starred = [*self._positional(one), *(["*"] if arguments else []), *arguments]
        return Method(name, starred, returns, f"{one.words} As {kind}.", call, None, content, names)

    def _positional(self, one: Operation) -> list[str]:
        found = []
        for parameter in one.parameters("path"):
            name = parameter["name"]
            kind = {"key": "str | int", "id": "int"}.get(name) or self.bodies.of(parameter["schema"])
            found.append(f"{name}: {kind}")
        ordered = sorted(found, key=lambda text: one.path.index(f"{{{text.partition(':')[0]}}}"))
        return [*ordered, "/"] if ordered else []

    def _path(self, one: Operation) -> str:
        path = one.path.removeprefix(ROOT)
        for parameter in one.parameters("path"):
            name = parameter["name"]
            path = path.replace(f"{{{name}}}", f"{{{'key_segment' if name == 'key' else 'segment'}({name})}}")
        return f'f"{path}"' if "{" in path else f'"{path}"'

    def _query(self, one: Operation) -> tuple[dict[str, str], list[str], list[str]]:
        """Returns what parameters are for, the arguments for them, and the entries of the query."""
        words: dict[str, str] = {}
        arguments: list[str] = []
        query: list[str] = []
        for parameter in one.parameters("query"):
            name = parameter["name"]
            if name in LEFT_OUT:
                continue
            called = str(KEYWORDS.get(name, name))
            kind = self.bodies.of(parameter["schema"])
            needed = parameter.get("required", False)
            arguments.append(f"{called}: {kind}" if needed else f"{called}: {kind} | None = None")
            query.append(f'"{name}": {called}')
            if parameter.get("description"):
                words[called] = " ".join(parameter["description"].split("\n")[0].split())
        return words, arguments, query

    def _key(self, one: Operation) -> list[str]:
        return ["idempotency_key: str | None = None"] if one.takes("Idempotency-Key") else []

    def _headers(self, one: Operation) -> list[str]:
        found = ["key=new_key(idempotency_key)"] if one.takes("Idempotency-Key") else []
        found += ["etag=etag"] if one.takes("If-Match") else []
        return found + (["harmless=True"] if one.name in HARMLESS else [])

    def _source(self, method: Method) -> list[str]:
        rows = "Rows" in method.returns
        begin = "async def" if self.asynchronous and not rows else "def"
        wait = "await " if self.asynchronous and not rows else ""
        words = " ".join(method.words.split())
        if method.name in WORDS and not words.startswith("Returns"):
            words = f"{WORDS[method.name]} {words}"
        lines = [f"    {begin} {method.name}({', '.join(['self', *method.arguments])}) -> {method.returns}:"]
        lines += docstring(words, method.named, "Args", " " * 8)[:-1]
        call = f"Call({', '.join(method.call)})"
        if rows:
            last = f"return {self.a}Rows(self._transport, {call}, {method.kind})"
        elif method.kind is not None:
            last = f"return {wait}self._transport.read({call}, {method.kind})"
        elif method.content is not None:
            lines.append(f"        answer = {wait}self._transport.send({call})")
            last = f"return {method.content}"
        else:
            last = f"{wait}self._transport.send({call})"
        return [*lines, f"        {last}"]
