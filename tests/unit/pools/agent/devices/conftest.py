"""Fixtures of tests of a node's devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.engine import gpu_types
from tests.fakes.nvml import Boards, machine


@pytest.fixture
def boards(nvml_library: Path, tmp_path: Path) -> Iterator[Boards]:
    """Two GPUs that this process's driver has, of types that nobody has declared."""
    with machine(nvml_library, tmp_path, count=2) as found:
        yield found
    gpu_types.declare(())
