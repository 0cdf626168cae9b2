"""The predictor's process beside a gateway: it is killed, and nothing changes but where predictions come from."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.predictors.output_length import WARM_UP
from core.predictors.text_predictor import LengthPredictor
from pools.lengths.kept_state import KeptState
from tests.fakes.fleet import MODEL
from tests.unit.pools.gateway.conftest import Bench, Start, completion, pytest_asyncio_loop_factories, start, until

__all__ = ["pytest_asyncio_loop_factories", "start"]

LEARNED = ("text", "memory")
SHORT, LONG = "Answer with one word: is water wet?", "Write a long novel about a river and its boats."


class LengthProcess:
    """A process that a test starts and kills."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self._words = words
        self.process: asyncio.subprocess.Process | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(sys.executable, *self._words)

    async def end(self, how: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(how)
            await self.process.wait()


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[LengthProcess]:
    folder = tmp_path / "lengths"
    own = LengthProcess(folder, "-m", "tests.fakes.text_predictor", str(folder))
    yield own
    await own.end(signal.SIGKILL)


async def said(bench: Bench, prompt: str, tokens: int) -> tuple[str | None, int | None, float | None]:
    """What is on record of a request: source, predicted tokens, and the probability of its class."""
    bench.engine.tokens = tokens
    async with bench.post(completion(prompt=prompt, max_tokens=2_000)) as response:
        assert response.status == 200, await response.text()
        await response.read()
    row = bench.rows()[-1]
    assert (row.status, row.output_tokens) == ("ok", tokens)
    return row.prediction_source, row.predicted_output_tokens, row.class_probability


async def connected(bench: Bench, wanted: bool = True) -> None:
    lengths = bench.server.runtime.classifier.lengths
    assert lengths is not None
    await until(lambda: lengths.connected is wanted, 20.0)


async def test_killing_the_process_changes_nothing_but_where_predictions_come_from(
    start: Start, fake: LengthProcess
) -> None:
    bench = await start(lengths=fake.socket)
    assert await said(bench, "1" * 50, 60) == ("prior", 129, None)
    await fake.start()
    await connected(bench)
    assert (await said(bench, "2" * 40, 60))[0] == "prior"
    source, _, probability = await said(bench, "3" * 40, 60)  # as long a text, and so the same to the fake
    assert source == "text"
    assert probability == pytest.approx(0.9, abs=0.02)
    await until((fake.folder / "lengths.npz").exists)
    bench.engine.pace_s = 0.01
    under_way = [asyncio.ensure_future(said(bench, f"{n:040}", 60)) for n in range(5)]
    await until(lambda: len(bench.engine.received) >= 8)
    await fake.end(signal.SIGKILL)
    await asyncio.gather(*under_way)
    bench.engine.pace_s = 0.0
    await connected(bench, wanted=False)
    for n in range(WARM_UP):
        assert (await said(bench, f"{n:041}", 60))[0] in ("prior", "history")
    assert (await said(bench, "x" * 40, 60))[:2] == ("history", 60)
    await fake.start()
    await connected(bench)
    assert (await said(bench, "4" * 40, 60))[0] == "text", "what it had learned was kept"
    assert {row.status for row in bench.rows()} == {"ok"}


async def test_the_process_learns_to_tell_prompts_apart_by_their_words(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "lengths"
    own = LengthProcess(
        folder,
        "-m",
        "pools.lengths",
        "--socket",
        str(folder / "s"),
        "--state",
        str(tmp_path / "state"),
        "--data",
        str(tmp_path),
    )
    bench = await start(lengths=own.socket)
    try:
        await own.start()
        await connected(bench)
        for n in range(68):
            await said(bench, f"{LONG} {n}", 300 + n % 50)
            await said(bench, f"{SHORT} {n}", 3 + n % 4)
        source, long, sure = await said(bench, f"{LONG} again", 320)
        assert source in LEARNED
        assert sure is not None
        assert sure > 0.6
        source, short, _ = await said(bench, f"{SHORT} again", 4)
        assert source in LEARNED
        assert short is not None
        assert long is not None
        assert short < 20 < 100 < long
        await own.end(signal.SIGTERM)
        assert own.process is not None
        assert own.process.returncode == 0
        kept = KeptState(tmp_path / "state", LengthPredictor.restored, LengthPredictor).recall()
        assert kept.errors()[MODEL, source].earned
        assert b"novel" not in (tmp_path / "state" / "lengths.npz").read_bytes()
    finally:
        await own.end(signal.SIGKILL)
