"""The demo's one measured profile: beside it everything else that the demo's plans go by is published or modelled.

To run the profiler would take minutes. Its points are those that it takes, with what the simulated node's engines take
in truth, in its own format; `origin` says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from core.engine.corrections import configuration
from core.engine.engine_model import EngineModel, closed_form
from core.engine.profiles import Point, Profile, json_rows
from pools.models import EngineProfile, ModelCard

from .demo_fleet import A100

NODE, TP = "loc2-a100-8", 8
ORIGIN = f"measured on the demo's simulated node {NODE}"
CLOCKS_MHZ = (705.0, 945.0, 1170.0, 1410.0)
BATCHES, CONTEXTS, PROMPTS = (1, 4, 16, 64, 256), (160, 2048), (128, 512, 2048)


def load_profile() -> None:
    """Stores and publishes it. Where it has been before it stays as it is, withdrawn or not."""
    card = ModelCard.objects.filter(name="Llama3-70B").first()
    if card is None or EngineProfile.objects.filter(origin=ORIGIN).exists():
        return
    truth = closed_form(card.engine_model_name, A100, TP, card.engine)
    points, now_s = tuple(_points(truth)), float(int(time.time()))
    profile = Profile(card.engine_model_name, A100, TP, card.engine, points, origin=ORIGIN, measured_at_s=now_s)
    shape, gpu, tp, engine = configuration(card.engine_model_name, A100, TP, card.engine)
    now = datetime.fromtimestamp(now_s, UTC)
    EngineProfile.objects.create(
        **{"shape": shape, "gpu_type": gpu, "tp": tp, "engine": engine, "model_name": card.name},
        **{"version": profile.version, "source": profile.source.value, "origin": ORIGIN},
        points=json_rows(profile),
        point_count=len(profile.points),
        measured_at=now,
        published_at=now,
    )


def _points(truth: EngineModel) -> Iterator[Point]:
    for mhz in CLOCKS_MHZ:
        for prompt in PROMPTS:
            yield _point(truth, prompt, mhz, 0, 0)
        for batch in BATCHES:
            for context in CONTEXTS:
                yield _point(truth, 0, mhz, batch, batch * context)


def _point(truth: EngineModel, prompt: int, mhz: float, batch: int, context_tokens: int) -> Point:
    one = truth.iteration(mhz, [(prompt, 0)] if prompt else (), batch, float(context_tokens))
    return Point(prompt, mhz, batch, float(context_tokens), one.t_s, one.watts)
