import importlib

import pytest


@pytest.fixture(scope="session")
def scikit_learn() -> None:
    """Imports it before the first training in a process does, which takes a second: not the time of a test."""
    importlib.import_module("sklearn.ensemble")
