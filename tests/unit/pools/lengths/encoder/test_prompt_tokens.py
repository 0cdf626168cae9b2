"""Prompts become bounded chunks of tokens; of long ones head and tail are read."""

from __future__ import annotations

import pytest

from pools.lengths.encoder.prompt_tokens import PromptTokens, new_tokenizer
from pools.lengths.encoder.version_files import UnusableVersion

WORDS = 300  # nearly bytes alone: each letter is a token
CLS, SEP = 1, 2


@pytest.fixture(scope="module")
def raw():
    return new_tokenizer(["a b c"], WORDS)


def test_prompt_that_fits_is_one_chunk_between_special_tokens(raw):
    ((chunk,),) = PromptTokens(raw, 16, 1).chunks(["abc"])
    assert (chunk[0], chunk[-1]) == (CLS, SEP)
    assert len(chunk) == 6  # a space is put before the first word


def test_empty_prompt_has_a_chunk(raw):
    assert PromptTokens(raw, 16, 4).chunks([""]) == [[[CLS, SEP]]]


def test_of_a_long_prompt_head_and_tail_are_read(raw):
    tokens = PromptTokens(raw, 12, 1)
    ((long,),) = tokens.chunks(["begin" + "x" * 5000 + "end!!"])
    ((head,), (tail,)) = tokens.chunks(["begin", "xend!!"])
    assert len(long) == 12
    assert long[:6] == head[:6]
    assert long[-6:] == tail[-6:]


def test_text_of_any_length_costs_no_more_tokens_than_are_kept(raw):
    tokens = PromptTokens(raw, 12, 2)
    assert sum(map(len, tokens.chunks(["y" * 10**6])[0])) == 24


def test_chunks_are_full_but_the_last(raw):
    (chunks,) = PromptTokens(raw, 10, 4).chunks(["z" * 19])  # 20 tokens with the space
    assert [len(chunk) for chunk in chunks] == [10, 10, 6]


def test_batches_have_prompts_of_equally_many_chunks_and_lose_none(raw):
    tokens = PromptTokens(raw, 10, 4)
    chunked = tokens.chunks(["z" * length for length in (3, 19, 1, 25, 5, 2)])
    batches = list(tokens.batches(chunked, 2))
    assert sorted(int(row) for batch in batches for row in batch.rows) == list(range(6))
    for batch in batches:
        assert len(batch.rows) <= 2
        assert {len(chunked[row]) for row in batch.rows} == {batch.ids.shape[1]}
        for place, row in enumerate(batch.rows):
            kept = [ids[seen == 1].tolist() for ids, seen in zip(batch.ids[place], batch.mask[place], strict=True)]
            assert kept == chunked[row]


def test_little_of_a_batch_is_padded_when_prompts_differ_in_length(raw):
    tokens = PromptTokens(raw, 64, 1)
    chunked = tokens.chunks(["z" * length for length in (60, 3, 10, 4, 58, 11, 2)])
    alike = [sorted(batch.rows.tolist()) for batch in tokens.batches(chunked, 16)]
    assert alike == [[1, 3, 6], [2, 5], [0, 4]]
    (one,) = tokens.batches(chunked, 16, range(7))  # as training draws them
    assert one.rows.tolist() == list(range(7))


def test_text_of_any_language_is_read(raw):
    assert len(PromptTokens(raw, 64, 1).chunks(["Wie lang? 多长 🙂"])[0][0]) > 10


def test_file_that_is_no_tokenizer_is_refused():
    with pytest.raises(UnusableVersion, match=r"tokenizer\.json cannot be used"):
        PromptTokens(b"{}", 16, 1)
