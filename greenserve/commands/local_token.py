"""An access token for a command that uses REST on the machine where GreenServe runs.

Who can use the database there can make tokens anyway (`greenserve user token`), so the command makes one for itself. It
is a person's, so that rights and the audit trail are theirs, and it ends with the command.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from greenserve.cli import fail

from .database import database

if TYPE_CHECKING:
    from django.contrib.auth.models import User

HOLDS = timedelta(hours=1)


@contextmanager
def local_token(name: str | None, label: str) -> Iterator[str]:
    """Yields a token with all rights of the person, which is revoked afterwards.

    Args:
        name: Of the person; None: the only administrator.
        label: What the token is for, as the audit trail has it.
    """
    with database():
        from django.utils import timezone

        from pools.access import people, rights
        from pools.access.audit import Actor

        person = _person(name)
        granted = [right.value for right in rights.grant_of(person).rights]
        row, secret = people.new_token(Actor(channel="command"), person, label, granted, (), timezone.now() + HOLDS)
    try:
        yield secret
    finally:
        with database():
            people.revoke_token(Actor(channel="command"), row)


def _person(name: str | None) -> User:
    from django.contrib.auth import get_user_model

    from pools.access import people

    if name is not None:
        found = get_user_model().objects.filter(username=name, is_active=True).first()
        return found or fail(f"there is nobody called '{name}' who may sign in; see `greenserve user list`")
    administrators = list(people.administrators().order_by("username")[:10])
    if len(administrators) == 1:
        return administrators[0]
    if not administrators:
        fail("there is no administrator yet: greenserve user create NAME --role administrator")
    names = ", ".join(one.get_username() for one in administrators)
    return fail(f"say as whom, by --as NAME, or give a token; administrators are: {names}")
