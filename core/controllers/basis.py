"""Says in the inputs of a decision what its figures rest on."""

from __future__ import annotations

from typing import Any, Protocol

from core.types import Source


class Grounded(Protocol):
    """Figures of a configuration, with what they rest on and when that was measured, in Unix seconds."""

    @property
    def source(self) -> Source: ...
    @property
    def measured_at_s(self) -> float | None: ...


def basis_json(figures: Grounded) -> dict[str, Any]:
    """Returns what figures rest on as JSON, and when that was measured; they need not have been."""
    age = {} if figures.measured_at_s is None else {"measured_at_s": figures.measured_at_s}
    return {"source": figures.source.value, **age}
