"""engine predict, model, facts and import: the engine model by itself, without database, Redis or Django."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from core.engine.engine_model import EngineModel, UnknownConfiguration, engine_model
from core.engine.engine_params import knows_model
from core.engine.model_config import BadConfig
from core.engine.profiles import load_profiles, modelled_margins
from greenserve.cli import fail
from greenserve.commands.engine.model import model as model_
from greenserve.commands.engine.model import shape_of
from greenserve.commands.engine.profile_import import import_
from greenserve.commands.engine.publish import publish

if TYPE_CHECKING:
    from core.engine.profiled_engine import ProfiledEngine

# The profiled configurations: (model, GPU, TP, engine).
Profiled = Mapping[tuple[str, str, int, str], "ProfiledEngine"]

DEFAULT_ENGINE = "vllm-v1"
_FIELDS = ("model", "gpu", "tp", "mhz", "prefill", "decode", "engine")
MOST_TOKENS = 10**9
MOST_GPUS = 1024
MOST_SEQUENCES = 1_000_000  # of one COUNTxCTX: a typing error must not eat the memory
_COUNT_X_CONTEXT = re.compile(r"(\d+)x(\d+)")


class BadField(ValueError):
    """A field of a question that cannot be used."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Question:
    """One iteration to predict. `prefills` are (new, cached) tokens; `contexts` one length per decoding sequence."""

    instance: EngineModel
    mhz: float
    prefills: tuple[tuple[int, int], ...]
    contexts: tuple[int, ...]

    def answer(self, profiled: Profiled) -> dict[str, Any]:
        """Predicts by the profile of this configuration where there is one, else by the closed form."""
        one = self.instance
        batch = (self.mhz, self.prefills, len(self.contexts), sum(self.contexts))
        if known := profiled.get((one.model, one.gpu, one.tp, one.engine)):
            predicted = known.iteration(*batch)
            found, margins, watts_source = predicted.iteration, predicted.margins, predicted.watts_source
        else:
            margins = modelled_margins(one.gpu, one.engine)
            found, watts_source = one.iteration(*batch), one.source
        return {
            **asdict(found),
            "watts_source": watts_source,
            "fits": one.fits,
            "batch_fits": self.kv_tokens <= one.kv_capacity_tokens,
            "kv_capacity_tokens": one.kv_capacity_tokens,
            "margin": asdict(margins),
        }

    @property
    def kv_tokens(self) -> int:
        """Returns the cache's tokens after the iteration: contexts, prompts, and a token more for each sequence."""
        return sum(self.contexts) + len(self.contexts) + sum(new + cached for new, cached in self.prefills)


@click.group()
def engine() -> None:
    """Ask the engine model: time, power and energy of an iteration, and how it stands against published figures.

    \b
    greenserve engine predict --model Llama3-70B --gpu H100-SXM-80GB --tp 4 --mhz 1200 --decode 32x1000
    greenserve engine predict --input questions.jsonl > answers.jsonl
    greenserve engine model ./Qwen3-32B --gpu L40S-48GB
    greenserve engine facts facts.csv
    greenserve engine import run repeats.csv --model Llama3-8B --gpu A100-80GB --tp 1 --out profile.json
    """


engine.add_command(import_)
engine.add_command(model_)
engine.add_command(publish)


@engine.command()
@click.option("--model", help="Such as Llama3-70B, or the place of a config.json (see `engine model`).")
@click.option("--gpu", help="Such as A100-80GB or H100-SXM-80GB.")
@click.option("--tp", type=int, help="Tensor-parallel degree: GPUs of the instance.")
@click.option("--mhz", type=float, help="SM clock; outside the GPU's range its nearest end.  [default: the top clock]")
@click.option("--prefill", metavar="NEW:CTX,...", help="Tokens to prefill, and those already cached (0 if left out).")
@click.option("--decode", metavar="CTX,...|COUNTxCTX", help="Context of each decoding sequence; both forms mix.")
@click.option("--engine", "engine_name", default=DEFAULT_ENGINE, show_default=True, help="Serving engine.")
@click.option("--input", "questions", metavar="FILE.jsonl", type=click.File(encoding="utf-8"), help="Many; - is stdin.")
@click.option("--profile", metavar="FILE", type=click.Path(path_type=Path), help="Measured profile, .csv or .json.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON (always so with --input).")
def predict(
    model: str | None,
    gpu: str | None,
    tp: int | None,
    mhz: float | None,
    prefill: str | None,
    decode: str | None,
    engine_name: str,
    questions: TextIO | None,
    profile: Path | None,
    as_json: bool,
) -> None:
    """Predict one iteration: its time, the instance's and each GPU's watts, the clock after throttling, the energy.

    --input answers many: one JSON object a line in and out, in order, with the fields model, gpu, tp, mhz, prefill
    ([[new, ctx], ...]), decode ([ctx, ...]), engine; other fields are ignored. `fits` says whether the weights leave
    room for any KV cache, `batch_fits` whether it holds this batch; what does not fit is answered all the same.
    `source` says what an answer rests on, `watts_source` what its power does, `margin` how far it may be off: measured,
    interpolated and published come from --profile (see `engine import`), modelled from the closed form, modelled by
    data sheet where nobody has measured the GPU type.
    """
    profiled = _profiled(profile)
    if questions is not None:
        if any(value is not None for value in (model, gpu, tp, mhz, prefill, decode)):
            raise click.UsageError("--input brings its own model, gpu, tp, mhz, prefill and decode")
        for answer in _answers(questions, engine_name, profiled):
            click.echo(json.dumps(answer))
        return
    row: dict[str, Any] = {"model": model, "gpu": gpu, "tp": tp, "mhz": mhz, "engine": engine_name}
    try:
        row["prefill"] = _parse_prefill(prefill)
        row["decode"] = _parse_decode(decode)
        row["model"] = _resolved(model)
        question = _question(row, engine_name)
    except BadField as error:
        fail(f"--{error}", status=2)
    answer = question.answer(profiled)
    click.echo(json.dumps(answer) if as_json else _table(question, answer, model or ""))


def _resolved(model: str | None) -> str | None:
    """Returns the key of the shape that a place's config.json has; what is no place stays, to be refused by name."""
    if model is None or knows_model(model) or not ("/" in model or Path(model).exists()):
        return model
    try:
        return shape_of(model).key
    except BadConfig as error:
        raise BadField("model", str(error)) from None


def _profiled(path: Path | None) -> Profiled:
    if path is None:
        return {}
    from core.engine.profiled_engine import ProfiledEngine

    try:
        profiles = load_profiles(path)
        return {(one.model, one.gpu, one.tp, one.engine): ProfiledEngine(one) for one in profiles}
    except (ValueError, OSError) as error:
        fail(f"{path}: {error}")


def _answers(lines: TextIO, default_engine: str, profiled: Profiled) -> Iterator[dict[str, Any]]:
    done = 0
    try:
        for line in lines:
            if line.strip():
                yield _question(_object(line), default_engine).answer(profiled)
            done += 1
    except UnicodeDecodeError:
        fail(f"{lines.name}, after line {done}: not UTF-8 text")
    except BadField as error:
        fail(f"{lines.name}, line {done + 1}: {error}")


def _object(line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadField("line", f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise BadField("line", "not a JSON object")
    return row


def _question(row: Mapping[str, Any], default_engine: str) -> Question:
    """Checks a question's fields. Raises BadField, which names the first that is wrong."""
    for name in row:
        if name not in _FIELDS and (near := difflib.get_close_matches(name, _FIELDS, 1, 0.8)):
            raise BadField(name, f"unknown field; is {near[0]} meant?")
    tp = row.get("tp")
    if not isinstance(tp, int) or isinstance(tp, bool) or not 1 <= tp <= MOST_GPUS:
        raise BadField("tp", f"a whole number from 1 to {MOST_GPUS} is needed, not {_shown(tp)}")
    names = {name: row.get(name) for name in ("model", "gpu")} | {"engine": row.get("engine") or default_engine}
    for name, value in names.items():
        if not isinstance(value, str):
            raise BadField(name, f"a name is needed, not {_shown(value)}")
    try:
        instance = engine_model(names["model"], names["gpu"], tp, names["engine"])
    except UnknownConfiguration as error:
        raise BadField(error.field_name, str(error)) from None
    mhz = row.get("mhz")
    if mhz is None:
        mhz = instance.gpu_params.f_max
    if not _is_number(mhz) or mhz <= 0:
        raise BadField("mhz", f"a positive number is needed, not {_shown(mhz)}")
    prefills = tuple(_prefill(item) for item in _list(row, "prefill"))
    contexts = tuple(_tokens("decode", item, least=0) for item in _list(row, "decode"))
    if not prefills and not contexts:
        raise BadField("decode", "nothing to do: give prefill, decode or both")
    return Question(instance, float(mhz), prefills, contexts)


def _list(row: Mapping[str, Any], field: str) -> list[Any]:
    value = row.get(field)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadField(field, f"a list is needed, not {_shown(value)}")
    return value


def _prefill(item: object) -> tuple[int, int]:
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise BadField("prefill", f"pairs of new and cached tokens are needed, not {_shown(item)}")
    return _tokens("prefill", item[0], least=1), _tokens("prefill", item[1], least=0)


def _tokens(field: str, value: Any, least: int) -> int:
    if not _is_number(value) or value != int(value) or not least <= value <= MOST_TOKENS:
        raise BadField(
            field, f"a whole number of tokens from {least} to {MOST_TOKENS:,} is needed, not {_shown(value)}"
        )
    return int(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)


def _parse_prefill(text: str | None) -> list[tuple[int, int]]:
    pairs = []
    for part in text.split(",") if text else []:
        new, _, cached = part.strip().partition(":")
        if not new.isdecimal() or not (cached or "0").isdecimal():
            raise BadField("prefill", f"NEW:CTX,... is needed, not '{part}'")
        pairs.append((int(new), int(cached or "0")))
    return pairs


def _parse_decode(text: str | None) -> list[int]:
    contexts: list[int] = []
    for part in text.split(",") if text else []:
        if many := _COUNT_X_CONTEXT.fullmatch(part.strip()):
            if int(many[1]) > MOST_SEQUENCES:
                raise BadField("decode", f"'{part}': at most {MOST_SEQUENCES:,} sequences")
            contexts += [int(many[2])] * int(many[1])
        elif part.strip().isdecimal():
            contexts.append(int(part))
        else:
            raise BadField("decode", f"CTX,... or COUNTxCTX is needed, not '{part}'")
    return contexts


def _table(question: Question, answer: Mapping[str, Any], model: str) -> str:
    instance = question.instance
    throttled = answer["f_eff_mhz"] < instance.gpu_params.clamp_mhz(question.mhz)
    rows = [
        ("instance", f"{model} on {instance.tp} x {instance.gpu}, {instance.engine}"),
        ("time", f"{answer['t_s'] * 1e3:.3f} ms"),
        ("power", f"{answer['watts']:.1f} W, {answer['gpu_watts']:.1f} W each GPU"),
        ("clock", f"{answer['f_eff_mhz']:.0f} MHz{' (throttled at the TDP)' if throttled else ''}"),
        ("energy", f"{answer['energy_j']:.3f} J"),
        ("KV capacity", _room(answer)),
        (
            "source",
            f"{answer['source']}, within {answer['margin']['time']:.0%} in time; "
            f"power {answer['watts_source']}, within {answer['margin']['power']:.0%}",
        ),
    ]
    return "\n".join(f"{name:<12} {value}" for name, value in rows)


def _room(answer: Mapping[str, Any]) -> str:
    if not answer["fits"]:
        return "does not fit"
    return f"{answer['kv_capacity_tokens']:,.0f} tokens{'' if answer['batch_fits'] else ', too few for this batch'}"


@engine.command()
@click.argument("file", metavar="FILE.csv", type=click.File(encoding="utf-8-sig"))
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option("--markdown", is_flag=True, help="Print as Markdown, the form of docs/fidelity.md.")
def facts(file: TextIO, as_json: bool, markdown: bool) -> None:
    """Compare the engine model with published figures.

    FILE.csv has the columns source, quantity, condition, value, unit, used. For each row whose condition can be
    expressed the value, the prediction and the error are printed, and the mean absolute error of each source; the other
    rows are listed with the reason.
    """
    from core.engine.facts import FactsError, evaluate, read_facts, summarise
    from greenserve.commands.engine import published_facts as shown

    if as_json and markdown:
        raise click.UsageError("--json or --markdown, one of the two")
    try:
        evaluations = evaluate(read_facts(file))
    except (FactsError, UnicodeDecodeError) as error:
        fail(f"{file.name}: {error}")
    form = shown.as_json if as_json else shown.as_markdown if markdown else shown.as_text
    click.echo(form(evaluations, summarise(evaluations)))
