"""`python -m tests.netns`: docs/production.md on machines of its own, and what happens to a fleet there.

It takes about half an hour, sixteen minutes of it until the ledger has settled a window.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.product import ROOT
from tests.netns import machines
from tests.netns.stage import VLLM, Stage, say
from tests.netns.steps import STEPS

INSIDE = "--inside"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.netns", description=__doc__)
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().inside:
        return _run()
    lacking = machines.lacking()
    if not (VLLM / "bin" / "vllm").exists():
        lacking.append("a vLLM for processors: scripts/install vllm")
    if lacking:
        say("SKIPPED: a fleet on machines of its own. This machine lacks:\n- " + "\n- ".join(lacking))
        return 0
    machines.base()
    command = machines.in_namespaces(sys.executable, "-m", "tests.netns", INSIDE)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _run() -> int:
    with tempfile.TemporaryDirectory(prefix="greenserve-netns-", ignore_cleanup_errors=True) as folder:
        stage = Stage(Path(folder))
        began = time.monotonic()
        try:
            for step in (Stage.set, *STEPS):
                at = time.monotonic()
                say(step.__name__.replace("_", " "))
                step(stage)
                say(f"  held, {time.monotonic() - at:.0f} s")
        finally:
            stage.keep(ROOT / "test-artifacts" / "netns")
            stage.network.off()
        say(f"all held, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
