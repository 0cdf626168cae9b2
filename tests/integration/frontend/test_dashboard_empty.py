"""Pages of a fleet in which nothing is, and nothing happened."""

from __future__ import annotations

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from tests.fakes.people import person
from tests.integration.frontend.test_dashboard_views import PAGES

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(redis_client) -> Client:
    cache.clear()
    client = Client()
    client.force_login(person("operator"))
    return client


@pytest.mark.parametrize("path", PAGES)
def test_page_answers_when_the_database_is_empty(operator, path):
    assert operator.get(path).status_code == 200


def test_figures_say_that_they_are_empty_when_nothing_happened(operator):
    body = operator.get("/overview/figures.json").json()
    assert all(figure["meta"]["empty"] for figure in body["figures"].values())


def test_first_step_is_shown_when_nothing_is_there(redis_client, admin_client):
    page = admin_client.get(reverse("setup"))
    assert page.context["following"].name == "site"
