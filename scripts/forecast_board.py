"""Writes docs/forecasts.md from docs/forecasts.json and docs/forecasts-load.json: each model on each grid and load,
published figures beside ours.

The JSON is what `greenserve forecast score --json` and `score-load --json` print. That takes minutes, so it is kept:

    greenserve forecast score --carbon carbon_hourly.csv.gz --weather weather_hourly.csv.gz \\
        --from 2021-07-01 --to 2021-12-31 --json > docs/forecasts.json
    greenserve forecast score-load --rates servegen_m-mid_rates.csv --json > docs/forecasts-load.json
    python -m scripts.forecast_board            # writes the page
    python -m scripts.forecast_board --check    # ends with 1 where the page is not what its figures give
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.predictors.load_scores import CHOSEN

DOCS = Path(__file__).resolve().parent.parent / "docs"
FIGURES, LOAD_FIGURES, PAGE = DOCS / "forecasts.json", DOCS / "forecasts-load.json", DOCS / "forecasts.md"
CARBONCAST: Mapping[str, Sequence[float]] = {
    "CISO": (9.7, 12.4, 13.2, 13.7),
    "PJM": (2.7, 3.4, 3.8, 4.0),
    "ERCO": (11.5, 12.6, 13.1, 13.2),
    "ISNE": (4.6, 7.1, 8.6, 9.6),
}
HEADER = (
    *("Model", "Day 1", "Day 2", "Day 3", "Day 4", "Pinball, g/kWh", "Covered", "Regret, g", "CPU, s", "Learning, s"),
)

HEAD = """# Forecasts: the board

This page shows how good GreenServe's forecasts are on public data, with published figures beside them. It is for people
who choose a model or judge one. A script writes it from [forecasts.json](forecasts.json) and
[forecasts-load.json](forecasts-load.json); do not edit it. Predictions of answers' lengths are scored in
[predictors.md](predictors.md).

## Carbon intensity

The grids' hours and the weather forecasts are EnsembleCI's (after CarbonCast): direct emissions, {since} to {until}.
Each day at 0:00 UTC a model forecasts 96 hours, from the 28 days before. Models that learn do so from all hours before
the first forecast, and again each {relearn} days. Their settings were chosen on 2019 to mid 2021 and are the same for
all grids.

| Column | Meaning |
|---|---|
| Day 1 to 4 | MAPE of that day ahead: the mean over its 24 hours, then over forecasts, as CarbonCast counts it |
| Pinball | mean pinball loss at the quantiles 0.1, 0.5 and 0.9 |
| Covered | share of the hours that lie between the quantiles 0.1 and 0.9; 80 % would be right |
| Regret | grams that a plan by the forecast emits more than one by the truth: 1 kW in each day's six cleanest hours |
| CPU, Learning | seconds of CPU for one forecast, and for all learning; on one core of a busy machine |

`*` marks the model that a back-test on the 60 days before {since} chooses, by pinball loss. CarbonCast's figures are
those of its paper (Maji, Shenoy and Sitaraman, BuildSys 2022), of the same half year.

```sh
{command}
```
"""

GRU_NOTE = """ `gru` is one network of all grids of the file, learned with PyTorch (`greenserve[learned]`); the
seconds that it took count for each grid."""

LOAD_HEADER = ("Model", "Median", "90 %", "Rises", "Falls", "MAPE", "Days chosen")

LOAD = """## Load

The rates of two weeks of a production model, in steps of {minutes:g} minutes, are ServeGen's (`m-mid`, Apache-2.0). On
the second week each model forecasts the next {ahead} steps, from each sixth step of a day on. Models that learn do so
each day from all before. `{chosen}` is of the models that back-tests on what was known chose, day by day.

| Column | Meaning |
|---|---|
| Median, 90 % | mean pinball loss of these quantiles, requests/s |
| Rises, Falls | the median's loss where what came was more, or not more, than the newest value |
| MAPE | of the median; large, since the rate falls to a few requests/s or none in five stretches of that week |

```sh
greenserve forecast score-load --rates servegen_m-mid_rates.csv --json > docs/forecasts-load.json
python -m scripts.forecast_board
```
"""

TAIL = """
## Where to go next

- [carbon.md](carbon.md): feeds, and which model forecasts.
- [predictors.md](predictors.md): predictors of answers' lengths.
- [results.md](results.md): the papers' experiments.
"""

COMMAND = """greenserve forecast score --carbon carbon_hourly.csv.gz --weather weather_hourly.csv.gz \\
    --from {since} --to {until}{names} --json > docs/forecasts.json
python -m scripts.forecast_board"""


def page(figures: Mapping[str, Any], load: Mapping[str, Any]) -> str:
    """Returns the page of what `greenserve forecast score --json` and `score-load --json` printed."""
    span = {"since": figures["from"], "until": figures["to"]}
    names = "".join(f" --grid {grid['grid']}" for grid in figures["grids"])
    head = HEAD.format(**span, relearn=figures["relearn_days"], command=COMMAND.format(**span, names=names))
    if any(one["model"] == "gru" for grid in figures["grids"] for one in grid["scores"]):
        head = head.replace("\n\n| Column", f"{GRU_NOTE}\n\n| Column", 1)
    parts = [head.replace("```sh", "<!-- not run: takes half an hour -->\n```sh")]
    return "\n".join([*parts, *("\n".join(_grid(grid)) for grid in figures["grids"]), *_load(load), TAIL])


def _load(figures: Mapping[str, Any]) -> Iterator[str]:
    head = LOAD.format(minutes=figures["step_s"] / 60.0, ahead=figures["steps_ahead"], chosen=CHOSEN)
    yield head.replace("```sh", "<!-- not run: takes minutes -->\n```sh")
    yield _row(LOAD_HEADER)
    yield _row(["---", *["---:"] * (len(LOAD_HEADER) - 1)])
    for one in figures["scores"]:
        losses = ("" if one[key] is None else f"{one[key]:.1f}" for key in ("median", "upper", "rises", "falls"))
        mape = "" if one["mape"] is None else f"{100.0 * one['mape']:.0f} %"
        yield _row([one["model"], *losses, mape, str(one["chosen_days"] or "")])


def _grid(grid: Mapping[str, Any]) -> Iterator[str]:
    scores = grid["scores"]
    first = scores[0]
    yield f"### {grid['grid']}"
    yield ""
    yield (
        f"{first['forecasts']} forecasts. The truth's plan emits {first['clean_g']:.0f} g in four days (24 kWh); "
        f"running evenly emits {first['chance_g']:.0f} g more."
    )
    yield ""
    yield _row(HEADER)
    yield _row(["---", *["---:"] * (len(HEADER) - 1)])
    if grid["grid"] in CARBONCAST:
        yield _row(["CarbonCast, published", *(f"{day:.1f} %" for day in CARBONCAST[grid["grid"]]), *[""] * 5])
    for one in scores:
        name = f"{one['model']} *" if one["model"] == grid["chosen"] else one["model"]
        days = ("" if day is None else f"{100.0 * day:.1f} %" for day in one["mape"])
        learning = f"{one['training_s']:.0f}" if one["training_s"] else ""
        figures = (
            f"{one['pinball']:.2f}",
            f"{one['coverage']:.0%}",
            f"{one['regret_g']:.0f}",
            f"{one['forecast_s']:.2f}",
        )
        yield _row([name, *days, *figures, learning])
    yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str]) -> int:
    made = page(*(json.loads(path.read_text(encoding="utf-8")) for path in (FIGURES, LOAD_FIGURES)))
    if "--check" not in arguments:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") != made:
        print(f"{PAGE.name} is not what its figures give: run python -m scripts.forecast_board", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
