"""Options of the faults' run, and the running demo of a part."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos import machine
from tests.chaos.faults import disks
from tests.chaos.stand import Stand, running

DISKS_PART = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=int, default=None, help="given by `python -m tests.chaos` in a part's namespaces")
    parser.addoption("--fault", action="append", default=[], help="only faults whose name has this; repeat it")


@pytest.fixture(scope="module")
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """The demo of this part, in namespaces that `python -m tests.chaos` has made."""
    part = request.config.getoption("--part", None)
    if part is None:
        pytest.skip("faults need namespaces of their own: run `make chaos`, or `python -m tests.chaos`")
    machine.enter()
    machine.own_clock()
    sizes = disks.SIZES if part == DISKS_PART else {}
    with running(tmp_path_factory.mktemp("chaos") / "var", sizes) as stand:
        yield stand
