"""The text of simulated engines: greedy, so that the parts of a split answer read as one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pools.simnode.engine import generated_text

TEXTS = st.text(max_size=60)


@given(text=TEXTS, written=st.integers(1, 200), more=st.integers(1, 30))
@settings(deadline=None)
def test_text_goes_on_where_it_was_cut_when_it_comes_back_as_a_prompt(text: str, written: int, more: int) -> None:
    first = generated_text.of_text(text)
    whole = generated_text.text_of(first.seed, written + more)
    cut = generated_text.of_text(text + generated_text.text_of(first.seed, written))
    if first.asked == generated_text.of_text("").asked:
        return  # nothing but zero bytes: such an answer is a prompt of its own
    assert cut.tokens == first.tokens + written
    assert cut.origin == first.origin
    assert generated_text.text_of(cut.seed, more) == whole[len(generated_text.text_of(first.seed, written)) :]


@given(ids=st.lists(st.integers(0, 120_000), min_size=1, max_size=40), written=st.integers(1, 200))
@settings(deadline=None)
def test_ids_go_on_where_they_were_cut_when_they_come_back_as_a_prompt(ids: list[int], written: int) -> None:
    first = generated_text.of_ids(ids)
    cut = generated_text.of_ids([*ids, *generated_text.ids_of(first.seed, written)])
    assert (cut.tokens, cut.origin) == (first.tokens + written, first.origin)
    assert cut.ids() == [*ids, *generated_text.ids_of(first.seed, written)]
    assert generated_text.ids_of(cut.seed, 3) == generated_text.ids_of(first.seed, written + 3)[written:]


@given(text=TEXTS.filter(bool))
def test_ids_of_a_text_lead_to_the_same_answer_when_they_are_the_prompt(text: str) -> None:
    prompt = generated_text.of_text(text)
    assert generated_text.of_ids(prompt.ids()).seed == prompt.seed


def test_chat_and_its_ids_lead_to_the_same_answer() -> None:
    prompt = generated_text.of_chat([("system", "be brief"), ("user", "hello")], continues=False)
    assert generated_text.of_ids(prompt.ids()).seed == prompt.seed
    assert prompt.seed != generated_text.of_chat([("user", "be brief"), ("user", "hello")], continues=False).seed


@pytest.mark.parametrize("end", [" water", " the winter", " over", " Sea", "sea"])
def test_prompt_is_taken_whole_when_it_only_looks_like_an_answer(end: str) -> None:
    for number in range(20):
        text = f"prompt {number} about{end}"
        prompt = generated_text.of_text(text)
        if prompt.written:  # one in 44: the model would have said just that
            rest = text[: text.rindex(" ")]
            assert generated_text.text_of(generated_text.of_text(rest).seed, 1) == text[text.rindex(" ") :]
        else:
            assert prompt.tokens == -(-len(text) // 4)
