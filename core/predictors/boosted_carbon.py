"""Carbon intensity by gradient-boosted trees and a regression over the same features: the side that answers.

Two models learn the same thing (`carbon_training`): a ridge regression for each eight hours ahead, with terms for the
hour of the day, which follows the last values closely, and trees, which know that wind counts more at night and sun at
noon. A forecast is a mean of both, weighted by how far ahead it looks, as was best on hours that neither had seen.

Quantiles come from the same hours: how far the truth then lay off the forecast, by how far ahead (split conformal
prediction, Lei and others 2018), in logarithms, so as a factor, and in units of how restless the grid was in the last
weeks (`unrest`), times how far off the model's own forecasts of the last days lay (`spread`). So intervals widen where
a grid turns to something that the model has not seen, as adaptive conformal inference has it (Gibbs and Candès 2021),
but by errors that the hours seen show, without a state. Weights, errors and trees are arrays: no pickle.
"""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from .carbon_features import DAY, LEADS, Floats, Grid, Whole, features, logs, names, unrest

BLOCK = 8  # hours ahead that share a regression, a weight and a distribution of errors
BLOCKS = LEADS // BLOCK
LEVELS = np.linspace(0.01, 0.99, 99)  # at which the errors' quantiles are kept
FORM = 2  # of what is stored; 1, which has no number, has no `typical`. Another `spread` needs another one
RECENT = 4 * DAY  # hours before a forecast whose errors it measures
FOLLOWS = 0.5  # intervals follow recent errors to this power, since much of them is chance
STEADY = 50  # errors as expected that are added to the recent ones: few of them say little
LARGEST_ERROR = 9.0  # times what is typical: one hour alone counts no more
LARGEST_BYTES = 16 << 20
_BACK_HOURS, _BACK_LEADS = 5, 4  # between origins, and leads of a forecast, of RECENT: as dense as training draws them
_LONGEST_WALK = 64  # splits on the way to a leaf


@dataclass(frozen=True, slots=True)
class Trees:
    """Trees as flat arrays, (nodes,) each; `roots` (trees,) says where each begins.

    `feature` is -1 at a leaf. A row goes to `left` where its feature is at most `threshold`, or where it is unknown and
    `missing_left`, else to `right`. `baseline` and a leaf's `value` of each tree add up.
    """

    baseline: Floats  # ()
    roots: Whole
    feature: Whole
    threshold: Floats
    left: Whole
    right: Whole
    missing_left: NDArray[np.bool_]
    value: Floats

    def predict(self, rows: Floats) -> Floats:
        """Returns (n,) for (n, columns)."""
        total = np.full(len(rows), float(self.baseline))
        number = np.arange(len(rows))
        for root in self.roots.tolist():
            node = np.full(len(rows), root)
            for _ in range(_LONGEST_WALK):
                column = self.feature[node]
                if (column < 0).all():
                    break
                asked = rows[number, np.maximum(column, 0)]
                to_left = np.where(np.isnan(asked), self.missing_left[node], asked <= self.threshold[node])
                node = np.where(column < 0, node, np.where(to_left, self.left[node], self.right[node]))
            total += self.value[node]
        return total

    def check(self, columns: int) -> None:
        """Raises ValueError unless every walk from a root ends at a leaf."""
        size = self.feature.size
        same = all(
            getattr(self, name).shape == (size,) for name in ("threshold", "left", "right", "missing_left", "value")
        )
        if not same or self.baseline.shape != () or not size or ((self.roots < 0) | (self.roots >= size)).any():
            raise ValueError("the arrays of the trees do not fit together")
        inner = np.flatnonzero(self.feature >= 0)
        for side in (self.left[inner], self.right[inner]):
            if ((side <= inner) | (side >= size)).any():  # children lie behind their parent, so walks end
                raise ValueError("a node of the trees leads nowhere")
        if (self.feature >= columns).any():
            raise ValueError("the trees ask for features that there are not")


@dataclass(frozen=True, slots=True)
class CarbonModel:
    """A model of one grid. `hours`: of carbon that it was learned from, up to `until_hour` (since the Unix epoch)."""

    trees: Trees
    centre: Floats  # (BLOCKS, terms): the regression's terms are taken off it and divided by `scale`; unknown counts 0
    scale: Floats
    weights: Floats  # (BLOCKS, terms)
    offset: Floats  # (BLOCKS,)
    share: Floats  # (BLOCKS,) of the regression in the mean of both
    errors: (
        Floats  # (BLOCKS, LEVELS): quantiles of truth less forecast, in logarithms, by `unrest` and `spread`; median 0
    )
    weather: bool
    hours: int
    until_hour: int
    typical: Floats | None = None  # (BLOCKS,): mean size of errors, by `unrest`; None: `errors` are by that alone

    def forecast(self, grid: Grid, steps: int, quantiles: tuple[float, ...] = (0.5,)) -> Floats:
        """Forecasts the hours after the last one of `grid.carbon`.

        Returns:
            (quantiles, steps) in g/kWh; NaN from LEADS on, and where the last days have nothing of that hour.

        Raises:
            ValueError: The model was learned with weather and the grid has none, or a quantile is not within (0, 1).
        """
        found = self.forecasts(grid, np.array([grid.carbon.size]), quantiles)[:, 0]
        ahead = np.full((len(quantiles), steps), np.nan)
        ahead[:, : min(steps, LEADS)] = found[:, :steps]
        return ahead

    def forecasts(self, grid: Grid, origins: Whole, quantiles: tuple[float, ...]) -> Floats:
        """Returns (quantiles, origins, LEADS): the forecasts made when `origins` hours of the grid were known."""
        if not all(0.0 < quantile < 1.0 for quantile in quantiles):
            raise ValueError("a quantile lies between 0 and 1")
        if self.weather and grid.weather is None:
            raise ValueError("this model was learned with weather: give it the weather of the hours ahead")
        whole = grid if self.weather else grid.without_weather()
        factors = np.stack([self._error(quantile) for quantile in quantiles])
        return np.stack([self._forecast(whole.until(hours), factors) for hours in origins.tolist()], axis=1)

    def _forecast(self, seen: Grid, factors: Floats) -> Floats:
        """Returns (quantiles, LEADS) from (quantiles, LEADS) `factors`, by `unrest` and `spread`."""
        ahead = np.arange(LEADS)
        back, leads = (np.zeros(0, np.int64),) * 2 if self.typical is None else _back(seen.carbon.size)
        origins = np.concatenate([np.full(LEADS, seen.carbon.size), back])
        middle = self._middle(seen, origins, np.concatenate([ahead, leads]))
        by = unrest(seen, origins)
        if self.typical is not None:
            off = (logs(seen.carbon)[back + leads] - middle[LEADS:]) / (by[LEADS:] * self.typical[leads // BLOCK])
            unlearned = seen.first_hour + back + leads >= self.until_hour  # the model knows the others by heart
            by = by * spread(off[unlearned])
        found: Floats = np.exp(middle[:LEADS] + by[0] * factors)
        return found

    def _middle(self, seen: Grid, origins: Whole, leads: Whole) -> Floats:
        rows, reference = features(seen, origins, leads)
        share = self.share[leads // BLOCK]
        found: Floats = reference + share * self.regress(rows) + (1.0 - share) * self.trees.predict(rows)
        return found

    def regress(self, rows: Floats) -> Floats:
        found = np.empty(len(rows))
        block = rows[:, 0].astype(np.int64) // BLOCK
        for one in np.unique(block).tolist():
            of_block = block == one
            standard = (terms(rows[of_block]) - self.centre[one]) / self.scale[one]
            found[of_block] = np.where(np.isnan(standard), 0.0, standard) @ self.weights[one] + self.offset[one]
        return found

    def _error(self, quantile: float) -> Floats:
        """Returns (LEADS,) what is added for a quantile, by `unrest` and `spread`; nothing for the median."""
        by_block = np.array([np.interp(quantile, LEVELS, row) for row in self.errors])
        return np.repeat(by_block, BLOCK)

    def to_bytes(self) -> bytes:
        """Returns all arrays as NumPy's `npz`, some 200 kB."""
        arrays = {f"trees.{field.name}": getattr(self.trees, field.name) for field in fields(Trees)}
        arrays |= {name: np.asarray(getattr(self, name)) for name in (*_PARTS, "weather", "hours", "until_hour")}
        if self.typical is not None:
            arrays |= {"form": np.asarray(FORM), "typical": self.typical}
        out = io.BytesIO()
        np.savez_compressed(out, allow_pickle=False, names=np.array(names(self.weather)), **arrays)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, packed: bytes) -> CarbonModel:
        """Reads what `to_bytes` wrote, also before it had a FORM: intervals then follow `unrest` alone, as they did.

        Raises:
            ValueError: It is anything else, of a later form, or of other features.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(packed)) as archive:
                if sum(info.file_size for info in archive.infolist()) > LARGEST_BYTES:
                    raise ValueError("no carbon model: it is larger than one can be")
            with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
                form = int(arrays["form"]) if "form" in arrays else 1
                if form not in (1, FORM):
                    raise ValueError(
                        f"this carbon model is of form {form}, and {FORM} is the newest known: learn it anew"
                    )
                trees = Trees(**{field.name: arrays[f"trees.{field.name}"] for field in fields(Trees)})
                found = cls(
                    trees=trees,
                    **{name: arrays[name] for name in _PARTS},
                    weather=bool(arrays["weather"]),
                    hours=int(arrays["hours"]),
                    until_hour=int(arrays["until_hour"]),
                    typical=None if form == 1 else arrays["typical"],
                )
                learned = tuple(arrays["names"].tolist())
        except (KeyError, OSError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"no carbon model: {error}") from None
        if learned != names(found.weather):
            raise ValueError("this carbon model was learned over other features: learn it anew")
        found.check()
        return found

    def check(self) -> None:
        """Raises ValueError unless all parts fit together."""
        width = terms(np.zeros((1, len(names(self.weather))))).shape[1]
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("centre", "scale", "weights"), (BLOCKS, width))
        shapes |= {"offset": (BLOCKS,), "share": (BLOCKS,), "errors": (BLOCKS, LEVELS.size)}
        shapes |= {} if self.typical is None else {"typical": (BLOCKS,)}
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
                raise ValueError(f"no carbon model: {name} is no array {shape} of finite numbers")
        if self.typical is not None and not (self.typical > 0.0).all():
            raise ValueError("no carbon model: typical errors are above 0")
        self.trees.check(len(names(self.weather)))


_PARTS = ("centre", "scale", "weights", "offset", "share", "errors")


def terms(rows: Floats) -> Floats:
    """Returns the regression's terms for (n, columns) features: these, some by the hour of the day, and its course.

    Returns:
        (n, terms).
    """
    turn = 2.0 * np.pi * rows[:, 1:2] / 24.0
    day = np.concatenate([np.sin(turn), np.cos(turn), np.sin(2.0 * turn), np.cos(2.0 * turn)], axis=1)
    weekend = (rows[:, 2:3] == 2.0) | (rows[:, 2:3] == 3.0)  # days since the epoch, a Thursday
    known = rows[:, 6:]
    return np.concatenate([rows, day, weekend, known * day[:, :1], known * day[:, 1:2]], axis=1)


def spread(off: Floats) -> float:
    """Returns what `unrest` is multiplied by, from (n,) recent errors in units of what is typical, NaN where unknown.

    1 where they are as was expected, or where none is known; more after errors that were larger, less after smaller
    ones. Training takes the quantiles of errors by it, so they already allow for what of it is chance.
    """
    size = np.minimum(np.abs(off[~np.isnan(off)]), LARGEST_ERROR)
    return math.pow((size.sum() + STEADY) / (size.size + STEADY), FOLLOWS)


def _back(end: int) -> tuple[Whole, Whole]:
    """Chooses forecasts of hours before `end`, made in the RECENT ones: (n,) origins, (n,) leads."""
    origins, leads = np.meshgrid(np.arange(max(1, end - RECENT), end, _BACK_HOURS), np.arange(LEADS), indexing="ij")
    chosen = (origins + leads < end) & ((origins + leads) % _BACK_LEADS == 0)
    return origins[chosen], leads[chosen]
