"""Reads where the predictor's process is from the command lines of gateway and picker."""

from __future__ import annotations

import argparse
from pathlib import Path

from .asked_lengths import BUDGET_S

MOST_BUDGET_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lengths", type=Path, metavar="SOCKET", help="of the predictor of lengths (pools.lengths); without it: none"
    )
    parser.add_argument(
        "--length-budget-s",
        type=_budget_s,
        default=BUDGET_S,
        metavar="S",
        help=f"the longest that a request waits for it (default: {BUDGET_S})",
    )


def _budget_s(given: str) -> float:
    try:
        budget_s = float(given)
    except ValueError:
        budget_s = 0.0
    if not 0.0 < budget_s <= MOST_BUDGET_S:
        raise argparse.ArgumentTypeError(f"give seconds above 0 and at most {MOST_BUDGET_S:g}, not '{given}'")
    return budget_s
