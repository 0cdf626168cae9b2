"""Commands that look into the database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from greenserve import packages
from greenserve.cli import fail
from greenserve.plain_errors import explain

if TYPE_CHECKING:
    from django.contrib.auth.models import User


@contextmanager
def database() -> Iterator[None]:
    """Django is set up within, and a database that does not answer is one clear line. Decorates functions too.

    So is a node's installation, which has no Django.
    """
    if packages.of_a_node():
        fail(f"this needs GreenServe's database: {packages.NODE_REMEDY}")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "greenserve.settings")
    import django

    django.setup()
    from django.db import DatabaseError

    try:
        yield
    except DatabaseError as error:
        fail(explain(error) or str(error))


def all_sites_user() -> User:
    """Returns a user who sees all sites, as whoever has the database does; it is not stored."""
    from django.contrib.auth.models import User

    return User(is_superuser=True)
