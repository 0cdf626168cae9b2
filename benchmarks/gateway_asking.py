"""Compares a gateway that asks the predictor's process with one that does not: `python -m benchmarks.gateway_asking`.

Two of our gateways share a core and one mock process of engines, and are loaded by turns, never both at once; the
predictor's process shares the other core with engines and client. Medians of the turns and their ratios, asking to not
asking, are printed as JSON. Two loads: `saturated`, 50 connections that send one request after the other, where
requests a second and their p99 count; and `paced`, 20 streams of 5 tokens, one each 20 ms, where a gateway has time to
spare, and the p99 of a first token counts. No two prompts are alike, so that all are asked about.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import gateway, gateway_proxies
from benchmarks.gateway_proxies import Target
from greenserve import env
from greenserve.process import Spec

LOADS: dict[str, dict[str, Any]] = {
    "saturated": {"connections": 50},
    "paced": {"connections": 20, "tokens": 5, "pace_ms": 20},
}
FIGURES = {"saturated": ("per_s", "request_p99_ms", "cpu_us"), "paced": ("ttft_p50_ms", "ttft_p99_ms", "cpu_us")}
COUNTS = ("length_answers_total", "length_answers_late_total", "length_asks_left_out_total")


@contextlib.contextmanager
def predictor(folder: Path, core: int) -> Iterator[Path]:
    """The predictor's process; yields its socket."""
    socket = folder / "own" / "s"
    words = ("-m", "pools.lengths", "--socket", str(socket), "--state", str(folder / "state"))
    spec = Spec(
        name="lengths", argv=(sys.executable, *words), env=env.for_child(), cwd=env.ROOT, ready=lambda: socket.exists()
    )
    with gateway_proxies.running(spec, folder, core):
        yield socket


def measured(target: Target, args: argparse.Namespace, name: str) -> dict[str, float]:
    found = gateway.load(target, args, seconds=args.seconds, prompt_bytes=args.prompt_bytes, **LOADS[name])
    if found["faults"]:
        raise RuntimeError(f"{target.url}: {found['faults']}")
    share = 1e6 / max(1, found["requests"])
    figures = {**found, "per_s": found["requests"] / found["wall_s"], "cpu_us": found["cpu_s"] * share}
    return {figure: figures[figure] for figure in FIGURES[name]}


def counts(target: Target) -> dict[str, int]:
    """What came of the asks, by the gateway's own metrics."""
    with urllib.request.urlopen(f"{target.url}/metrics", timeout=5) as response:
        lines = response.read().decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: int(float(found[f"greenserve_gateway_{name}"])) for name in COUNTS}


def run(args: argparse.Namespace) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    args.client_core, own_core, args.head = cores[0], cores[-1], "openai"
    with tempfile.TemporaryDirectory(prefix="gateway-asking-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        _, urls = stack.enter_context(gateway_proxies.engines(8, folder, args.client_core))
        socket = stack.enter_context(predictor(folder, args.client_core))
        targets = {}
        for side, options in (("without", ()), ("asking", ("--lengths", str(socket)))):
            (folder / side).mkdir()
            started = gateway_proxies.greenserve(
                urls, folder / side, own_core, args.client_core, sys.executable, options=options
            )
            targets[side] = stack.enter_context(started)
            gateway.load(targets[side], args, connections=50, seconds=gateway.LESSONS_S)
        turns: dict[str, dict[str, list[dict[str, float]]]] = {load: {side: [] for side in targets} for load in LOADS}
        for turn in range(args.turns):
            for load in LOADS:
                for side in sorted(targets, reverse=bool(turn % 2)):
                    turns[load][side].append(measured(targets[side], args, load))
        return {**{load: _compared(sides) for load, sides in turns.items()}, "asks": counts(targets["asking"])}


def _compared(sides: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """The medians of both sides over the turns, and the ratio of asking to not asking."""
    found = {
        side: {figure: statistics.median(turn[figure] for turn in turns) for figure in turns[0]}
        for side, turns in sides.items()
    }
    ratio = {figure: found["asking"][figure] / value for figure, value in found["without"].items()}
    return {
        side: {name: round(value, 3) for name, value in row.items()} for side, row in (*found.items(), ("ratio", ratio))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a window")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompt-bytes", type=int, default=300)
    print(json.dumps(run(parser.parse_args()), indent=1))


if __name__ == "__main__":
    main()
