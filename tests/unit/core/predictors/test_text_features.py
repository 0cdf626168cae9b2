"""Tests of core.predictors.text_features."""

import numpy as np
import pytest

from core.predictors.text_features import HEAD, TAIL, TextHasher, likeness

SALT = b"0123456789abcdef"


@pytest.fixture(scope="module")
def hasher() -> TextHasher:
    return TextHasher(SALT)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        (" \n\t", 0),
        ("word", 1),
        ("Grüße an Ömer", 3),
        ("why?", 2),
        ("你好吗", 3),
        ("e\u0301te\u0301", 1),
        ("\U0001f600\U0001f600", 2),
        ("\ud800", 0),
    ],
)
def test_words_are_found_in_any_script(hasher: TextHasher, text: str, words: int) -> None:
    grams = hasher.look([text]).grams
    pairs = max(0, words - 1)
    same = 1 if text.startswith("\U0001f600") else 0  # the same word twice
    assert len(grams) == words + pairs - same


def test_case_and_white_space_make_no_difference_and_the_order_of_words_does(hasher: TextHasher) -> None:
    one, other = hasher.look(["Write a  Poem"]), hasher.look(["write a\npoem"])
    assert np.array_equal(one.grams, other.grams)
    assert np.array_equal(one.signature, other.signature)
    assert not np.array_equal(one.grams, hasher.look(["poem a write"]).grams)


def test_hashes_are_others_when_the_salt_is_another(hasher: TextHasher) -> None:
    one, other = hasher.look(["write a poem"]), TextHasher(b"x" * 16).look(["write a poem"])
    assert not set(one.grams.tolist()) & set(other.grams.tolist())
    assert np.array_equal(one.grams, TextHasher(SALT).look(["write a poem"]).grams)


def test_a_salt_is_refused_when_it_can_be_guessed() -> None:
    with pytest.raises(ValueError, match="a salt has 16 bytes or more, not 3"):
        TextHasher(b"abc")


def test_likeness_is_the_share_of_words_and_pairs_that_two_prompts_have_in_common(hasher: TextHasher) -> None:
    words = [f"word{number}" for number in range(60)]
    changed = [*words[:30], "other", *words[31:]]
    one, other = hasher.look([" ".join(words)]), hasher.look([" ".join(changed)])
    shared = len(np.intersect1d(one.grams, other.grams)) / len(np.union1d(one.grams, other.grams))
    assert likeness(one.signature, other.signature) == pytest.approx(shared, abs=0.15)
    assert likeness(one.signature, one.signature) == 1.0
    assert likeness(one.signature, hasher.look(["of something else"]).signature) < 0.1


def test_of_a_long_prompt_only_head_and_tail_count(hasher: TextHasher) -> None:
    head, tail = "a " * (HEAD // 2), " z" * (TAIL // 2)
    one = hasher.look([head + "middle " * 10_000 + tail])
    assert np.array_equal(one.grams, hasher.look([head + "other " * 10_000 + tail]).grams)
    assert len(one.grams) <= 2 * (HEAD + TAIL)
