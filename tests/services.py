"""A pytest plugin: PostgreSQL and Redis for the tests that use them.

Without DATABASE_URL and REDIS_URL in the environment, embedded servers in a throw-away folder are started once per run,
and only when a collected test needs them: unit tests alone start nothing. Their addresses are known beforehand, so
they can be in the environment before Django reads its settings.

With pytest-xdist one PostgreSQL serves all workers. The first process migrates one database, of which each worker has a
copy. Each worker has a Redis of its own: channels of Redis are shared by all of its numbered databases.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from pytest_django.plugin import blocking_manager_key

from greenserve.servers import embedded
from tests import servers

DATABASE_FIXTURES = {"db", "transactional_db", "django_db_setup", "live_server"}
UNIT = Path(__file__).parent / "unit"
WORKER = "PYTEST_XDIST_WORKER"
TEMPLATE = "GREENSERVE_TEST_TEMPLATE"  # the migrated database that workers copy; set by the process that started them


class Services:
    """The servers of this process; `start` is called once it is known that a test needs them."""

    def __init__(self, var_dir: Path, servers: Callable[[Path], AbstractContextManager[object]]) -> None:
        self.var_dir = var_dir
        self._servers = servers
        self._stack = contextlib.ExitStack()

    def start(self) -> None:
        self._stack.enter_context(self._servers(self.var_dir))

    def stop(self) -> None:
        self._stack.close()
        servers.remove(self.var_dir)
        shutil.rmtree(self.var_dir, ignore_errors=True)


_services: Services | None = None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Runs before pytest-django loads the settings."""
    global _services
    ours = TEMPLATE in os.environ if WORKER in os.environ else not {"DATABASE_URL", "REDIS_URL"} <= os.environ.keys()
    if not ours:
        return
    var_dir = Path(tempfile.mkdtemp(prefix="greenserve-tests-"))
    os.environ["GREENSERVE_VAR"] = str(var_dir)
    os.environ["REDIS_URL"] = embedded.redis_url(var_dir)
    if WORKER in os.environ:
        _services = Services(var_dir, servers.redis_running)
    else:
        os.environ["DATABASE_URL"] = embedded.owner_url(var_dir)
        _services = Services(var_dir, _both)


def _both(var_dir: Path) -> AbstractContextManager[object]:
    return servers.running(var_dir, durable=False)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """With workers: what they share is there before they are."""
    if _services and WORKER not in os.environ and session.config.getoption("numprocesses", None):
        _services.start()
        with session.config.stash[blocking_manager_key].unblock():
            os.environ[TEMPLATE] = _migrated()


def _migrated() -> str:
    from django.db import connection

    name = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    connection.close()
    return str(name)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    if _services and not session.config.option.collectonly and any(map(needs_services, session.items)):
        _services.start()


def needs_services(item: pytest.Item) -> bool:
    if not item.path.is_relative_to(UNIT) or item.get_closest_marker("django_db"):
        return True
    return bool(DATABASE_FIXTURES & set(getattr(item, "fixturenames", ())))


def copy_the_migrated() -> None:
    """A worker's database will be a copy of the migrated one, with nothing left to migrate."""
    from django.db import connection

    if template := os.environ.get(TEMPLATE):
        connection.settings_dict["TEST"] |= {"TEMPLATE": template, "MIGRATE": False}


def pytest_unconfigure() -> None:
    global _services
    if _services:
        _services.stop()
        _services = None


def allow_emptying() -> None:
    """Lets Django empty append-only tables of the test database, as it does after a transactional test."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgname LIKE '%\\_no\\_truncate'")
        for table, trigger in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER {trigger}")
