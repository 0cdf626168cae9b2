"""What a gateway has learned, over a restart; and what is left aside."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from core.predictors.boosted_lengths import FEATURES, RECORDS, LengthRecords, LengthTrees
from core.predictors.output_length import TENANT_BUCKETS
from pools.gateway.classify.classifier import Classifier
from pools.gateway.classify.learned import VERSION, Learned
from tests.unit.pools.gateway.classify.test_classifier import ASKED, SERVICE, ended
from tests.unit.pools.gateway.conftest import Start, completion, until

TREES = LengthTrees(3.0, (0,), (0, -1, -1), (150.0, 0.0, 0.0), (2, 0, 0), (0.0, 0.5, 1.5), {7: 4.5}, 4.0, 600)


def taught(requests: int = 300) -> Classifier:
    """A classifier that has seen requests of three tenants, in texts and chats."""
    rng, classifier = random.Random(1), Classifier()
    for _ in range(requests):
        size, tenant, chat = rng.randrange(100, 9000), rng.randrange(3), rng.random() < 0.5
        asked = replace(
            ASKED, text_bytes=size, tenant_id=tenant, chat=chat, messages=rng.randrange(1, 9), detailed=True
        )
        ended(classifier, asked, rng.randrange(1, 800), prompt=round(size * 0.21) + 1)
    return classifier


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def guesses(classifier: Classifier) -> list[object]:
    asked = [replace(ASKED, text_bytes=n, tenant_id=n % 4, chat=n % 2 == 0) for n in range(50, 9000, 331)]
    return [classifier.classify(SERVICE, one) for one in asked]


async def test_predictions_are_the_same_when_what_was_learned_is_recalled(tmp_path: Path) -> None:
    before = taught()
    await Learned(tmp_path, "gateway", before).save()
    after = Classifier()
    assert guesses(after) != guesses(before)
    assert Learned(tmp_path, "gateway", after).recall()
    assert guesses(after) == guesses(before)
    assert after.boosted.kept("chat") == before.boosted.kept("chat")
    for classifier in (before, after):
        ended(classifier, replace(ASKED, detailed=True), 77, prompt=421)
    assert guesses(after) == guesses(before), "and it learns on from there"


async def test_trees_are_in_force_and_not_learned_again_at_once_when_recalled(tmp_path: Path) -> None:
    before = taught(600)
    before.boosted.records("chat")  # learning has begun
    before.boosted.install("chat", TREES)
    ended(before, replace(ASKED, detailed=True), 77, prompt=421)
    await Learned(tmp_path, "gateway", before).save()
    after = Classifier()
    Learned(tmp_path, "gateway", after).recall()
    assert after.boosted.trees("chat") == TREES
    assert not after.boosted.due("chat")
    assert after.boosted.kept("chat")[1] == 1


async def test_newest_file_of_the_others_is_taken_when_there_is_none_of_its_own(tmp_path: Path) -> None:
    await Learned(tmp_path, "gateway.1", taught(100)).save()
    newer = taught()
    await Learned(tmp_path, "gateway.2", newer).save()
    (tmp_path / "gateway.2.learned.jsonl").touch()
    third = Classifier()
    assert Learned(tmp_path, "gateway.3", third).recall()
    assert guesses(third) == guesses(newer)
    assert not Learned(tmp_path / "elsewhere", "gateway.1", Classifier()).recall()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda data: b"", "no head"),
        (lambda data: data[:-20], "truncated"),
        (lambda data: b"\x00\xff" + data, "malformed"),
        (lambda data: data.replace(b'"version":%d' % VERSION, b'"version":99', 1), "version 99"),
        (lambda data: data.replace(b'"text_bytes"', b'"letters"', 1), "other features"),
        (lambda data: data + b'{"kind":"outputs","service":"s","tenant":null,"octave":3,"tokens":[0]}\n', "no outputs"),
        (lambda data: data + b'{"kind":"records","service":"s","since":null,"rows":"AAAA"}\n', ""),
        (lambda data: data + b'{"kind":"dreams","service":"s"}\n', "dreams"),
    ],
)
async def test_file_is_left_aside_with_a_word_when_it_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: object, why: str
) -> None:
    await Learned(tmp_path, "gateway", taught(20)).save()
    (path,) = files(tmp_path)
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
    learned = Learned(tmp_path, "gateway", classifier := taught(5))
    with caplog.at_level(logging.WARNING):
        assert not learned.recall()
    (record,) = caplog.records
    assert "left aside" in record.message
    assert why in record.message
    await learned.save()
    assert Learned(tmp_path, "gateway", Classifier()).recall(), "the next one is whole again"
    assert guesses(classifier)


async def test_nothing_is_written_when_nothing_is_new(tmp_path: Path) -> None:
    learned = Learned(tmp_path, "gateway", Classifier())
    await learned.save()
    assert not files(tmp_path), "nothing has been learned yet"
    learned = Learned(tmp_path, "gateway", classifier := taught(20))
    await learned.save()
    (path,) = files(tmp_path)
    path.unlink()
    await learned.save()
    assert not path.exists()
    ended(classifier, replace(ASKED, detailed=True), 77, prompt=421)
    await learned.save()
    assert path.exists()


async def test_a_failing_disk_is_a_line_in_the_log_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learned = Learned(tmp_path / "state", "gateway", taught(20))
    (tmp_path / "state").rmdir()
    await learned.save()
    assert "cannot be kept" in caplog.text


async def test_loop_goes_on_while_much_is_copied(tmp_path: Path) -> None:
    """All that can be held of one service: 8,192 records, 2,048 buckets of tenants with 512 outputs each."""
    classifier = Classifier()
    records = [[float(n)] * len(FEATURES) for n in range(64)]
    boosted, history = classifier.boosted, classifier.history
    kept = boosted._records["chat"] = LengthRecords()
    for n in range(RECORDS):
        kept.add(records[n % 64], n)
    for tenant in range(TENANT_BUCKETS):
        history.restore(("chat", tenant, 9), [1 + n % 700 for n in range(512)])
    turns: list[float] = []

    async def tick() -> None:
        while True:
            turns.append(time.perf_counter())
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    began_s = time.perf_counter()
    lines = await Learned(tmp_path, "gateway", classifier)._copied()
    took_s = time.perf_counter() - began_s
    ticking.cancel()
    assert len(lines) > TENANT_BUCKETS
    gaps = sorted(b - a for a, b in pairwise(turns))
    assert len(gaps) > 20, "it had its turns"
    assert gaps[len(gaps) // 2] < took_s / 10, "and no step was long, as a rule"


async def test_gateway_keeps_what_it_learned_when_it_is_drained_and_started_again(start: Start, tmp_path: Path) -> None:
    bench = await start(state=tmp_path / "state")
    for n in range(5):
        async with bench.post(completion(prompt=f"a text of some length, number {n}" * 9)) as response:
            assert response.status == 200
    await until(lambda: len(bench.rows()) == 5)
    before = bench.server.gateway.classifier.estimator.fits()
    assert before
    await bench.server.stop()
    again = await start(state=tmp_path / "state")
    assert again.server.gateway.classifier.estimator.fits() == before
