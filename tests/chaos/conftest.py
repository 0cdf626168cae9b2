"""Options of the faults' run, and the running demo of a part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.chaos import machine
from tests.chaos.faults import disks
from tests.chaos.stand import Stand, running

DISKS_PART = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=int, default=None, help="given by `python -m tests.chaos` in a part's namespaces")
    parser.addoption("--fault", action="append", default=[], help="only faults whose name has this; repeat it")


class Stands:
    """One demo for all faults of a part. After a fault that broke a promise the next one gets a new demo: what was
    found of one is not found again of those after it."""

    def __init__(self, factory: pytest.TempPathFactory, part: int) -> None:
        self._factory = factory
        self._disks = disks.SIZES if part == DISKS_PART else {}
        self._open = ExitStack()
        self._stand: Stand | None = None

    def current(self) -> Stand:
        if self._stand is None:
            self._stand = self._open.enter_context(running(self._factory.mktemp("chaos") / "var", self._disks))
        return self._stand

    def close(self) -> None:
        self._stand = None
        self._open.close()


@pytest.fixture(scope="module")
def stands(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stands]:
    """Demos of this part, in namespaces that `python -m tests.chaos` has made."""
    part = request.config.getoption("--part", None)
    if part is None:
        pytest.skip("faults need namespaces of their own: run `make chaos`, or `python -m tests.chaos`")
    machine.enter()
    machine.own_clock()
    stands = Stands(tmp_path_factory, part)
    yield stands
    stands.close()


@pytest.fixture
def stand(stands: Stands) -> Iterator[Stand]:
    """The demo of this fault."""
    stand = stands.current()
    yield stand
    if stand.spoiled:
        stands.close()
