"""Says which agents are too old for this control plane: the one place of the least version.

A control plane works with agents of its own version and of the release before. Agents are upgraded after it.
"""

from __future__ import annotations

import re

from pools import wire

LEAST = "0.1.0"
SILENT = "0.1.0"  # the version of agents that do not tell theirs


def too_old(agent: wire.AgentState) -> str:
    """Returns what is wrong with an agent's version, and the remedy; empty: nothing. Words that are no version pass."""
    version = agent.version or SILENT
    if _numbers(version) >= _numbers(LEAST):
        return ""
    return (
        f"its agent is of GreenServe {version}, and this control plane works with {LEAST} and later: install a later "
        "GreenServe on the node, and start its agent again"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the release of a version: 0.2.0rc1 counts as 0.2.0."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else (10**9,)
