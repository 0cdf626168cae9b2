"""Tokenizers in processes of their own: named by model cards, changed, missing, broken, killed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from core.ports import AdapterError, PermanentError
from pools.gateway.classify.model_tokenizers import ModelTokenizers, TokenizerProcess
from pools.gateway.classify.prompt_tokens import TokenizerThread
from tests.fakes.fleet import MODEL
from tests.unit.pools.gateway.classify.test_classifier import ASKED
from tests.unit.pools.gateway.conftest import Start, completion, until

LOAD_S = 60.0  # a process starts, on a machine that may be busy
NEAR = replace(ASKED, chat=False, text_bytes=740)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Counts words."""
    package = pytest.importorskip("tokenizers")
    tokenizer = package.Tokenizer(package.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = package.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def thread() -> Iterator[TokenizerThread]:
    thread = TokenizerThread({}, deadline_s=LOAD_S)
    yield thread
    thread.close()


@pytest.fixture
def tokenizers(thread: TokenizerThread) -> Iterator[ModelTokenizers]:
    tokenizers = ModelTokenizers({}, thread)
    yield tokenizers
    tokenizers.close()


def test_texts_are_counted_when_the_process_has_read_the_file(file: Path) -> None:
    tokenizer = TokenizerProcess(file)
    assert tokenizer.count(["a b c", "", "b"]) == 4
    assert tokenizer.count(["über\n" * 3000]) == 3000
    assert not tokenizer.dead
    tokenizer.close()
    assert tokenizer.dead
    with pytest.raises((AdapterError, ValueError)):
        tokenizer.count(["a"])


def test_file_that_is_missing_or_no_tokenizer_is_refused_with_its_name(file: Path) -> None:
    with pytest.raises(PermanentError, match=r"there is no file .*nowhere"):
        TokenizerProcess(file.with_name("nowhere.json"))
    file.write_text("{}")
    with pytest.raises(PermanentError, match=str(file)):
        TokenizerProcess(file)


async def test_service_is_counted_once_its_card_names_a_file_and_no_more_when_it_does_not(
    file: Path, thread: TokenizerThread, tokenizers: ModelTokenizers
) -> None:
    tokenizers.keep({"chat": "", "other": ""})
    assert not thread.serves("chat")
    began_s = time.monotonic()
    tokenizers.keep({"chat": str(file), "other": ""})
    assert time.monotonic() - began_s < 1.0, "nothing is waited for"
    await until(lambda: thread.serves("chat"), LOAD_S)
    tokenizers.keep({"chat": str(file), "other": ""})
    assert await thread.count("chat", ["a b"], 3) == 2
    assert not thread.serves("other")
    tokenizers.keep({"chat": "", "other": ""})
    assert not thread.serves("chat")


async def test_it_is_started_again_when_its_process_was_killed(
    file: Path, thread: TokenizerThread, tokenizers: ModelTokenizers
) -> None:
    tokenizers.keep({"chat": str(file)})
    await until(lambda: thread.serves("chat"), LOAD_S)
    first = tokenizers._loaded["chat"]
    first._process.kill()
    assert await thread.count("chat", ["a b"], 3) is None, "the estimate stands"
    assert thread.failed == 1
    await until(lambda: first.dead)
    tokenizers.keep({"chat": str(file)})
    await until(lambda: thread.serves("chat"), LOAD_S)
    assert await thread.count("chat", ["a b"], 3) == 2


async def test_missing_file_is_said_once_and_the_estimate_stands(
    tmp_path: Path, thread: TokenizerThread, tokenizers: ModelTokenizers, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            tokenizers.keep({"chat": str(tmp_path / "nowhere.json")})
            await until(lambda: bool(caplog.records), LOAD_S)
    (record,) = caplog.records
    assert "chat are estimated" in record.message
    assert "nowhere.json" in record.message
    assert not thread.serves("chat")


async def test_file_of_the_command_line_goes_before_the_cards(file: Path, thread: TokenizerThread) -> None:
    tokenizers = ModelTokenizers({"chat": file}, thread)
    tokenizers.keep({"chat": "/nowhere.json"})
    await until(lambda: thread.serves("chat"), LOAD_S)
    tokenizers.close()
    assert not thread.serves("chat")


async def test_prompt_near_a_border_is_counted_when_the_fleet_names_a_tokenizer(file: Path, start: Start) -> None:
    bench = await start()
    fleet = bench.fleet.fleet()
    named = msgspec.structs.replace(fleet.services[0], tokenizer=str(file))
    fleet = msgspec.structs.replace(fleet, services=[named, *fleet.services[1:]])
    runtime = bench.server.runtime
    assert runtime.classifier.tokenizers is not None
    runtime.classifier.tokenizers.deadline_s = LOAD_S

    def applied() -> bool:
        runtime.fleet.apply(fleet, bench.fleet.states(), time.monotonic())
        return runtime.classifier.tokenizers is not None and runtime.classifier.tokenizers.serves(MODEL)

    await until(applied, LOAD_S)
    async with bench.post(completion(prompt="b " * 370)) as response:  # some 185 tokens, by the estimate
        assert response.status == 200
    await bench.row()
    assert runtime.classifier.tokenizers.answered == 1
