"""Runs a script or the command line by the product's Python, with the packages of .venv-vllm after its own.

python -m tests.vllm.with_torch SITE greenserve predictor ...
python -m tests.vllm.with_torch SITE script.py ...
"""

from __future__ import annotations

import runpy
import site
import sys

if __name__ == "__main__":
    site.addsitedir(sys.argv[1])
    sys.argv = sys.argv[2:]
    if sys.argv[0] == "greenserve":
        from greenserve.cli import main

        main(sys.argv[1:])
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
