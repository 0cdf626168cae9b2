"""Measures the exposed part of KV transfers by NIXL, with chunks and without (DynaServe 4.3).

    python -m benchmarks.kv_transfer

Two processes are in network namespaces of their own; the wire between them delays packets and loses some. They send and
take caches as engines do, over NIXL and the side channel with TLS, but blocks are computed by the clock: what is
measured is the transfer, and not how two engines share the processors of this machine. Needs root, and
`scripts/install vllm`. The exposed part is the time from the end of the first part to the arrival of its last block.
The formula of core/algorithms/split/kv_transfer.py is given the link's rate as the whole transfers show it.
"""

from __future__ import annotations

import statistics

import click
import numpy as np

from core.algorithms.split.kv_transfer import Link, exposure
from tests.netns.namespaces import lacking
from tests.vllm.two_ends import send, two_ends


@click.command(help=__doc__)
@click.option("--tokens", default=1088, show_default=True, help="Of the first part.")
@click.option("--token-s", default=0.004, show_default=True, help="Time to compute one.")
@click.option("--block", default=32, show_default=True, help="Tokens of a block.")
@click.option("--chunk", default=64, show_default=True, help="Tokens of a chunk.")
@click.option("--token-bytes", default=16384, show_default=True, help="KV cache of a token.")
@click.option("--delay-ms", default=4.0, show_default=True, help="Each way.")
@click.option("--loss", default=0.002, show_default=True, help="Share of packets lost.")
@click.option("--turns", default=5, show_default=True, help="Transfers of each kind.")
def main(
    tokens: int, token_s: float, block: int, chunk: int, token_bytes: int, delay_ms: float, loss: float, turns: int
) -> None:
    if lack := lacking():
        raise click.ClickException(f"this machine lacks {lack}")
    blocks = tokens // block
    done_s = [(number + 1) * block * token_s for number in range(blocks)]
    exposed_s: dict[int | None, list[float]] = {None: [], chunk // block: []}
    with two_ends(delay_ms, loss, blocks, block * token_bytes) as ends:
        for turn in range(turns + 1):
            for chunk_blocks, found in exposed_s.items():
                right, after_s = send(ends, f"{turn}/{chunk_blocks}", done_s, chunk_blocks)
                if right != blocks:
                    raise click.ClickException(f"{right} of {blocks} blocks came as they were sent")
                if turn:  # before that they have not met
                    found.append(after_s)
    whole_s, chunked_s = (statistics.median(found) for found in exposed_s.values())
    size_bytes = blocks * block * token_bytes
    done = np.arange(1, blocks + 1) * block
    latency_s = 3.0 * delay_ms / 1000.0  # a chunk there, the word that it is there back, and its name there
    link = Link(size_bytes / (whole_s - latency_s), latency_s)
    formula = exposure(done, np.array(done_s), chunk, token_bytes, link)
    click.echo(
        f"{size_bytes / 1e6:.1f} MB computed in {done_s[-1]:.2f} s, {delay_ms:g} ms each way, {loss:.1%} lost: exposed"
        f" {1000 * whole_s:.0f} ms in whole, {1000 * chunked_s:.0f} ms in {formula.chunks} chunks"
    )
    click.echo(
        f"chunks remove {1.0 - chunked_s / whole_s:.0%}; by the formula {formula.removed:.0%}, and "
        f"{1000 * formula.chunked_s:.0f} ms are left"
    )


if __name__ == "__main__":
    main()
