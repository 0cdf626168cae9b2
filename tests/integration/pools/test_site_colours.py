"""A site's colour is its own: no other site that comes, goes or is renamed changes it."""

from __future__ import annotations

import pytest

from pools.models import Site

pytestmark = pytest.mark.django_db


def colours() -> dict[str, int]:
    return dict(Site.objects.values_list("name", "colour"))


def test_site_keeps_its_colour_when_others_are_added_removed_or_renamed():
    oslo, ashburn, berlin = (Site.objects.create(name=name, rank=5) for name in ("oslo", "ashburn", "berlin"))
    assert colours() == {"oslo": 0, "ashburn": 1, "berlin": 2}
    Site.objects.create(name="aachen", rank=0)
    oslo.delete()
    ashburn.name, ashburn.rank = "virginia", 9
    ashburn.save()
    assert colours() == {"virginia": 1, "berlin": 2, "aachen": 3}
    assert Site.objects.get(pk=berlin.pk).colour == 2


def test_new_site_takes_the_first_colour_that_is_free():
    first, _ = (Site.objects.create(name=name) for name in ("oslo", "ashburn"))
    first.delete()
    assert Site.objects.create(name="berlin").colour == 0
