"""A pytest plugin: PostgreSQL and Redis for the tests that use them.

Without DATABASE_URL and REDIS_URL in the environment, embedded servers in a throw-away folder are started once per run,
and only when a collected test needs them: unit tests alone start nothing. Their addresses are known beforehand, so
they can be in the environment before Django reads its settings.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from greenserve import embedded

DATABASE_FIXTURES = {"db", "transactional_db", "django_db_setup", "live_server"}
UNIT = Path(__file__).parent / "unit"


class Services:
    """The servers of this run; `start` is called once the tests are known."""

    def __init__(self, var_dir: Path) -> None:
        self.var_dir = var_dir
        self._stack = contextlib.ExitStack()

    def start(self) -> None:
        self._stack.enter_context(embedded.running(self.var_dir, durable=False))

    def stop(self) -> None:
        self._stack.close()
        embedded.remove(self.var_dir)
        shutil.rmtree(self.var_dir, ignore_errors=True)


_services: Services | None = None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Runs before pytest-django loads the settings."""
    global _services
    if "DATABASE_URL" in os.environ and "REDIS_URL" in os.environ:
        return
    var_dir = Path(tempfile.mkdtemp(prefix="greenserve-tests-"))
    os.environ["GREENSERVE_VAR"] = str(var_dir)
    os.environ["DATABASE_URL"] = embedded.database_url(var_dir)
    os.environ["REDIS_URL"] = embedded.redis_url(var_dir)
    _services = Services(var_dir)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    if _services and not session.config.option.collectonly and any(map(needs_services, session.items)):
        _services.start()


def needs_services(item: pytest.Item) -> bool:
    if not item.path.is_relative_to(UNIT) or item.get_closest_marker("django_db"):
        return True
    return bool(DATABASE_FIXTURES & set(getattr(item, "fixturenames", ())))


def pytest_unconfigure() -> None:
    global _services
    if _services:
        _services.stop()
        _services = None
