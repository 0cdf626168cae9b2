"""`python -m pools.lengths`: predicts answers' lengths for the gateways of a host until SIGTERM or SIGINT.

Reads no environment. Prompts are written nowhere: neither to files nor to the log, and no memory is dumped.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from core.ports import RequestFeatures
from core.predictors.text_predictor import LengthPredictor

from .encoder.in_use import EncoderInUse
from .kept_state import KeptState
from .length_server import LengthServer, make_private
from .predicting import Predicting
from .reading import Reader

NICENESS = 5  # gateways come first
CANNOT_START_EXIT = 2


def main(arguments: list[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(prog="pools.lengths", description="Predicts lengths of answers for gateways.")
    parser.add_argument("--socket", type=Path, required=True, help="where gateways ask; its folder is for it alone")
    parser.add_argument("--state", type=Path, required=True, help="folder for what it learns")
    parser.add_argument("--data", type=Path, help="folder with trained encoders; the one in use is asked first")
    given = parser.parse_args(arguments)
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # prompts are in its memory
    try:
        for folder in (given.socket.parent, given.state):
            make_private(folder)
        kept = KeptState(given.state, LengthPredictor.restored, LengthPredictor)
        _warm_up()
        predictor = kept.recall()
        reader = None
        if given.data is not None:
            encoder = EncoderInUse(given.data)
            encoder.refresh()  # before anybody waits
            reader = Reader(encoder)
        asyncio.run(_serve(LengthServer(given.socket, Predicting(predictor, reader), kept)))
    except OSError as error:
        sys.stderr.write(f"lengths: {error}\n")
        return CANNOT_START_EXIT
    return 0


def _warm_up() -> None:
    """Has compiled what is compiled, so that no request waits for that."""
    made = LengthPredictor()
    made.observe("", None, made.look(["a prompt"]), 1, RequestFeatures(chat=False, at_s=0.0), 1)


async def _serve(server: LengthServer) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gc.freeze()  # what is here now stays
    await server.serve(stop)


if __name__ == "__main__":
    sys.exit(main())
