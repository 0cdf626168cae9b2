"""Says which engines can hand their KV caches to each other: those of one connector. A split needs two of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

REMEDY = (
    "start the agents of its engines with one KV store (--vllm-kv-store) or, on several nodes, with --vllm-kv-ports "
    "(docs/plugin.md), or set `split: none` or another policy"
)


def shared(connectors: Iterable[str]) -> str:
    """Returns the connector that most engines have, the last by name of several; empty: none has one."""
    counts = Counter(connector for connector in connectors if connector)
    return max(counts, key=lambda connector: (counts[connector], connector), default="")


def hindrance(connectors: Iterable[str]) -> str:
    """Returns why no two of these engines can serve one request; empty: two can, or there are no two.

    `connectors`: of each engine; empty: it has none.
    """
    every = list(connectors)
    most = shared(every)
    if len(every) < 2 or (most and every.count(most) >= 2):
        return ""
    return "no two engines have the same KV connector" if most else "no engine can hand its KV cache to another"
