"""The sides of a tenant's budget: money, carbon, energy and tokens, and what a month's figures have used of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.units import G_PER_KG, J_PER_KWH
from telemetry.models import Budget

from .tenant_month import Figures

MONEY, CARBON, ENERGY, TOKENS = "money", "carbon", "energy", "tokens"


@dataclass(frozen=True, slots=True)
class BudgetSide:
    """One side, in its unit. `used` gives None where it is not known in whole; `least`: what is known of it."""

    name: str
    unit: str
    budget: float
    used: Callable[[Figures], float | None]
    least: Callable[[Figures], float]

    def words(self, value: float) -> str:
        digits = 0 if self.name == TOKENS else 2
        return f"{value:,.{digits}f} of {self.budget:,.{digits}f} {self.unit}"


def sides(budget: Budget) -> list[BudgetSide]:
    """Returns those that the budget has, in the order of its form."""
    found, currency = [], budget.currency
    if budget.amount is not None:
        amount = float(budget.amount)
        found.append(BudgetSide(MONEY, currency, amount, lambda f: f.cost(currency), lambda f: f.least_cost(currency)))
    if budget.carbon_kg is not None:
        found.append(
            BudgetSide(CARBON, "kgCO₂e", float(budget.carbon_kg), _carbon_kg, lambda f: f.least_carbon_g / G_PER_KG)
        )
    if budget.energy_kwh is not None:
        found.append(BudgetSide(ENERGY, "kWh", float(budget.energy_kwh), _energy_kwh, _energy_kwh))
    if budget.tokens is not None:
        found.append(BudgetSide(TOKENS, "tokens", float(budget.tokens), _tokens, _tokens))
    return found


def _carbon_kg(figures: Figures) -> float | None:
    return None if figures.carbon_g is None else figures.carbon_g / G_PER_KG


def _energy_kwh(figures: Figures) -> float:
    return figures.energy_j / J_PER_KWH


def _tokens(figures: Figures) -> float:
    return float(figures.tokens)
