"""`python -m tests.chaos [PART ...]`: runs the faults of these parts, or of all, and writes the page.

Each part runs in network and mount namespaces of its own, at most twenty minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.chaos import machine, page
from tests.chaos.faults import EVERY
from tests.e2e.product import ROOT

PART_WITHIN_S = 1200
TIMED_OUT = 124


def main() -> int:
    parts = sorted({fault.part for fault in EVERY})
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("parts", nargs="*", type=int, metavar="PART", help=f"of {parts}; without one all")
    parser.add_argument("--fault", action="append", default=[], help="only faults whose name has this; repeat it")
    parser.add_argument("--within-s", type=int, default=PART_WITHIN_S, help="a part is ended then  [%(default)s]")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(parts):
        parser.error(f"there is no part {unknown.pop()}; there are {', '.join(map(str, parts))}")
    if lacking := machine.lacking():
        print("SKIPPED: the faults of the running demo. This machine lacks:")
        print("\n".join(f"- {what}" for what in lacking))
        return 0
    statuses = [_run(part, chosen.fault, chosen.within_s) for part in chosen.parts or parts]
    page.write()
    return max(statuses)


def _run(part: int, words: list[str], within_s: int) -> int:
    """Runs a part; returns pytest's status, or 124 where it took too long."""
    pytest = (sys.executable, "-m", "pytest", "-q", "-s", "-m", "chaos", "tests/chaos/test_faults.py")
    options = ("--part", str(part), *(option for word in words for option in ("--fault", word)))
    report = ("--junit-xml", f"test-artifacts/chaos-{part}.xml")
    command = machine.in_namespaces(*pytest, *options, *report)
    try:
        return subprocess.run(command, cwd=ROOT, timeout=within_s, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"part {part} took longer than {within_s} s")
        return TIMED_OUT


if __name__ == "__main__":
    sys.exit(main())
