"""Compares our gateway with nginx and vllm-router: `python -m benchmarks.gateway [--vllm-router PATH]`.

One run, the same engines (gateway_mock.py) and load (gateway_load.py) for all; the proxies share a core that is theirs,
one is loaded at a time, by turns (A B C A B C), and medians are given. CPU seconds of a proxy's process tree are what
counts: they depend little on who else uses the machine, but on a busy one chunks pile up and are relayed together
(`per_read` above 1), which flatters every proxy, and caches go cold, which harms the larger ones: see --nice, and the
least of the turns beside the median. nginx is left out where it is not on the PATH.

    --only requests chunks    some scenarios      --proxies greenserve    some proxies
    --soak 300                1,000 streams at 100 ms a token for so long, on ours alone
    --python /usr/bin/python3 ours on another build of Python: one with profile-guided optimisation takes less
    --profile FILE            ours under cProfile, for pstats (its figures are then its own, not to be compared)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import gateway_proxies as proxies
from benchmarks.gateway_load import Order, tree_usage
from benchmarks.gateway_proxies import KEY, MODEL, RENAMED, Target
from greenserve import env

LOAD = Path(__file__).with_name("gateway_load.py")
LONG_PROMPT_BYTES = 4600
FLOOD_S = 6.0
ABORTS = 15
LESSONS_S, LEARNING_S = 3.0, 90.0
STREAM_LIMIT = 1_000_000  # tokens of a stream that only the client ends

Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """`measure` gives the figures of one turn. `targets`: figure -> the most it may be against a peer or in itself."""

    measure: Callable[[Target, argparse.Namespace], Figures]
    targets: dict[str, dict[str, float]]
    direct: bool = False  # the engine without a proxy takes its turns too
    ours_alone: bool = False
    turns: int | None = None


def load(target: Target, args: argparse.Namespace, **options: Any) -> dict[str, Any]:
    """Runs the load client on the mock's core."""
    argv = [sys.executable, str(LOAD), target.url, "--pid", str(target.pid), "--key", KEY, "--head", args.head]
    for name, value in ({"model": MODEL} | options).items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    with proxies.pinned(args.client_core):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=options["seconds"] + 120, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def per_request(target: Target, args: argparse.Namespace, **options: Any) -> Figures:
    found = load(target, args, connections=50, seconds=args.seconds, **options)
    share = 1e6 / max(1, found["requests"])
    return {
        "cpu_us": found["cpu_s"] * share,
        "user_us": found["user_s"] * share,
        "per_s": found["requests"] / found["wall_s"],
        "p50_ms": found["request_p50_ms"],
        "faults": sum(found["faults"].values()),
    }


def per_chunk(target: Target, args: argparse.Namespace, **options: Any) -> Figures:
    stream = {"tokens": args.tokens, "pace_ms": 10}
    found = load(target, args, connections=200, seconds=args.seconds, **stream, **options)
    share = 1e6 / max(1, found["chunks"])
    return {
        "cpu_us": found["cpu_s"] * share,
        "user_us": found["user_s"] * share,
        "per_s": found["chunks"] / found["wall_s"],
        "per_read": found["chunks_per_read"],
        "p50_ms": found["chunk_p50_ms"],
        "p99_ms": found["chunk_p99_ms"],
        "faults": sum(found["faults"].values()),
    }


def first_token(target: Target, args: argparse.Namespace) -> Figures:
    """Few streams at a time, so that what is seen is the way through and not a queue."""
    found = load(target, args, connections=4, seconds=max(1.5, args.seconds / 2), tokens=5, pace_ms=4)
    return {"ttft_p50_ms": found["ttft_p50_ms"], "ttft_p99_ms": found["ttft_p99_ms"]}


def stalled(target: Target, args: argparse.Namespace) -> Figures:
    """A stream as fast as the engine can, to a client that reads nothing: how much memory it takes."""
    before = tree_usage(target.pid).rss_bytes
    peak = before
    with _stream(target, pace_ms=0, receive_bytes=8192):
        until_s = time.monotonic() + FLOOD_S
        while time.monotonic() < until_s:
            time.sleep(0.25)
            peak = max(peak, tree_usage(target.pid).rss_bytes)
    time.sleep(1.0)
    return {"growth_mb": (peak - before) / 1e6}


def aborts(target: Target, args: argparse.Namespace) -> Figures:
    """From a client's close to the engine's notice of it, during a stream and before its first token."""
    streaming = [_abort_ms(target, args.engine_url, first_ms=0) for _ in range(ABORTS)]
    waiting = [_abort_ms(target, args.engine_url, first_ms=4000) for _ in range(ABORTS // 3)]
    return {
        "streaming_ms": _worst(streaming),
        "streaming_p50_ms": statistics.median(streaming) if None not in streaming else None,  # type: ignore[type-var]
        "waiting_ms": _worst(waiting),
    }


def _worst(values: list[float | None]) -> float | None:
    """None where one never came."""
    return None if None in values else max(value for value in values if value is not None)


def _abort_ms(target: Target, engine_url: str, first_ms: int) -> float | None:
    """None: the engine had heard nothing after 3 s."""
    before = _stats(engine_url)["aborts"]
    with _stream(target, pace_ms=20, first_ms=first_ms) as client:
        if not first_ms:
            client.recv(65536)
        time.sleep(0.15)
        closed_s = time.monotonic()
    until_s = closed_s + 3.0
    while time.monotonic() < until_s:
        if (now := _stats(engine_url))["aborts"] > before:
            return float(now["last_abort_s"] - closed_s) * 1e3
        time.sleep(0.02)
    return None


def _stats(engine_url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{engine_url}/stats", timeout=5) as response:
        found: dict[str, Any] = json.load(response)
    return found


@contextlib.contextmanager
def _stream(target: Target, pace_ms: int, first_ms: int = 0, receive_bytes: int | None = None) -> Any:
    """A connection on which one long stream has been asked for."""
    order = Order(target.url, MODEL, KEY, 200, STREAM_LIMIT, pace_ms, first_ms=first_ms, max_tokens=4000)
    with socket.socket() as client:
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(10)
        client.connect((order.host, order.port))
        client.sendall(order.next())
        yield client


def soak(target: Target, args: argparse.Namespace) -> Figures:
    options = {"connections": 1000, "tokens": 200, "pace_ms": 100, "sample_s": 5.0}
    found = load(target, args, seconds=args.soak, **options)
    samples: list[tuple[float, float, float]] = found["rss_mb_over_time"]
    settled = [mb for at_s, mb, _ in samples if at_s >= min(60.0, args.soak / 2)]
    return {
        "faults": sum(found["faults"].values()),
        "streams": found["requests"],
        "cpu_us_per_chunk": found["cpu_s"] * 1e6 / max(1, found["chunks"]),
        "rss_start_mb": samples[0][1],
        "rss_settled_mb": settled[0],
        "rss_end_mb": settled[-1],
        "growth_mb": settled[-1] - settled[0],
        # Output lengths are learned now and then, in a process that ends when it is done.
        "rss_tree_most_mb": max(mb for _, _, mb in samples),
        "chunk_p99_ms": found["chunk_p99_ms"],
    }


_REQUEST = {"cpu_us": {"nginx": 4.0, "vllm-router": 0.8}}
_CHUNK = {"cpu_us": {"nginx": 1.6, "vllm-router": 1.0}}
SCENARIOS = {
    "requests": Scenario(per_request, _REQUEST),
    "requests, 4.6 KB": Scenario(lambda t, a: per_request(t, a, prompt_bytes=LONG_PROMPT_BYTES), _REQUEST),
    "requests, renamed": Scenario(lambda t, a: per_request(t, a, model=RENAMED), {}, ours_alone=True),
    "chunks": Scenario(per_chunk, _CHUNK),
    "chunks, 4.6 KB": Scenario(lambda t, a: per_chunk(t, a, prompt_bytes=LONG_PROMPT_BYTES), _CHUNK),
    "first token": Scenario(first_token, {"ttft_p50_ms": {"direct +": 1.0}}, direct=True),
    "stalled client": Scenario(stalled, {"growth_mb": {"": 10.0}}, turns=1),
    "abort": Scenario(aborts, {"streaming_ms": {"": 100.0}, "waiting_ms": {"": 100.0}}, turns=1),
    "soak": Scenario(soak, {"faults": {"": 0.0}, "growth_mb": {"": 5.0}}, ours_alone=True, turns=1),
}


def run(chosen: list[str], args: argparse.Namespace) -> dict[str, dict[str, Figures]]:
    """Scenario -> proxy -> medians."""
    results: dict[str, dict[str, Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="gateway-benchmark-") as folder, contextlib.ExitStack() as stack:
        targets = _start(stack, Path(folder), args)
        for name in chosen:
            scenario = SCENARIOS[name]
            taking_part = [t for t in targets if t.name != "direct" or scenario.direct]
            if scenario.ours_alone:
                taking_part = [t for t in taking_part if t.name == "greenserve"]
            turns: dict[str, list[Figures]] = {t.name: [] for t in taking_part}
            for _ in range(scenario.turns or args.turns):
                for target in taking_part:
                    turns[target.name].append(scenario.measure(target, args))
            results[name] = {who: _medians(figures) for who, figures in turns.items()}
            _print_table({name: results[name]})
    return results


def _start(stack: contextlib.ExitStack, var_dir: Path, args: argparse.Namespace) -> list[Target]:
    direct, urls = stack.enter_context(proxies.engines(args.engines, var_dir, args.client_core))
    args.engine_url = urls[0]
    targets = [direct]
    wanted, core = args.proxies, args.proxy_core
    if "nginx" in wanted and (program := env.find_program("nginx")):
        targets.append(stack.enter_context(proxies.nginx(program, urls, var_dir, core)))
    if "vllm-router" in wanted and (router := args.vllm_router or env.find_program("vllm-router")):
        targets.append(stack.enter_context(proxies.vllm_router(router, urls, var_dir, core, args.vllm_router_policy)))
    if "greenserve" in wanted:
        ours = proxies.greenserve(urls, var_dir, core, args.client_core, args.python, args.profile)
        targets.append(stack.enter_context(ours))
        print(f"greenserve: pid {targets[-1].pid}, {targets[-1].url}", file=sys.stderr)
        _let_it_learn(targets[-1], args)
    return targets


def _let_it_learn(ours: Target, args: argparse.Namespace) -> None:
    """Until the first output lengths are learned: the process that does so is a start's cost, not a request's.

    Later ones stay in the figures. They may take a hundredth of a core.
    """
    until_s = time.monotonic() + LEARNING_S
    load(ours, args, connections=50, seconds=LESSONS_S)
    while tree_usage(ours.pid).processes > 1 and time.monotonic() < until_s:
        time.sleep(0.5)


def _medians(turns: list[Figures]) -> Figures:
    """Of each figure over the turns; None where a turn has none. Of CPU the least too: a busy machine adds to it."""
    out: Figures = {}
    for name in turns[0]:
        values = [turn[name] for turn in turns]
        known = [value for value in values if value is not None]
        out[name] = statistics.median(known) if len(known) == len(values) else None
        if name == "cpu_us" and len(turns) > 1:
            out["cpu_least_us"] = min(known)
    return out


def verdicts(results: dict[str, dict[str, Figures]]) -> list[dict[str, Any]]:
    """Ours against each target: a ratio to a peer, a difference ("direct +"), or the figure itself ("")."""
    out = []
    for name, by_proxy in results.items():
        for figure, limits in SCENARIOS[name].targets.items():
            ours = by_proxy.get("greenserve", {}).get(figure)
            for peer, limit in limits.items():
                base = by_proxy.get(peer.removesuffix(" +"), {}).get(figure)
                if peer and base is None:
                    continue
                value = ours
                if ours is not None and base is not None:
                    value = ours - base if peer.endswith("+") else ours / base
                against = "in itself" if not peer else f"above {peer[:-2]}" if peer.endswith("+") else f"x {peer}"
                met = value is not None and value <= limit
                out.append({"what": f"{name}: {figure}", "against": against, "value": value, "most": limit, "met": met})
    return out


def _print_table(results: dict[str, dict[str, Figures]]) -> None:
    for name, by_proxy in results.items():
        print(f"\n{name}", file=sys.stderr)
        for who, figures in by_proxy.items():
            cells = (f"{key} {'-' if value is None else f'{value:.4g}'}" for key, value in figures.items())
            print(f"  {who:12} {'  '.join(cells)}", file=sys.stderr)
    for row in verdicts(results):
        value = "-" if row["value"] is None else f"{row['value']:.2f}"
        word = "met    " if row["met"] else "NOT MET"
        print(f"  {word} {row['what']}: {value} {row['against']} (at most {row['most']:g})", file=sys.stderr)


def main() -> None:
    args = _arguments()
    chosen = args.only or [name for name in SCENARIOS if name != "soak"]
    if args.soak and "soak" not in chosen:
        chosen.append("soak")
    cores = sorted(os.sched_getaffinity(0))
    args.client_core = cores[0] if args.client_core is None else args.client_core
    args.proxy_core = cores[-1] if args.proxy_core is None else args.proxy_core
    with proxies.priority(args.nice):
        results = run(chosen, args)
    print(json.dumps({"results": results, "targets": verdicts(results)}, indent=2))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SCENARIOS), help="scenarios")
    parser.add_argument("--proxies", nargs="+", default=["nginx", "vllm-router", "greenserve"])
    parser.add_argument("--vllm-router", type=Path, help="its program, where it is not on the PATH")
    parser.add_argument("--vllm-router-policy", default="round_robin", help="the default is its cheapest")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a window")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200, help="of a stream")
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--head", choices=("openai", "plain"), default="openai", help="the requests' headers")
    parser.add_argument("--soak", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of ours, of the same minor version")
    parser.add_argument("--nice", type=int, default=0, help="of all that runs, e.g. -10 on a busy machine (root)")
    parser.add_argument("--proxy-core", type=int)
    parser.add_argument("--client-core", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
