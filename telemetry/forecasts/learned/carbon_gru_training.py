"""Learns the network of `carbon_gru` from all grids' past: some two minutes on one core for two and a half
years of eight grids.

The newest fifth of the past is held out first: a network of the rest says when to stop, and how far its intervals are
to be stretched, by grid and day ahead, so that they cover what they should (split conformal prediction, Lei and others
2018; by quantiles, Romano and others 2019). Then one is learned from everything, for as many rounds. All numbers below
were chosen on 2019 to mid 2021 and are the same for all grids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from core.predictors.carbon_features import DAY, LEADS, MEMORY, Floats, Grid, Whole, logs, names, off_days
from core.predictors.carbon_training import LEAST_DAYS, MOST_DAYS, TooShort

from .carbon_gru import QUANTILES, About, CarbonGru, Network, inputs, one_thread
from .carbon_windows import AHEAD, Aligned, Windows

NEIGHBOURS = 3  # that a grid chooses; it may be chosen by more
LEAST_CORRELATION = 0.1
LEAST_COMMON_HOURS = 30 * DAY  # that two grids need to be neighbours
MOST_ROWS = 9_600  # origins times grids: bounds time and memory
# Hours between origins: neither even nor in threes, so that all hours of a day come up.
STRIDES = (5, 7, 11, 13, 17, 19, 23, 29, 37, 47, 59, 71, 95)
HELD_OUT = 0.2
BATCH, LEADS_EACH = 32, 24
MOST_EPOCHS, PATIENCE = 12, 3
RATE, DECAY = 3e-3, 1e-2
WIDEST, NARROWEST = 4.0, 0.8  # what intervals are stretched by at most, and at least


@dataclass(frozen=True, slots=True)
class _Past:
    """The past of some grids: origins to learn from and, after them, to judge by, with all that is read of them."""

    aligned: Aligned
    windows: Windows
    learned: Whole  # rows of the windows
    held: Whole
    border: int  # the hour before which `learned` ends


def learn(grids: Mapping[str, Grid], seed: int = 0) -> CarbonGru:
    """Learns a network of all grids that have enough of a past, with weather where some have it. Deterministic.

    Raises:
        TooShort: There are less than two grids with LEAST_DAYS of known hours, or these have too few in common.
    """
    known = {name: grid for name, grid in sorted(grids.items()) if _known_days(grid) >= LEAST_DAYS}
    if len(known) < 2:
        raise TooShort(
            f"a network over neighbouring grids needs two with {LEAST_DAYS} known days at the least, "
            f"and {len(known)} of {len(grids)} have them"
        )
    with_weather = tuple(name for name, grid in known.items() if grid.weather is not None)
    past = _past(Aligned.of(known, bool(with_weather)))
    until = past.aligned.first_hour + past.aligned.size
    about = About(tuple(known), with_weather, names(bool(with_weather)), until)
    with torch.random.fork_rng(devices=[]), one_thread():
        trial, epochs = _fitted(past, past.learned, past.held, MOST_EPOCHS, seed)
        whole, _ = _fitted(past, np.concatenate([past.learned, past.held]), None, epochs, seed)
        whole.widths.copy_(torch.from_numpy(_widths(trial, past)))
    return CarbonGru(whole, about)


def _known_days(grid: Grid) -> float:
    return float((~np.isnan(grid.carbon[-MOST_DAYS * DAY :])).sum() / DAY)


def _past(aligned: Aligned) -> _Past:
    size = aligned.size
    first = max(0, size - MOST_DAYS * DAY) + MEMORY
    border = size - round(HELD_OUT * (size - first))
    span = size - LEADS - first
    stride = next((one for one in STRIDES if span * len(aligned.grids) <= one * MOST_ROWS), STRIDES[-1])
    origins: Whole = np.arange(first, size - LEADS + 1, stride)
    learned, held = origins <= border - LEADS, origins >= border
    if not learned.any() or not held.any():
        raise TooShort(f"{size / DAY:.0f} days in common are too few to learn from and to judge by")
    return _Past(aligned, Windows.of(aligned, origins), np.flatnonzero(learned), np.flatnonzero(held), border)


def neighbours(aligned: Aligned, until: int) -> Floats:
    """Returns (grids, grids): how much each grid is a grid's neighbour, by hours before `until`; 0 on the diagonal.

    A grid's neighbours are those NEIGHBOURS whose logarithms, each less the mean of the same hour of the days before,
    had the largest correlation with its own, of LEAST_CORRELATION or more, and those that chose it. Correlations are
    the weights A, and what is returned is D^-1/2 A D^-1/2: beside the grid itself, the terms of a Chebyshev filter of
    order 2 (GConvGRU). A grid without neighbours has a row of 0.
    """
    off = np.stack([off_days(logs(grid.carbon[:until])) for grid in aligned.grids])
    count = len(off)
    weights = np.zeros((count, count))
    for one in range(count):
        for other in range(one):
            both = ~np.isnan(off[one]) & ~np.isnan(off[other])
            if both.sum() >= LEAST_COMMON_HOURS and off[one][both].std() > 0.0 < off[other][both].std():
                found = float(np.corrcoef(off[one][both], off[other][both])[0, 1])
                weights[one, other] = weights[other, one] = found if found >= LEAST_CORRELATION else 0.0
    order = np.argsort(-weights, axis=1, kind="stable")[:, :NEIGHBOURS]
    chosen = np.zeros(weights.shape, bool)
    np.put_along_axis(chosen, order, True, axis=1)
    kept = np.where(chosen | chosen.T, weights, 0.0)
    root = 1.0 / np.sqrt(np.maximum(kept.sum(axis=1), LEAST_CORRELATION))
    balanced: Floats = kept * root[:, None] * root[None, :]
    return balanced


def _fitted(past: _Past, rows: Whole, held: Whole | None, epochs: int, seed: int) -> tuple[Network, int]:
    """Learns from the rows, for `epochs` rounds or, where some are held out, until these get no better.

    Returns the network, and how many rounds were best.
    """
    torch.manual_seed(seed)
    windows, count = past.windows, len(past.aligned.grids)
    network = Network(count, windows.sky is not None)
    _measure(network, past.windows, rows)
    until = past.aligned.size if held is None else past.border
    network.around.copy_(torch.from_numpy(neighbours(past.aligned, until)))
    optimizer = torch.optim.AdamW(network.parameters(), RATE, weight_decay=DECAY)
    rounds = math.ceil(rows.size / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=MOST_EPOCHS * rounds + 1)
    best, kept, best_epoch = math.inf, network.state_dict(), 0
    if held is not None:
        best, kept = _loss_of(network, windows, held), _copied(network)
    for epoch in range(1, epochs + 1):
        network.train()
        for part in torch.randperm(rows.size).split(BATCH):
            leads = np.sort(torch.randperm(LEADS)[:LEADS_EACH].numpy())
            optimizer.zero_grad()
            _loss(network, windows, rows[part.numpy()], leads).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        network.eval()
        if held is None:
            continue
        loss = _loss_of(network, windows, held)
        if loss < best:
            best, kept, best_epoch = loss, _copied(network), epoch
        elif epoch - best_epoch >= PATIENCE:
            break
    network.eval()
    if held is not None:
        network.load_state_dict(kept)
    return network, best_epoch


def _copied(network: Network) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def _measure(network: Network, windows: Windows, rows: Whole) -> None:
    """Sets what the network knows of each grid beside its weights, from the rows that it learns from."""
    extra, described = windows.extra[rows], windows.rows[rows]
    for number in range(extra.shape[1]):
        off = np.abs(extra[:, number][~np.isnan(extra[:, number])])
        network.spread[number] = max(float(off.mean()) if off.size else 1.0, 1e-3)
        own = described[:, number].reshape(-1, described.shape[-1]).astype(np.float64)
        known = ~np.isnan(own)
        count = np.maximum(1, known.sum(axis=0))
        centre = np.where(known, own, 0.0).sum(axis=0) / count
        scale = np.sqrt((np.where(known, own - centre, 0.0) ** 2).sum(axis=0) / count)
        scale[scale < 1e-9] = 1.0
        network.centre[number], network.scale[number] = torch.from_numpy(centre), torch.from_numpy(scale)


def _loss(network: Network, windows: Windows, rows: Whole, leads: Whole) -> Tensor:
    """Returns the mean pinball loss over the quantiles and all hours that are known, in units of each grid's spread."""
    said = network(*inputs(network, windows, rows, leads), torch.from_numpy(leads))
    extra = windows.extra[np.ix_(rows, np.arange(windows.extra.shape[1]), leads)]
    truth = torch.from_numpy(extra).float() / network.spread[None, :, None]
    known = ~torch.isnan(truth)
    error = (truth[..., None] - said)[known]
    shares = torch.tensor(QUANTILES)
    return torch.maximum(shares * error, (shares - 1.0) * error).mean()


def _loss_of(network: Network, windows: Windows, rows: Whole) -> float:
    with torch.no_grad():
        return float(_loss(network, windows, rows, np.arange(0, LEADS, 3)))


def _widths(network: Network, past: _Past) -> Floats:
    """Returns (grids, AHEAD, 2): what the distances from the median down and up are stretched by, so that as many of
    the held-out hours lie beyond each as should."""
    rows, leads = past.held, np.arange(LEADS)
    with torch.no_grad():
        said = network(*inputs(network, past.windows, rows, leads), torch.from_numpy(leads)).double().numpy()
    low, middle, high = np.moveaxis(said, -1, 0)
    off = past.windows.extra[rows] / network.spread.double().numpy()[None, :, None] - middle
    ratios = np.stack([-off / (middle - low), off / (high - middle)])  # (2, rows, grids, LEADS)
    by_day = ratios.reshape(2, rows.size, off.shape[1], AHEAD, DAY)
    widths = np.ones((off.shape[1], AHEAD, 2))
    for side, grid, day in np.ndindex(2, off.shape[1], AHEAD):
        known = by_day[side, :, grid, day]
        known = known[~np.isnan(known)]
        if known.size:
            widths[grid, day, side] = np.quantile(known, QUANTILES[2])
    return np.clip(widths, NARROWEST, WIDEST)
