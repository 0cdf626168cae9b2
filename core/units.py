"""Unit conversions. Inside the product: seconds, joules, watts, MHz, grams.

kWh, milliseconds and lb/MWh exist only at the edges (forms, feeds, exports), and this module is the only place
that turns one into the other.
"""

US_PER_S = 1_000_000
UJ_PER_J = 1_000_000
J_PER_WH = 3_600.0
J_PER_KWH = 3_600_000.0
G_PER_LB = 453.59237
G_PER_KG = 1_000.0
ZERO_CELSIUS_K = 273.15


def j_to_wh(energy_j: float) -> float:
    """Converts joules to watt-hours."""
    return energy_j / J_PER_WH


def j_to_kwh(energy_j: float) -> float:
    """Converts joules to kilowatt-hours."""
    return energy_j / J_PER_KWH


def gco2e(energy_j: float, intensity_g_per_kwh: float, pue: float = 1.0) -> float:
    """Returns the grams emitted by `energy_j` metered at the GPU, grossed up by the site's PUE."""
    return energy_j / J_PER_KWH * pue * intensity_g_per_kwh


def lb_per_mwh_to_g_per_kwh(rate_lb_per_mwh: float) -> float:
    """Converts pounds per megawatt-hour, WattTime's unit, to grams per kilowatt-hour."""
    return rate_lb_per_mwh * G_PER_LB / 1_000.0


def ms_to_s(duration_ms: float) -> float:
    """Converts milliseconds to seconds."""
    return duration_ms / 1_000.0


def ug_per_uj(intensity_g_per_kwh: float, pue: float = 1.0) -> float:
    """Returns the micrograms emitted by each microjoule metered at the GPU: the ledger's whole units, see `gco2e`."""
    return intensity_g_per_kwh * pue / J_PER_KWH


def nano_per_uj(price_per_kwh: float, pue: float = 1.0) -> float:
    """Returns the billionths of a currency unit for each microjoule metered at the GPU."""
    return price_per_kwh * pue / J_PER_KWH * 1_000.0


def nano_per_gpu_us(rate_per_gpu_hour: float) -> float:
    """Returns the billionths of a currency unit for each microsecond of one GPU."""
    return rate_per_gpu_hour / 3.6


def celsius_to_k(temperature_c: float) -> float:
    """Converts degrees Celsius to kelvins."""
    return temperature_c + ZERO_CELSIUS_K
