"""The truth about a simulated node's engines, where they differ from the engine model behind the product's back."""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.engine.corrections import BOUNDS, KNOTS, Correction
from core.engine.engine_model import EngineModel, closed_form
from core.types import Source


@dataclass(frozen=True, slots=True)
class Truth:
    """Factors on the engine model's seconds and watts, at all clocks. Raises ValueError beyond what they may be."""

    time: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        low, high = BOUNDS
        for name, value in (("time", self.time), ("power", self.power)):
            if not low <= value <= high:
                raise ValueError(f"{name} must be from {low:g} to {high:g}, got {value:g}")


class Truths:
    """The truth of each model's engines; the one for all models where a model has none of its own."""

    def __init__(self, of_all: Truth | None = None) -> None:
        self._of_all = of_all or Truth()
        self._by_model: dict[str, Truth] = {}

    def tell(self, truth: Truth, model: str | None = None) -> None:
        """Makes it the truth from now on. None: of all models, also of those that had one of their own."""
        if model is None:
            self._of_all, self._by_model = truth, {}
        else:
            self._by_model[model] = truth

    def of(self, model: str) -> Truth:
        return self._by_model.get(model, self._of_all)

    def engine(self, model: str, engine_model_name: str, gpu: str, tp: int, engine: str) -> EngineModel:
        """Returns the engine as it truly is. What the product knows of engines does not count here.

        Raises UnknownConfiguration.
        """
        modelled, truth = closed_form(engine_model_name, gpu, tp, engine), self.of(model)
        if truth == Truth():
            return modelled
        return replace(modelled, correction=Correction((truth.time,) * KNOTS, (truth.power,) * KNOTS, Source.MODELLED))


def parse_truth(text: str) -> Truth:
    """Reads `1.3:1.2`: time and power. Raises ValueError saying what is wrong."""
    time, separator, power = text.partition(":")
    try:
        return Truth(float(time), float(power)) if separator else Truth(float(time))
    except ValueError as error:
        raise ValueError(f"'{text}' is not TIME:POWER, for example 1.3:1.2 ({error})") from None
