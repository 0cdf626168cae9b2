"""replay and trace."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from core.simulator.workload.public_traces import PUBLIC_TRACES, PublicTrace
from greenserve import env
from greenserve.cli import fail
from greenserve.commands.run import demo_credentials, summary
from greenserve.commands.secret_files import secret_of_file

if TYPE_CHECKING:
    from rich.progress import Progress

    from core.simulator.workload import TraceRequest
    from pools.load_generator import ReplayProgress, ReplayResult

WAIT_EVERY_S = 1.0
RATE = click.FloatRange(0.01, 1000)


DOWNLOAD_LIMIT_BYTES = 64 * 2**20


@click.command()
@click.argument("trace_file", metavar="[TRACE.csv[.gz]]", required=False, type=click.Path(path_type=Path))
@click.option("--generate", type=click.Choice(["azure-conv-like"]), help="Generate requests instead of reading a file.")
@click.option("--rate", default=3.0, show_default=True, type=RATE, help="Of --generate, per second.")
@click.option("--seed", default=1, show_default=True, help="Of --generate: the same seed, the same requests.")
@click.option("--forever", is_flag=True, help="With --generate: go on until stopped.")
@click.option("--speed", default=1.0, show_default=True, type=RATE, help="Speeds arrivals up.")
@click.option("--limit", type=click.IntRange(1), help="Send this many requests at most (--generate: 1000).")
@click.option("--max-tokens", default=1000, show_default=True, type=click.IntRange(1), help="Of each request.")
@click.option("--url", help="Base URL of the gateway.  [default: this machine's, http://127.0.0.1:8080/v1]")
@click.option("--model", help="Model to ask for.  [default: the demo's]")
@click.option(
    "--key-file",
    "keys",
    type=secret_of_file,
    metavar="FILE",
    help="File with an API key a line, which take turns; - for standard input.  [default: the demo's]",
)
@click.option("--wait", is_flag=True, help="Wait until the gateway is ready.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def replay(
    trace_file: Path | None,
    generate: str | None,
    rate: float,
    seed: int,
    forever: bool,
    speed: float,
    limit: int | None,
    max_tokens: int,
    url: str | None,
    model: str | None,
    keys: str | None,
    wait: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Send a trace's requests through the gateway at the times it says (columns TIMESTAMP, ContextTokens,
    GeneratedTokens; Azure's format).

    Prompts are random token ids of the right length; the true output length travels in a field that simulated engines
    obey and the gateway does not read. --speed scales arrivals only: engines stay in real time.

    \b
    greenserve replay AzureLLMInferenceTrace_conv.csv --speed 4 --limit 500
    greenserve replay --generate azure-conv-like --rate 3 --limit 100
    """
    config = env.read()
    found = summary(config)
    if (trace_file is None) == (generate is None):
        raise click.UsageError("give a trace file or --generate azure-conv-like, one of the two")
    if forever and trace_file:
        raise click.UsageError("--forever goes with --generate")
    if trace_file is None and limit is None and not forever:
        limit = 1000
    target = Target(
        url=(url or found["gateway"]).rstrip("/"),
        model=model or found["model"],
        keys={f"key-{n}": key for n, key in enumerate((keys or "").split(), 1)}
        or demo_credentials(config).get("api_keys", {}),
    )
    if not target.keys or not target.model:
        fail("no demo runs here to take keys and model from: give --key-file and --model (and --url)")
    requests, total = _requests(trace_file, rate, seed, None if forever else limit)
    if wait:
        _wait_ready(target.url)
    show = not (quiet or as_json)
    result = _send(target, requests, speed=speed, limit=limit, max_tokens=max_tokens, total=total if show else None)
    _print_result(result, as_json)
    if result.ok < result.sent:
        raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    model: str
    keys: dict[str, str]


def _requests(
    trace_file: Path | None, rate: float, seed: int, limit: int | None
) -> tuple[Iterator[TraceRequest], int | None]:
    """Returns the requests, and how many there will be where that is known."""
    from core.simulator.workload import TraceError, azure_conv_like, read_azure_trace

    if trace_file is None:
        return azure_conv_like(seed, rate), limit
    try:
        rows = read_azure_trace(trace_file)
    except TraceError as error:
        fail(str(error))
    return iter(rows), min(len(rows), limit or len(rows))


def is_ready(url: str) -> bool:
    """Says whether the gateway of base URL `url` answers that it can serve."""
    try:
        with urllib.request.urlopen(url.removesuffix("/v1") + "/ready", timeout=5):
            return True
    except OSError:
        return False


def _wait_ready(url: str) -> None:
    """Blocks until the gateway of base URL `url` says that it can serve."""
    while not is_ready(url):
        time.sleep(WAIT_EVERY_S)


def _send(
    target: Target,
    requests: Iterator[TraceRequest],
    *,
    speed: float,
    limit: int | None,
    max_tokens: int,
    total: int | None,
) -> ReplayResult:
    """Runs the replay. The first Ctrl-C lets what is under way end, the second does not."""
    from pools.load_generator import replay as run_replay

    async def run(advance: Callable[[ReplayProgress], None] | None) -> ReplayResult:
        stop, task = asyncio.Event(), asyncio.current_task()

        def interrupt() -> None:
            if stop.is_set() and task:
                task.cancel()
            stop.set()

        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
        return await run_replay(
            requests,
            target.url,
            target.keys,
            target.model,
            speed=speed,
            limit=limit,
            max_tokens=max_tokens,
            on_progress=advance,
            stop=stop,
        )

    with _progress(total) as advance:
        try:
            return asyncio.run(run(advance))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


@contextlib.contextmanager
def _progress(total: int | None) -> Iterator[Callable[[ReplayProgress], None] | None]:
    """Shows finished requests on stderr as a bar, or nothing where `total` is unknown."""
    if total is None:
        yield None
        return
    with bar() as progress:
        task = progress.add_task("requests", total=total)

        def advance(at: ReplayProgress) -> None:
            label = f"requests ({at.failed} failed)" if at.failed else "requests"
            progress.update(task, completed=at.ok + at.failed, description=label)

        yield advance


def bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def _print_result(result: ReplayResult, as_json: bool) -> None:
    values: dict[str, Any] = asdict(result)
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    for name, value in values.items():
        click.echo(f"{name:16} {_in_words(value)}")


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(part)}" for name, part in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "unknown" if value is None else str(value)


@click.group()
def trace() -> None:
    """Fetch public traces."""


@trace.command()
@click.argument("name", type=click.Choice(sorted(PUBLIC_TRACES)))
@click.option("--out", type=click.Path(path_type=Path), help="File to write.  [default: NAME.csv here]")
@click.option("--json", "as_json", is_flag=True, help="Print what was fetched as JSON.")
def fetch(name: str, out: Path | None, as_json: bool) -> None:
    """Download a public trace over HTTPS and check it against its known SHA-256."""
    public, path = PUBLIC_TRACES[name], out or Path(f"{name}.csv")
    draft = path.with_name(f".{path.name}.part")
    try:
        digest = _download(public, draft, show=not as_json and sys.stderr.isatty())
        if digest != public.sha256:
            fail(f"{public.url} is not the file we know (SHA-256 {digest}, expected {public.sha256}): not kept")
        draft.replace(path)
    except urllib.error.URLError as error:
        fail(f"cannot fetch {public.url}: {error.reason}; is there a network?")
    except OSError as error:
        fail(f"cannot fetch {public.url} to {path}: {error.strerror or error}")
    finally:
        draft.unlink(missing_ok=True)
    fetched = {"name": name, "path": str(path), "bytes": path.stat().st_size, "sha256": digest}
    fetched["licence"] = public.licence
    if as_json:
        click.echo(json.dumps(fetched, indent=2))
    else:
        click.echo(f"{path}: {fetched['bytes']} bytes, SHA-256 {digest} as known. Licence: {public.licence}.")


def _download(public: PublicTrace, draft: Path, *, show: bool) -> str:
    """Streams the file to `draft` and returns its SHA-256 in hex. Raises OSError."""
    sha256 = hashlib.sha256()
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(bar()) if show else None
        task = progress.add_task("bytes", total=public.bytes) if progress else None
        answer = stack.enter_context(urllib.request.urlopen(public.url, timeout=30))
        file = stack.enter_context(draft.open("wb"))
        size = 0
        while chunk := answer.read(65536):
            size += len(chunk)
            if size > DOWNLOAD_LIMIT_BYTES:
                raise OSError(f"it is larger than {DOWNLOAD_LIMIT_BYTES >> 20} MiB")
            sha256.update(chunk)
            file.write(chunk)
            if progress and task is not None:
                progress.update(task, completed=size)
    return sha256.hexdigest()
