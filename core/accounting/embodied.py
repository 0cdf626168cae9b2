"""Embodied carbon by the Software Carbon Intensity specification (SCI 1.1): M = TE x (TiR / EL) x (RR / ToR)."""

from __future__ import annotations

YEAR_S = 31_557_600.0  # 365.25 days


def embodied_g(
    total_kg: float, reserved_s: float, lifespan_years: float, reserved: float = 1.0, of: float = 1.0
) -> float:
    """Returns SCI's M in grams.

    Args:
        total_kg: TE, emissions of making the hardware.
        reserved_s: TiR, how long it was reserved for the use.
        lifespan_years: EL, how long the hardware is expected to live.
        reserved, of: RR of ToR, the resources that were reserved and all there are.

    Raises:
        ValueError: Names the quantity that makes no sense.
    """
    if not total_kg >= 0:
        raise ValueError(f"total_kg is at least 0, not {total_kg}")
    if not lifespan_years > 0:
        raise ValueError(f"lifespan_years is above 0, not {lifespan_years}")
    if not 0 <= reserved <= of or of <= 0:
        raise ValueError(f"of {of} resources {reserved} cannot be reserved")
    return total_kg * 1_000.0 * (reserved_s / (lifespan_years * YEAR_S)) * (reserved / of)
