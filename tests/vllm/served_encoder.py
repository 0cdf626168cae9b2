"""Asks the encoder that is in use, and prints as JSON the classes it names, and whether PyTorch was loaded for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pools.lengths.encoder.in_use import EncoderInUse


def main(data_folder: Path, prompts: list[str]) -> None:
    encoder = EncoderInUse(data_folder)
    encoder.refresh()
    named = [odds and odds.most_probable() for odds in encoder.predict(["any"] * len(prompts), prompts)]
    print(json.dumps({"classes": named, "torch": "torch" in sys.modules, "fault": encoder.fault}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
