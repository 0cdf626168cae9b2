"""Computes by how much sending a micro-request's KV cache delays its second part (DynaServe, section 4.3).

The cache only grows, so a chunk can be sent as soon as it is computed, while later ones are. Only what is still on the
link when the first part has ended delays the second: the exposed time. With chunk k of n computed at c_k and taking x_k
on the link, one after another, the last arrives at max over k of (c_k + x_k + ... + x_n), and

    exposed = max_k (c_k + sum_{j >= k} x_j) - c_n          without chunking: the transfer of all tokens

which for equal chunks of c seconds to compute and x to send is x + (n - 1) max(0, x - c): the last chunk alone when the
link keeps up. 17 chunks then take away 1 - 1/17 = 94 %, which is what the paper measured in total (section 6.6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class Link:
    """The link between two instances.

    Each transfer takes `latency_s` and its bytes' time, and the next one waits for it.
    """

    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0.0 or self.latency_s < 0.0:
            raise ValueError("a link needs bytes_per_s above 0 and latency_s from 0")

    def transfer_s(self, size_bytes: float) -> float:
        return self.latency_s + size_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Exposure:
    """Seconds between the end of a micro-request's computation and the arrival of the last of its cache."""

    whole_s: float  # all sent at the end
    chunked_s: float
    chunks: int

    @property
    def removed(self) -> float:
        """Share of the exposed time that chunks take away; below 0 when latencies cost more than overlap saves."""
        return 1.0 - self.chunked_s / self.whole_s


def exposed_s(computed_s: ArrayLike, transfer_s: ArrayLike) -> float:
    """Returns the exposed time, in s, of chunks computed at `computed_s` (rising) that take `transfer_s` each on the
    link."""
    computed, transfers = np.asarray(computed_s, dtype=np.float64), np.asarray(transfer_s, dtype=np.float64)
    if computed.size == 0:
        return 0.0
    to_send = np.cumsum(transfers[::-1])[::-1]
    return float((computed + to_send).max() - computed[-1])


def exposure(
    tokens_done: ArrayLike, pass_end_s: ArrayLike, chunk_tokens: int, kv_bytes_per_token: float, link: Link
) -> Exposure:
    """Computes the exposed time of a micro-request with and without chunks.

    Args:
        tokens_done: Tokens in its cache after each of its passes, rising, be they of the prompt or generated.
        pass_end_s: When each of these passes ends.
        chunk_tokens: Tokens of a chunk; the last one may have fewer. A chunk is sent when its last token is computed.
        kv_bytes_per_token: KV cache of one token, over all layers.

    Raises:
        ValueError: There are no passes, tokens do not grow, or a chunk has no token.
    """
    done, ends = np.asarray(tokens_done, dtype=np.int64), np.asarray(pass_end_s, dtype=np.float64)
    if chunk_tokens < 1 or done.size == 0 or done[0] < 1 or (np.diff(done) < 0).any():
        raise ValueError("a micro-request has passes, its tokens grow, and a chunk has at least one")
    total = int(done[-1])
    last_tokens = np.append(np.arange(chunk_tokens, total, chunk_tokens), total)
    computed = ends[np.searchsorted(done, last_tokens)]
    sizes = np.diff(last_tokens, prepend=0) * kv_bytes_per_token
    transfers = link.latency_s + sizes / link.bytes_per_s
    chunked_s = exposed_s(computed, transfers)
    return Exposure(link.transfer_s(total * kv_bytes_per_token), chunked_s, int(last_tokens.size))
