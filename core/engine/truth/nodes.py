"""Scores nodes that serve: their power with a model loaded and nothing to do.

Columns: config (MODEL-GPU_tpN), P_idle_w of the GPUs in use. Busy power is not scored: the table does not say what the
load was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from core.engine.engine_model import EngineModel, UnknownConfiguration
from core.engine.truth.board import BadTable, Board, Scored, number
from core.engine.truth.serving import ENGINE, gpu_named

_CONFIG = re.compile(r"(?P<model>.+)-(?P<gpu>[a-z]+\d+[a-z]*)_tp(?P<tp>\d+)")
_ANY_MODEL = "Llama3-8B"  # idle power does not depend on it


def score(rows: Iterable[Mapping[str, str]]) -> Board:
    """Scores idle power of each row. Raises BadTable."""
    return Board(tuple(_scored(line, row) for line, row in enumerate(rows, 2)))


def _scored(line: int, row: Mapping[str, str]) -> Scored:
    found = _CONFIG.fullmatch(row.get("config", ""))
    if found is None:
        raise BadTable(f"line {line}: config: '{row.get('config')}' is not MODEL-GPU_tpN")
    groups = {"gpu": found["gpu"].upper(), "model": found["model"]}
    try:
        node = EngineModel(_ANY_MODEL, gpu_named(groups["gpu"]), int(found["tp"]), ENGINE)
    except UnknownConfiguration as error:
        return Scored(line, groups, refused=str(error))
    return Scored(line, groups, {"idle_w": (number(row, line, "P_idle_w"), node.idle_watts(node.gpu_params.f_max))})
