"""engine model: what follows from a model's own files, and the GPUs that have room for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from core.engine.engine_params import GPUS, UnknownConfiguration, knows_model
from core.engine.engine_params import model as shape_named
from greenserve.cli import fail

if TYPE_CHECKING:
    from core.engine.model_shape import ModelParams
    from pools.model_files.shape_figures import Fit

DEGREES = (1, 2, 4, 8)


def shape_of(place: str, kv_bits: float | None = None) -> ModelParams:
    """Returns the shape of a known name, of a shape's key, or of what `place` says. Raises BadConfig."""
    if knows_model(place):
        return shape_named(place)
    from pools.model_files.hugging_face import shape_from  # a second to import

    return shape_from(place, kv_bits)


@click.command()
@click.argument("place", metavar="PLACE")
@click.option("--gpu", "gpus", metavar="TYPE", multiple=True, help="May be given several times.  [default: all types]")
@click.option("--engine", "engine_name", default="vllm-2025", show_default=True, help="Serving engine.")
@click.option("--fp8-kv-cache", is_flag=True, help="The engine's KV cache has 8 bits (--kv-cache-dtype fp8).")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def model(place: str, gpus: tuple[str, ...], engine_name: str, fp8_kv_cache: bool, as_json: bool) -> None:
    """Print what the engine model makes of a model's config.json, and which GPUs have room for it.

    PLACE is a folder with a config.json, such a file, a repository owner/name of the Hugging Face hub, or a name that
    the engine model knows. For each GPU type and 1, 2, 4 and 8 GPUs of it: the tokens that the KV cache has room for
    beside the weights, or why there is none.
    """
    from core.engine.model_config import BadConfig
    from pools.model_files import shape_figures
    from pools.model_files.hugging_face import tokenizer_beside

    try:
        shape = shape_of(place, 8.0 if fp8_kv_cache else None)
        fits = list(shape_figures.fits(shape.key, gpus or GPUS, DEGREES, engine_name))
    except BadConfig as error:
        fail(f"PLACE: {error}", status=2)
    except UnknownConfiguration as error:
        fail(f"--{error.field_name}: {error}", status=2)
    tokenizer = None if knows_model(place) else tokenizer_beside(place)
    figures = asdict(shape_figures.figures(shape))
    if as_json:
        found = {"shape": figures, "tokenizer": None if tokenizer is None else str(tokenizer)}
        click.echo(json.dumps(found | {"fits": [asdict(one) for one in fits]}))
        return
    click.echo(_shape(place, shape))
    if tokenizer is not None:
        click.echo(f"{'tokenizer':<12} {tokenizer}: set it in the card, and gateways count prompts exactly")
    click.echo("\n" + "\n".join(_table(fits)))


def _shape(place: str, shape: ModelParams) -> str:
    from pools.model_files import shape_figures

    rows: list[tuple[str, Any]] = [
        ("model", place),
        ("parameters", shape_figures.parameters(shape)),
        ("weights", shape_figures.weights(shape)),
        ("KV cache", f"{shape.kv_bytes:,.0f} bytes a token ({shape.kv_bits:g} bits)"),
        ("attention", shape_figures.window(shape)),
        ("shape", shape.key),
    ]
    return "\n".join(f"{name:<12} {value}" for name, value in rows)


def _table(fits: Sequence[Fit]) -> list[str]:
    """Returns a row for each GPU type; beside it why there is no room on the most of its GPUs that have none."""
    lines = [f"{'Tokens of KV cache on':<22}" + "".join(f"{degree:>11}" for degree in DEGREES) + "  GPUs"]
    by_gpu: dict[str, dict[int, Fit]] = {}
    for one in fits:
        by_gpu.setdefault(one.gpu, {})[one.tp] = one
    for gpu, found in by_gpu.items():
        cells = (f"{found[degree].kv_capacity_tokens:,}" if found[degree].fits else "-" for degree in DEGREES)
        reasons = [found[degree].reason for degree in DEGREES if not found[degree].fits]
        lines.append(
            f"{gpu:<22}" + "".join(f"{cell:>11}" for cell in cells) + f"  {reasons[-1] if reasons else ''}".rstrip()
        )
    return lines
