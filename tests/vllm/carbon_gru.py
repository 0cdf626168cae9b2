"""Learns, keeps and reads a network over neighbouring grids, with real PyTorch; prints what came of it as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from click.testing import CliRunner
from safetensors.numpy import save

from core.predictors import carbon_scores, carbon_training
from core.predictors.back_test import pinball
from core.predictors.carbon_features import DAY, LEADS, WEATHER, Floats, Grid
from core.predictors.seasonal import MODELS
from greenserve.cli import cli
from telemetry.forecasts.learned import carbon_gru_training
from telemetry.forecasts.learned.carbon_gru import KEY, KIND, CarbonGru
from telemetry.forecasts.learned.carbon_windows import Aligned, Windows

FIRST, DAYS, MORE, FEW = 20_000 * DAY, 300, 120, 70


def grids() -> dict[str, Grid]:
    """East has the level that west had a day before; south goes its own way, and has a gap."""
    rng = np.random.default_rng(5)
    hours = np.arange((DAYS + MORE) * DAY)
    course = 40.0 * np.sin(2.0 * np.pi * hours / DAY)
    west, south = (_level(rng, DAYS + MORE + 1) for _ in range(2))
    levels = {"west": west[DAY:], "east": west[:-DAY], "south": south[DAY:]}
    found = {
        name: Grid(FIRST, 300.0 + course + level + rng.normal(0.0, 4.0, hours.size)) for name, level in levels.items()
    }
    found["south"].carbon[200:260] = np.nan
    return found


def _level(rng: np.random.Generator, days: int) -> Floats:
    """Returns an hour's level of days that take half of it from the day before."""
    level = [0.0]
    for step in rng.normal(0.0, 50.0, days - 1):
        level.append(0.5 * level[-1] + step)
    return np.repeat(level, DAY)


def until(known: dict[str, Grid], hours: int) -> dict[str, Grid]:
    return {name: Grid(grid.first_hour, grid.carbon[:hours]) for name, grid in known.items()}


def refusal(ask: Callable[[], object]) -> str:
    try:
        ask()
    except ValueError as error:
        return str(error)
    return ""


def by_command(known: dict[str, Grid]) -> object:
    """Returns what the command prints of one grid of a file; beside the network only one model is asked."""
    carbon_scores.MODELS = {"day ago": MODELS["day ago"]}
    carbon_training.TREES = 4
    rows = ["region,utc,g_per_kwh"]
    for name, grid in known.items():
        for hour, value in enumerate(grid.carbon[: 80 * DAY].tolist()):
            at = datetime.fromtimestamp((FIRST + hour) * 3_600, UTC)
            rows.append(f"{name},{at:%Y-%m-%dT%H:%MZ},{'' if np.isnan(value) else value}")
    with TemporaryDirectory() as folder:
        carbon = Path(folder, "carbon.csv")
        carbon.write_text("\n".join(rows))
        since, until = (f"{datetime.fromtimestamp((FIRST + day * DAY) * 3_600, UTC):%Y-%m-%d}" for day in (72, 78))
        asked = [
            "forecast",
            "score",
            "--carbon",
            str(carbon),
            "--from",
            since,
            "--to",
            until,
            "--grid",
            "west",
            "--json",
        ]
        return json.loads(CliRunner().invoke(cli, asked).stdout)


def main() -> None:
    carbon_gru_training.MOST_ROWS, carbon_gru_training.MOST_EPOCHS = 1_200, 8
    known = grids()
    past = until(known, DAYS * DAY)
    begun_s = time.process_time()
    network = carbon_gru_training.learn(past)
    learned_s = time.process_time() - begun_s
    few = until(known, FEW * DAY)
    small, again = carbon_gru_training.learn(few), carbon_gru_training.learn(few)
    packed = network.to_bytes()
    read = CarbonGru.from_bytes(packed)
    now = FIRST + np.array([DAYS * DAY])
    said = network.forecasts(past, now)["east"]
    origins = FIRST + np.arange(DAYS * DAY, (DAYS + MORE) * DAY - LEADS, 7)
    ahead = network.forecasts(known, origins)
    ordered = {name: known[name] for name in network.about.grids}
    windows = Windows.of(Aligned.of(ordered, weather=False), origins - FIRST)
    loss, held, covered = {}, {}, {}
    for number, name in enumerate(network.about.grids):
        truth = np.stack([known[name].carbon[at - FIRST : at - FIRST + LEADS] for at in origins])
        low, middle, high = ahead[name]
        same_hour = np.exp(windows.reference[:, number])
        loss[name], held[name] = (
            [pinball(truth[:, part], one[:, part], 0.5) for part in (slice(DAY), slice(DAY, LEADS))]
            for one in (middle, same_hour)
        )
        covered[name] = float(((truth >= low) & (truth <= high)).mean())
    other = {name: Grid(FIRST, grid.carbon.copy()) for name, grid in past.items()}
    other["west"].carbon[-DAY:] += 60.0
    later = {name: Grid(FIRST, grid.carbon.copy()) for name, grid in known.items()}
    for grid in later.values():
        grid.carbon[DAYS * DAY :] = 1.0
    sky = Grid(FIRST, few["west"].carbon, np.full((FEW * DAY + LEADS, len(WEATHER)), 280.0))
    with_sky = carbon_gru_training.learn({**few, "west": sky})
    around = network.network.around.numpy()
    where = network.about.grids.index
    refused = {
        "cut off": refusal(lambda: CarbonGru.from_bytes(packed[:200])),
        "no file": refusal(lambda: CarbonGru.from_bytes(b"\x80\x04pickle")),
        "other": refusal(
            lambda: CarbonGru.from_bytes(save({"a": np.ones(2)}, metadata={KEY: json.dumps({"kind": "else"})}))
        ),
        "other numbers": refusal(lambda: CarbonGru.from_bytes(packed.replace(b"south", b'sou\\"h'))),
        "bare": refusal(
            lambda: CarbonGru.from_bytes(save({"a": np.ones(2)}, metadata={KEY: json.dumps({"kind": KIND})}))
        ),
        "alone": refusal(lambda: carbon_gru_training.learn({"west": past["west"]})),
        "short": refusal(lambda: carbon_gru_training.learn(until(known, 59 * DAY))),
        "missing": refusal(lambda: network.forecasts({"east": past["east"]}, now)),
        "dry": refusal(lambda: with_sky.forecasts(few, now)),
        "quantile": refusal(lambda: network.forecasts(past, now, (1.0,))),
    }
    print(
        json.dumps(
            {
                "learned_s": learned_s,
                "quantiles": said[:, 0, ::12].tolist(),
                "wider": network.forecasts(past, now, (0.02, 0.5))["east"][:, 0, ::12].tolist(),
                "loss": loss,
                "held": held,
                "covered": covered,
                "same": again.to_bytes() == small.to_bytes() != packed,
                "read": np.array_equal(read.forecasts(past, now)["east"], said) and read.about == network.about,
                "blind": np.array_equal(network.forecasts(later, now)["east"], said),
                "moved": float(np.abs(network.forecasts(other, now)["east"][1, 0, :DAY] - said[1, 0, :DAY]).mean()),
                "neighbours": [float(around[where("east"), where(name)]) for name in ("west", "south")],
                "with_weather": with_sky.about.with_weather,
                "refused": refused,
                "command": by_command(known),
            }
        )
    )


if __name__ == "__main__":
    main()
