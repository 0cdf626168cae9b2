"""Fixtures of all tests. PostgreSQL and Redis come from `tests.services`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings as product
from django.test import override_settings
from hypothesis import settings
from pytest_django import DjangoDbBlocker

from tests import services

# Of laws that name no number themselves. No example has a deadline: the machine may be busy with other things.
settings.register_profile("thorough", max_examples=200, deadline=None)  # make test-thorough
settings.register_profile("fuzz", max_examples=10_000, deadline=None)  # of what clients may send: make test-thorough
settings.register_profile("quick", max_examples=50, deadline=None)
settings.load_profile("quick")

IN_CI = os.environ.get("CI", "").lower() == "true"


def skip_or_fail(reason: str, module: bool = False) -> None:
    """What a test needs is missing: a developer's run goes on without it, CI's must not. `module`: all its tests."""
    if IN_CI:
        pytest.fail(f"CI must have it: {reason}")
    pytest.skip(reason, allow_module_level=module)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """Stands here, since pytest-django's own would come before one of a plugin."""
    services.copy_the_migrated()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    with django_db_blocker.unblock():
        services.allow_emptying()


@pytest.fixture(scope="session", autouse=True)
def _static_files_where_asked_for() -> Iterator[None]:
    from tests.fakes import static_files

    own = [static_files.OURS if name == static_files.NAME else name for name in product.MIDDLEWARE]
    assert own != product.MIDDLEWARE
    with override_settings(MIDDLEWARE=own):
        yield


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of recorded data that some tests compare with. It is not part of the repository."""
    folder = os.environ.get("GREENSERVE_TEST_DATA")
    if not folder:
        pytest.skip("GREENSERVE_TEST_DATA is not set: it names the folder of recorded data, no part of the repository")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"GREENSERVE_TEST_DATA={path} is no folder")
    return path


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NVIDIA's driver, compiled once."""
    from tests.fakes import nvml

    return nvml.library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Where tests leave screenshots and logs for people to look at."""
    path = Path(__file__).parent.parent / "test-artifacts"
    path.mkdir(exist_ok=True)
    return path
