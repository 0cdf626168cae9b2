"""Generated requests: bursty arrivals at a rate that changes over time, lengths from distributions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from core.simulator.kernel.arrivals import BLOCK_REQUESTS, Stream
from core.simulator.workload.columns import Floats, block_of
from core.simulator.workload.curves import RateCurve
from core.simulator.workload.lengths import AZURE_CONV, PROMPT_QUANTILES, Lengths
from core.simulator.workload.trace import TraceRequest, rows

_FEW_REQUESTS = 1024  # drawn at once for those who take them one by one


class Quantity(IntEnum):
    """The drawn quantities. Each has a random stream of its own, so that changing one does not change the others."""

    GAPS = 0
    LENGTHS = 1
    TENANTS = 2
    COPIES = 3
    JITTER = 4
    PREDICTIONS = 5


def random_stream(seed: int, stream: int, quantity: Quantity) -> np.random.Generator:
    """Makes PCG64 from SeedSequence([seed, stream, quantity]), `stream` being the number of the service.

    Every user draws the same number of values for each request, in order of the requests. So a request's draws depend
    on its position only, neither on the size of blocks nor on where the stream is cut.
    """
    return np.random.default_rng(np.random.SeedSequence([seed, stream, int(quantity)]))


@dataclass(frozen=True, slots=True)
class Generator:
    """Endless requests.

    Gaps between arrivals are gamma distributed with a coefficient of variation `cv`: 1 is a Poisson process, above it
    comes in bursts, 0 is evenly spaced. With a curve, `rate_rps` is its mean over a period, time runs faster where the
    rate is higher, and the stream starts at `start_s` on the curve.
    """

    rate_rps: float
    lengths: Lengths
    cv: float = 1.0
    curve: RateCurve | None = None
    start_s: float = 0.0


def generate(generator: Generator, seed: int, stream: int = 0, block_requests: int = BLOCK_REQUESTS) -> Stream:
    """Generates the same requests for the same seed and stream, whatever the size of the blocks."""
    lengths = random_stream(seed, stream, Quantity.LENGTHS)
    for arrival_s in _arrivals(generator, random_stream(seed, stream, Quantity.GAPS), block_requests):
        yield block_of(arrival_s, *generator.lengths.draw(lengths, block_requests))


def _arrivals(generator: Generator, rng: np.random.Generator, count: int) -> Iterator[Floats]:
    worked = np.zeros(count + 1)  # in mean gaps; the first is where the block before ended
    last_s = 0.0
    while True:
        worked[0] = worked[-1]
        worked[1:] = _gaps(generator.cv, rng, count)
        np.cumsum(worked, out=worked)
        arrival_s = worked[1:] / generator.rate_rps
        if generator.curve is not None:
            arrival_s = generator.curve.times_s(generator.start_s, arrival_s)
            arrival_s[0] = max(last_s, arrival_s[0])
            np.maximum.accumulate(arrival_s, out=arrival_s)  # interpolation can be a last bit out of order
            last_s = float(arrival_s[-1])
        yield arrival_s


def _gaps(cv: float, rng: np.random.Generator, count: int) -> Floats:
    """Draws gaps of mean 1, (count,)."""
    if cv == 0.0:
        return np.ones(count)
    if cv == 1.0:
        return rng.standard_exponential(count)
    shape = cv**-2
    return rng.standard_gamma(shape, count) / shape


def azure_conv_like(seed: int, rate_rps: float, max_prompt: int = PROMPT_QUANTILES[-1]) -> Iterator[TraceRequest]:
    """Generates endless traffic like the Azure conversation trace: Poisson arrivals, lengths from its published
    quantiles.

    Prompt and output are drawn independently (the trace's correlation of the two is not modelled). The same seed gives
    the same requests.

    Args:
        rate_rps: Mean arrivals a second.
        max_prompt: Longer prompts are cut to this many tokens.

    Raises:
        ValueError: The rate is not above 0, or `max_prompt` is below 1.
    """
    if rate_rps <= 0.0:
        raise ValueError(f"the rate must be above 0, not {rate_rps}")
    if max_prompt < 1:
        raise ValueError(f"max_prompt must be at least 1, not {max_prompt}")
    found = rows(generate(Generator(rate_rps, AZURE_CONV), seed, block_requests=_FEW_REQUESTS))
    return (TraceRequest(r.at_s, min(r.prompt_tokens, max_prompt), r.output_tokens) for r in found)
