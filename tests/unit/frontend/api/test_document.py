"""The OpenAPI document as programs read it that make clients from it."""

from __future__ import annotations

import inspect
import re

import pytest

from frontend.api.resources import documents
from frontend.api.rest.bodies import Body, ByType

NAME = re.compile(r"[A-Za-z0-9._-]+")  # of a component, by OpenAPI 3.1


@pytest.fixture(scope="module")
def schemas():
    return documents.document()["components"]["schemas"]


def test_components_have_names_that_openapi_allows_when_rows_are_called_otherwise(schemas):
    assert "ContractHour" in schemas  # the row is called "contract's hour"
    assert [name for name in schemas if not NAME.fullmatch(name)] == []


def test_words_of_base_classes_are_not_shown_when_a_body_has_none_of_its_own(schemas):
    inner = {inspect.getdoc(base) for base in (Body, ByType)}
    assert [name for name, schema in schemas.items() if schema.get("description") in inner] == []
    assert "description" not in schemas["NewPauseRequest"]


def test_amounts_are_decimals_when_they_are_sent_as_texts(schemas):
    amounts = {
        name
        for name, schema in schemas["UseSums"]["properties"].items()
        if schema.get("format") == "decimal" and "string" in schema["type"]
    }
    assert set(schemas["UseSums"]["properties"]) - amounts == {"currency"}


def test_whatever_needs_an_etag_to_be_changed_has_it_in_its_rows(schemas):
    for path, operations in documents.document()["paths"].items():
        for operation in operations.values():
            if any(one["name"] == "If-Match" for one in operation.get("parameters", ())) and "get" in operations:
                answer = operations["get"]["responses"]["200"]["content"]["application/json"]["schema"]
                assert "etag" in schemas[answer["$ref"].rpartition("/")[2]]["properties"], path
