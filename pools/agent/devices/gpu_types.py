"""Translates the driver's name of a GPU into that of GreenServe's GPU types."""

from __future__ import annotations

import re

from core.engine.gpu_types import MOST_NAME, named_by_driver


def gpu_type(name: str) -> tuple[str, bool]:
    """Returns the type of a GPU of this name, and whether it is known; an unknown one keeps its name.

    A PCIe A100 or H100 is another machine than the SXM one, of other power and clocks: only the exact product counts.
    """
    if (known := named_by_driver(name)) is not None:
        return known.name, True
    return re.sub(r"[\s/+:,]+", "-", name.removeprefix("NVIDIA ").strip())[:MOST_NAME], False
