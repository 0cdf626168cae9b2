"""engine import: profiles from other people's measurements, and from a profiling run of one's own."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from core.engine.profiles import Profile, read_rows, write_profile
from greenserve.cli import fail

_SHOWN_OUTLIERS = 10


def _out_path(_: click.Context, __: click.Parameter, value: Path) -> Path:
    if value.suffix.lower() not in (".csv", ".json"):
        raise click.BadParameter(f"'{value}' ends neither in .csv nor in .json")
    return value


_out = click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    callback=_out_path,
    help="Where to write the profile, .csv or .json.",
)


@click.group("import")
def import_() -> None:
    """Make a profile for `engine predict --profile`.

    \b
    greenserve engine import run repeats.csv --model Llama3-8B --gpu A100-80GB --tp 1 --out profile.json
    greenserve engine import aiconfigurator --model Llama3-70B --gpu H100-SXM-80GB --tp 4 --out profile.csv
    """


@import_.command()
@click.option("--model", required=True, help="One that its database has; with --shape any.")
@click.option("--gpu", required=True, help="H100-SXM-80GB or A100-80GB.")
@click.option("--tp", required=True, type=int, help="Tensor-parallel degree: GPUs of the instance.")
@click.option("--backend", default="vllm", show_default=True, help="Serving engine: vllm or trtllm.")
@click.option("--version", help="Of the backend.  [default: the database's current one]")
@click.option("--shape", metavar="DIR", type=click.Path(path_type=Path), help="Folder of the model's config.json.")
@_out
def aiconfigurator(
    model: str, gpu: str, tp: int, backend: str, version: str | None, shape: Path | None, out: Path
) -> None:
    """Import from NVIDIA's aiconfigurator latencies that others measured, at the top clock, without power.

    Predictions inside the profile are `published`; their power is the closed form's at the published time.
    """
    from core.engine.aiconfigurator import AiconfiguratorMissing, import_profile

    # It says much about data of models that nobody asked for.
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    try:
        profile = import_profile(model, gpu, tp, backend, version, shape)
    except AiconfiguratorMissing as error:
        fail(f"{error}: pip install 'greenserve[aiconfigurator]'")
    except ValueError as error:
        fail(str(error))
    _write(out, profile)
    click.echo(f"{_summary(profile)} from {profile.origin}")


@import_.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--model", required=True, help="Such as Llama3-70B.")
@click.option("--gpu", required=True, help="Such as A100-80GB.")
@click.option("--tp", required=True, type=int, help="Tensor-parallel degree: GPUs of the instance.")
@click.option("--engine", default="vllm-v1", show_default=True, help="Serving engine.")
@_out
def run(file: Path, model: str, gpu: str, tp: int, engine: str, out: Path) -> None:
    """Import a profiling run of a node: FILE (.csv or .json) has one row for each repeat.

    Columns: mhz, prefill_tokens, batch, context_tokens; t_s, or start_s and end_s; watts, or energy_j, or
    energy_start_j and energy_end_j, of the whole instance; iterations (1 if left out), how many of them the row spans.
    Repeats of one shape become their median; their spread becomes the margin.
    """
    from core.engine.profiling_run import fold_run

    try:
        found = fold_run(read_rows(file), (model, gpu, tp, engine))
    except (ValueError, OSError) as error:
        fail(f"{file}: {error}")
    _write(out, found.profile)
    click.echo(f"{_summary(found.profile)} from {found.repeats} repeats")
    for one in found.outliers[:_SHOWN_OUTLIERS]:
        ratio = one.value / one.median
        click.echo(f"row {one.row}: {one.field_name} {one.value:.4g} is {ratio:.2f} times the median of its repeats")
    if (more := len(found.outliers) - _SHOWN_OUTLIERS) > 0:
        click.echo(f"and {more} more outliers")


def _summary(profile: Profile) -> str:
    clocks = len({point.mhz for point in profile.points})
    power = "" if profile.metered else ", timed only"
    return f"{len(profile.points)} points at {clocks} clock{'s' if clocks > 1 else ''}{power},"


def _write(out: Path, profile: Profile) -> None:
    try:
        write_profile(out, profile)
    except OSError as error:
        fail(f"{out}: {error.strerror}")
