"""Load ahead by an LSTM (FREESH forecasts its traffic by one, section 5.1), learned from one series of load.

The network reads the last steps of the series, the time of day and week, and how the series went on from the same
moment a day and a week ago, and says by how much each coming step differs from the newest value, at several quantiles.

Traffic is often no more predictable than its newest value, and a network learns jumps that do not come again. So what
is forecast is the mean of the network and of an anchor: that statistical model which did best on the newest part of the
series, which the network did not learn from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from core.predictors.back_test import back_test, pinball, truths
from core.predictors.seasonal import DAYS_A_WEEK, WEEKEND, Floats, History, Model

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
WINDOW = 36  # steps that are read
HIDDEN = 32
BATCH = 256
MOST_EPOCHS, PATIENCE = 60, 6
HELD_BACK = 0.15  # share of each series, the newest, that says when to stop
LEAST_STEPS = 4 * WINDOW
MOST_WINDOWS = 8_064  # four weeks of steps of five minutes
ANCHOR_ORIGINS = 24
ANCHORED_AT = (0.5, 0.9)  # quantiles that anchors are chosen at; others take the nearer one's
WEIGHTS = (0.0, 0.25, 0.5, 0.75)  # of the network, of which one is chosen
LEARNING_RATE = 3e-3
_COLUMNS = 6  # of a step that is read: value, change, sine and cosine of the time of day, weekend, known

Arrays = NDArray[np.float32]


class _Network(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.reader = nn.LSTM(_COLUMNS, HIDDEN, batch_first=True)
        self.head = nn.Sequential(
            nn.Linear(HIDDEN + 5 * steps, 2 * HIDDEN), nn.GELU(), nn.Linear(2 * HIDDEN, steps * len(QUANTILES))
        )
        self.steps = steps

    def forward(self, window: Tensor, ahead: Tensor) -> Tensor:
        """Reads (n, WINDOW, columns) and (n, 5 steps); returns (n, steps, quantiles) that ascend."""
        _, (last, _) = self.reader(window)
        said = self.head(torch.cat([last[-1], ahead], dim=1)).view(-1, self.steps, len(QUANTILES))
        middle = QUANTILES.index(0.5)
        gaps = nn.functional.softplus(said) * 0.1
        below = torch.flip(torch.cumsum(torch.flip(gaps[..., :middle], [-1]), -1), [-1])
        above = torch.cumsum(gaps[..., middle + 1 :], -1)
        median = said[..., middle : middle + 1]
        return torch.cat([median - below, median, median + above], dim=-1)


@dataclass(frozen=True, slots=True)
class Anchor:
    """The statistical model that a network is held to, and how much the network counts beside it, from 0 to 1."""

    model: str
    weight: float


@dataclass(frozen=True)
class LoadLstm:
    """A network that was learned from a series, how many steps it looks ahead, and its anchor at each of
    `ANCHORED_AT`."""

    network: _Network
    steps: int
    anchors: Mapping[float, Anchor]
    models: Mapping[str, Model]

    def forecast(self, history: History, steps: int, quantile: float) -> Floats:
        """Returns (steps,) of the same series at a quantile; NaN beyond what was learned, and where too little of the
        newest steps is known."""
        said = self.of_network(history, steps, quantile)
        anchor = self.anchors[min(ANCHORED_AT, key=lambda at: abs(at - quantile))]
        held = self.models[anchor.model](history, steps, quantile)
        mean: Floats = np.maximum(anchor.weight * said + (1.0 - anchor.weight) * held, history.floor)
        return mean

    def of_network(self, history: History, steps: int, quantile: float) -> Floats:
        """Returns what the network alone says."""
        found = np.full(steps, np.nan)
        windows, at = _Windows(history, self.steps), history.values.size
        if not windows.usable(at):
            return found
        window, ahead = windows.read(np.array([at]))
        with torch.no_grad():
            said = self.network(torch.from_numpy(window), torch.from_numpy(ahead))[0].double().numpy()
        for step in range(min(steps, self.steps)):
            found[step] = windows.filled[at - 1] + windows.scale * np.interp(quantile, QUANTILES, said[step])
        floored: Floats = np.maximum(found, history.floor)
        return floored

    def about(self) -> dict[str, Any]:
        """Returns what `restored` needs beside the state."""
        return {"steps": self.steps, "anchors": [[at, own.model, own.weight] for at, own in self.anchors.items()]}

    def state(self) -> bytes:
        """Returns the network's numbers as safetensors."""
        return save({name: value.contiguous() for name, value in self.network.state_dict().items()})


def restored(about: Mapping[str, Any], state: bytes, models: Mapping[str, Model]) -> LoadLstm:
    """Returns what `about` and `state` came from. Raises ValueError when they are no such thing."""
    try:
        steps = int(about["steps"])
        anchors = {float(at): Anchor(str(model), float(weight)) for at, model, weight in about["anchors"]}
        network = _Network(steps)
        network.load_state_dict(load(state))
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"this is no network for load: {error}") from error
    if set(anchors) != set(ANCHORED_AT) or any(own.model not in models for own in anchors.values()):
        raise ValueError(f"this network is held to {about['anchors']}, which is not to be had")
    network.eval()
    return LoadLstm(network, steps, anchors, models)


class _Windows:
    """A series cut into what the network reads before an origin, and what it is to say after it."""

    def __init__(self, history: History, steps: int) -> None:
        self.steps = steps
        self.history = history
        values = history.values
        known = ~np.isnan(values)
        order = np.where(known, np.arange(values.size), -1)
        last = np.maximum.accumulate(order) if values.size else order
        self.filled = np.where(last >= 0, values[np.maximum(last, 0)], np.nan)
        self.known = known
        positive = np.abs(values[known])
        self.scale = float(positive.mean()) if positive.size and positive.mean() > 0.0 else 1.0

    def usable(self, at: int) -> bool:
        return at >= WINDOW and bool(self.known[at - WINDOW : at].mean() >= 0.5) and bool(self.known[at - 1])

    def origins(self, first: int, last: int) -> NDArray[np.int64]:
        """Lists origins from first up to, but not with, last whose window and every step ahead are known."""
        found = [
            at
            for at in range(max(first, WINDOW), last - self.steps + 1)
            if self.usable(at) and self.known[at : at + self.steps].all()
        ]
        return np.array(found, np.int64)

    def read(self, origins: NDArray[np.int64]) -> tuple[Arrays, Arrays]:
        """Returns (n, WINDOW, columns) before the origins and (n, 5 steps) of what is known of the steps after them."""
        at = origins[:, None] - WINDOW + np.arange(WINDOW)
        base = self.filled[origins - 1][:, None]
        window = np.stack(
            [
                np.nan_to_num(self.filled[at] / self.scale),
                np.nan_to_num((self.filled[at] - base) / self.scale),
                *self._clock(at),
                self.known[at].astype(float),
            ],
            axis=-1,
        )
        coming = origins[:, None] + np.arange(self.steps)
        ahead = [
            self._went_on(coming, origins, self.history.day),
            self._went_on(coming, origins, self.history.week),
            *self._clock(coming),
        ]
        return window.astype(np.float32), np.concatenate(ahead, axis=1).astype(np.float32)

    def targets(self, origins: NDArray[np.int64]) -> Arrays:
        coming = origins[:, None] + np.arange(self.steps)
        found: Arrays = ((self.history.values[coming] - self.filled[origins - 1][:, None]) / self.scale).astype(
            np.float32
        )
        return found

    def _clock(self, at: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
        step = self.history.first_step + at
        angle = 2.0 * math.pi * (step % self.history.day) / self.history.day
        weekend = np.isin(step // self.history.day % DAYS_A_WEEK, WEEKEND).astype(float)
        return np.sin(angle), np.cos(angle), weekend

    def _went_on(self, coming: NDArray[np.int64], origins: NDArray[np.int64], season: int) -> Floats:
        """Returns by how much the series had changed since the same moment a season ago; 0 where that is not known."""
        then = coming - season
        base = np.maximum(origins - 1 - season, 0)
        change = self.filled[np.maximum(then, 0)] - self.filled[base][:, None]
        known = (then >= 0) & (origins - 1 - season >= 0)[:, None]
        return np.nan_to_num(np.where(known, change / self.scale, 0.0))


def learn(history: History, steps: int, anchors: Mapping[str, Model], seed: int = 0) -> LoadLstm:
    """Learns from a series up to its end, stopping early by its newest part. Deterministic on one machine.

    Args:
        steps: How far to look ahead.
        anchors: Statistical models, of which the best on the newest part is a part of the forecast.

    Raises:
        ValueError: The series is too short, or has too many gaps, to learn from.
    """
    size = history.values.size
    cut = size - max(2 * steps, round(HELD_BACK * size))
    windows = _Windows(history, steps)
    older, newer = windows.origins(0, cut), windows.origins(cut, size)
    if older.size < LEAST_STEPS or newer.size == 0:
        raise ValueError(
            f"{older.size} moments of the series have {WINDOW} steps before and {steps} after them: {LEAST_STEPS} are "
            "needed to learn from, and some later ones to judge by"
        )
    train, held = ((*windows.read(own), windows.targets(own)) for own in (_spread(older, MOST_WINDOWS), newer))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = _fitted([torch.from_numpy(own) for own in train], [torch.from_numpy(own) for own in held], steps)
    finally:
        torch.set_num_threads(threads)
    bare = LoadLstm(network, steps, {}, anchors)
    return replace(bare, anchors={at: _anchor(history, newer, bare, at) for at in ANCHORED_AT})


def _anchor(history: History, newer: NDArray[np.int64], bare: LoadLstm, quantile: float) -> Anchor:
    """Chooses by the loss on the newest part. Raises ValueError when no model can forecast it."""
    origins = _spread(newer, ANCHOR_ORIGINS).tolist()
    scores = back_test(history, bare.models, origins, bare.steps, quantile)
    if not scores:
        raise ValueError(f"none of {', '.join(bare.models)} can forecast the newest part of the series")
    model = scores[0].model
    known = [history.until(at) for at in origins]
    truth = truths(history, origins, bare.steps)
    held = np.stack([bare.models[model](part, bare.steps, quantile) for part in known])
    said = np.stack([bare.of_network(part, bare.steps, quantile) for part in known])
    losses = [pinball(truth, weight * said + (1.0 - weight) * held, quantile) for weight in WEIGHTS]
    return Anchor(model, WEIGHTS[int(np.argmin(losses))])


def _fitted(train: Sequence[Tensor], held: Sequence[Tensor], steps: int) -> _Network:
    network = _Network(steps)
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=1e-3)
    best, kept, since = math.inf, network.state_dict(), 0
    count = train[0].shape[0]
    for _ in range(MOST_EPOCHS):
        network.train()
        for rows in torch.randperm(count).split(BATCH):
            optimizer.zero_grad()
            loss = _pinball(network(train[0][rows], train[1][rows]), train[2][rows])
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
        network.eval()
        with torch.no_grad():
            loss_held = float(_pinball(network(held[0], held[1]), held[2]))
        if loss_held < best - 1e-5:
            best, since = loss_held, 0
            kept = {name: value.clone() for name, value in network.state_dict().items()}
        else:
            since += 1
            if since > PATIENCE:
                break
    network.load_state_dict(kept)
    network.eval()
    return network


def _pinball(said: Tensor, truth: Tensor) -> Tensor:
    error = truth[..., None] - said
    shares = torch.tensor(QUANTILES)
    return torch.maximum(shares * error, (shares - 1.0) * error).mean()


def _spread(origins: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    if origins.size <= most:
        return origins
    return origins[np.linspace(0, origins.size - 1, most).astype(np.int64)]
