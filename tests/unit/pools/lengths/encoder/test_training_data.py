"""Prompts and lengths are read from a file of each kind, and split so that no prompt is in two parts."""

from __future__ import annotations

import gzip

import numpy as np
import polars
import pytest

from pools.lengths.encoder.length_classes import Classes, classes
from pools.lengths.encoder.training_data import BadData, LengthData, read, split

FRAME = polars.DataFrame({"prompt": [f"prompt {n}, of several" for n in range(120)], "tokens": list(range(1, 121))})


def _csv_gz(path):
    path.write_bytes(gzip.compress(FRAME.write_csv().encode()))


WRITERS = {
    "rows.csv": FRAME.write_csv,
    "rows.csv.gz": _csv_gz,
    "rows.parquet": FRAME.write_parquet,
    "rows.jsonl": FRAME.write_ndjson,
}


@pytest.mark.parametrize("name", WRITERS)
def test_file_of_each_kind_is_read_alike(tmp_path, name):
    WRITERS[name](tmp_path / name)
    found = read(tmp_path / name, "prompt", "tokens")
    assert list(found.prompts) == FRAME["prompt"].to_list()
    assert found.tokens.tolist() == FRAME["tokens"].to_list()
    assert len(found.sha256) == 64


def test_rows_without_prompt_or_length_are_left_out(tmp_path):
    rows = "".join(f'"{prompt}",{tokens}\n' for prompt, tokens in [("", 5), ("x", ""), ("y", 0)])
    (tmp_path / "rows.csv").write_text(FRAME.write_csv() + rows)
    assert len(read(tmp_path / "rows.csv", "prompt", "tokens").prompts) == 120


@pytest.mark.parametrize(
    ("name", "text", "length", "reason"),
    [
        ("rows.csv", "question", "tokens", "--text: .*no column 'question'; it has prompt, tokens"),
        ("rows.csv", "prompt", "length", "--length: .*no column 'length'"),
        ("rows.csv", "prompt", "prompt", "cannot be read as text and whole numbers"),
        ("rows.txt", "prompt", "tokens", "ends in none of"),
        ("none.csv", "prompt", "tokens", "there is no file"),
        ("false.parquet", "prompt", "tokens", "cannot be read"),
        ("few.csv", "prompt", "tokens", "has 50 rows .*; 100 are needed"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, text, length, reason):
    FRAME.write_csv(tmp_path / "rows.csv")
    FRAME.head(50).write_csv(tmp_path / "few.csv")
    for other in ("rows.txt", "false.parquet"):
        (tmp_path / other).write_text("nothing")
    with pytest.raises(BadData, match=reason):
        read(tmp_path / name, text, length)


def test_no_prompt_is_in_two_parts_and_the_seed_decides():
    data = LengthData(tuple(f"prompt {n % 100}" for n in range(400)), np.arange(1, 401))
    parts = split(data, seed=3)
    train, stop, test = ({*part.prompts} for part in (parts.train, parts.stop, parts.test))
    assert not train & stop | train & test | stop & test
    assert [len(part) for part in (train, stop, test)] == [70, 15, 15]
    assert sum(len(part.prompts) for part in (parts.train, parts.stop, parts.test)) == 400
    assert split(data, seed=3).test.prompts == parts.test.prompts != split(data, seed=4).test.prompts


def test_borders_are_quantiles_and_each_class_holds_its_upper_border():
    found = classes(np.arange(1, 101))
    assert found == Classes((20, 40, 60, 80), 90.5)
    assert found.of(np.asarray([1, 20, 21, 80, 81, 5000])).tolist() == [0, 0, 1, 3, 4, 4]


def test_lengths_that_are_too_alike_are_refused():
    with pytest.raises(ValueError, match="too alike for 5 classes"):
        classes(np.asarray([7] * 90 + [8] * 30))
