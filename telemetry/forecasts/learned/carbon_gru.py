"""Carbon intensity of several grids at once, by a recurrent network with graph convolutions over neighbouring grids.

FREESH (appendix D.4) forecasts with a gated recurrent unit (GRU) for the course of time and a graph convolutional
network (GCN) for what places have to do with each other. Here the convolution is a part of the GRU, as in
Seo and others, GConvGRU (2016): what a gate reads of a grid, it also reads of the grid's neighbours. Neighbours are the
grids whose past moved with a grid's, once days and their hours are taken off.

The GRU goes through 28 days, a day a step, and through the four days ahead, of which only calendar and weather are
known. A head then reads the state of the day and what `carbon_features` says of the hour, and says what is added to the
reference: the mean logarithm of the same hour of the last days. One that learned nothing adds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import NormalDist

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from core.predictors.carbon_features import LEADS, Floats, Grid, Whole, names

from .carbon_windows import AHEAD, HEAD_EXTRA, Aligned, Windows, step_columns

QUANTILES = (0.1, 0.5, 0.9)
HIDDEN, PLACE, WIDE = 32, 4, 64  # numbers of a grid's state, of what a grid is, and within the head
DROPPED = 0.15  # share of a state's numbers, and of the head's, that each row of a training goes without
LARGEST_BYTES = 16 << 20
KEY, KIND = "greenserve", "carbon gru 1"  # in the metadata; another layout is another kind
_NORMAL = NormalDist()


class GraphGru(nn.Module):
    """One step of a GRU over grids. Each gate reads a grid's own numbers and those of its neighbourhood."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.read = nn.Linear(2 * columns, 3 * HIDDEN)
        self.keep = nn.Linear(2 * HIDDEN, 3 * HIDDEN)

    def forward(self, days: Tensor, around: Tensor) -> Tensor:
        """Reads (n, days, grids, columns) and (grids, grids); returns (n, days, grids, HIDDEN) states."""
        read = self.read(torch.cat([days, around @ days], dim=-1))
        state = torch.zeros(*days.shape[:1], days.shape[2], HIDDEN)
        states = []
        for day in range(days.shape[1]):
            reset, update, new = read[:, day].chunk(3, dim=-1)
            kept_reset, kept_update, kept_new = self.keep(torch.cat([state, around @ state], dim=-1)).chunk(3, dim=-1)
            candidate = torch.tanh(new + torch.sigmoid(reset + kept_reset) * kept_new)
            gate = torch.sigmoid(update + kept_update)
            state = gate * state + (1.0 - gate) * candidate
            states.append(state)
        return torch.stack(states, dim=1)


class Network(nn.Module):
    """The network and all numbers that it needs beside its weights, by grid."""

    def __init__(self, grids: int, weather: bool) -> None:
        super().__init__()
        columns, steps = len(names(weather)), step_columns(weather)
        self.register_buffer("around", torch.eye(grids))  # normalised adjacency
        self.register_buffer("spread", torch.ones(grids))  # usual distance from the reference, in logarithms
        self.register_buffer("centre", torch.zeros(grids, columns))  # of the features, to standardise them
        self.register_buffer("scale", torch.ones(grids, columns))
        self.register_buffer("widths", torch.ones(grids, AHEAD, 2))  # what intervals are stretched by, down and up
        self.place = nn.Parameter(0.1 * torch.randn(grids, PLACE))
        self.gru = GraphGru(steps + PLACE)
        self.drop = nn.Dropout(DROPPED)
        self.head = nn.Sequential(
            nn.Linear(columns + HEAD_EXTRA + HIDDEN + PLACE, WIDE),
            nn.GELU(),
            nn.Dropout(DROPPED),
            nn.Linear(WIDE, WIDE),
            nn.GELU(),
            nn.Linear(WIDE, len(QUANTILES)),
        )
        nn.init.zeros_(self.head[-1].weight)
        nn.init.zeros_(self.head[-1].bias)

    def forward(self, days: Tensor, hours: Tensor, leads: Tensor) -> Tensor:
        """Returns (n, grids, leads, 3): quantiles of what is added to the reference, in units of `spread`.

        Reads (n, days, grids, columns), (n, grids, leads, columns) and (leads,) hours ahead.
        """
        place = self.place.expand(*days.shape[:2], *self.place.shape)
        states = self.gru(torch.cat([days, place], dim=-1), self.around)
        state = self.drop(states)[:, -AHEAD:][:, leads // (LEADS // AHEAD)].transpose(1, 2)
        own = self.place[None, :, None, :].expand(*hours.shape[:3], PLACE)
        low, middle, high = self.head(torch.cat([hours, state, own], dim=-1)).unbind(-1)
        grow = nn.functional.softplus
        return torch.stack([middle - grow(low), middle, middle + grow(high)], dim=-1)


@dataclass(frozen=True, slots=True)
class About:
    """Says what a network is of. `with_weather`: those of its grids that had some; hours count from the Unix epoch."""

    grids: tuple[str, ...]
    with_weather: tuple[str, ...]
    columns: tuple[str, ...]
    until_hour: int

    @property
    def weather(self) -> bool:
        return bool(self.with_weather)


@dataclass(frozen=True)
class CarbonGru:
    """A network that was learned from several grids (`carbon_gru_training`), which forecasts each of them."""

    network: Network
    about: About

    def forecasts(
        self, grids: Mapping[str, Grid], at_hours: Whole, quantiles: Sequence[float] = QUANTILES
    ) -> dict[str, Floats]:
        """Forecasts all grids at once, from what was known at the beginning of the hours `at_hours` (n,).

        Args:
            grids: All that the network was learned from; more are left out. Only the 28 days before an hour are read,
                and weather to the horizon.
            at_hours: Since the Unix epoch.

        Returns:
            By grid (quantiles, n, LEADS) in g/kWh; NaN where the last days have nothing of that hour.

        Raises:
            ValueError: A grid or its weather is missing, or a quantile is not within (0, 1).
        """
        if not all(0.0 < quantile < 1.0 for quantile in quantiles):
            raise ValueError("a quantile lies between 0 and 1")
        if missing := [name for name in self.about.grids if name not in grids]:
            raise ValueError(f"this network was learned with the grids {', '.join(missing)} too: give them")
        if dry := [name for name in self.about.with_weather if grids[name].weather is None]:
            raise ValueError(f"this network was learned with weather: give that of {', '.join(dry)}")
        own = {name: grids[name] for name in self.about.grids}
        aligned = Aligned.of(own, self.about.weather, int(at_hours.max()))
        windows = Windows.of(aligned, at_hours - aligned.first_hour)
        with torch.no_grad(), one_thread():
            said = self.network(
                *inputs(self.network, windows, np.arange(at_hours.size), np.arange(LEADS)), torch.arange(LEADS)
            )
        spread = self.network.spread.double().numpy()[None, :, None]
        low, middle, high = (spread * part for part in said.double().numpy().transpose(3, 0, 1, 2))
        down, up = np.repeat(self.network.widths.double().numpy(), LEADS // AHEAD, axis=1).transpose(2, 0, 1)
        found = np.empty((len(quantiles), *middle.shape))
        for row, quantile in enumerate(quantiles):
            deviates = _NORMAL.inv_cdf(quantile) / _NORMAL.inv_cdf(QUANTILES[2])
            half = up * (high - middle) if quantile > QUANTILES[1] else down * (middle - low)
            found[row] = np.exp(windows.reference + middle + deviates * half)
        return {name: found[:, :, number] for number, name in enumerate(self.about.grids)}

    def to_bytes(self) -> bytes:
        """Returns all numbers as safetensors, with what they are in its metadata; some 150 kB."""
        state = {name: value.contiguous() for name, value in self.network.state_dict().items()}
        packed: bytes = save(state, metadata={KEY: json.dumps({"kind": KIND, **asdict(self.about)})})
        return packed

    @classmethod
    def from_bytes(cls, packed: bytes) -> CarbonGru:
        """Reads what `to_bytes` wrote. Raises ValueError for anything else, and for a network of other features."""
        if len(packed) > LARGEST_BYTES:
            raise ValueError("no carbon network: it is larger than one can be")
        try:
            length = int.from_bytes(packed[:8], "little")
            said = json.loads(json.loads(packed[8 : 8 + length])["__metadata__"][KEY])
            if said["kind"] != KIND:
                raise ValueError(f"it is of the kind {said['kind']!r}, and {KIND!r} is read")
            grids, with_weather, columns = (tuple(map(str, said[key])) for key in _LISTS)
            about = About(grids, with_weather, columns, int(said["until_hour"]))
            network = Network(len(about.grids), about.weather)
            network.load_state_dict(load(packed))
        except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise ValueError(f"no carbon network: {error}") from None
        if about.columns != names(about.weather):
            raise ValueError("this carbon network was learned over other features: learn it anew")
        if not all(bool(torch.isfinite(value).all()) for value in network.state_dict().values()):
            raise ValueError("no carbon network: some of its numbers are not finite")
        network.eval()
        return cls(network, about)


_LISTS = ("grids", "with_weather", "columns")


def inputs(network: Network, windows: Windows, rows: Whole, leads: Whole) -> tuple[Tensor, Tensor]:
    """Returns (n, days, grids, columns) and (n, grids, leads, columns) that the network reads of some origins."""
    spread, centre, scale = (one.numpy() for one in (network.spread, network.centre, network.scale))
    days, hours = windows.days(rows, spread), windows.hours(rows, leads, spread, centre, scale)
    return torch.from_numpy(days), torch.from_numpy(hours)


@contextmanager
def one_thread() -> Iterator[None]:
    """More threads wait for each other, on matrices so small, and take others' cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
