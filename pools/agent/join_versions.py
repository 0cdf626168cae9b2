"""Says whether a node's program and the control plane's go together: of one minor version, or the node's one before."""

from __future__ import annotations

import re


def mismatch(node: str, control: str) -> str:
    """Returns why a node with the version `node` may not join one with `control`, and the remedy; empty: it may.

    An empty `node` is of a program that does not send its version yet.
    """
    theirs, ours = _minor(node or control), _minor(control)
    if theirs is None or ours is None:
        return f"'{node}' is no version of GreenServe; install {control} on the machine."
    if theirs > ours:
        return (
            f"GreenServe {node} on the machine is newer than the control plane's {control}: upgrade the control plane "
            f"first, or install {control} on the machine."
        )
    if theirs[0] != ours[0] or theirs[1] < ours[1] - 1:
        return (
            f"GreenServe {node} on the machine is too old for the control plane's {control}: install {control} there."
        )
    return ""


def _minor(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))
