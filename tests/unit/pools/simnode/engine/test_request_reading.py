"""Bodies of vLLM's API: what is understood, what is refused and how."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pools.simnode.engine import generated_text
from pools.simnode.engine.request_reading import Ask, RequestError, read_chat, read_completion

MODEL = "Llama3-70B"
REMOTE = {
    "do_remote_prefill": True,
    "remote_block_ids": [[1]],
    "remote_engine_id": "a",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 8000,
}


def completion(**body: Any) -> Ask:
    return read_completion(json.dumps({"model": MODEL, "prompt": "hello", **body}).encode(), [MODEL], 100)


def chat(**body: Any) -> Ask:
    messages = [{"role": "user", "content": "hello"}]
    return read_chat(json.dumps({"model": MODEL, "messages": messages, **body}).encode(), [MODEL], 100)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("hello", 2),  # 5 bytes
        ("", 1),
        ("üü", 1),  # 4 bytes
        ([5, 6, 7], 3),
        ([[5, 6, 7, 8]], 4),
        (["hello wide world"], 4),
    ],
)
def test_prompt_tokens_are_counted_when_the_prompt_has_any_of_the_shapes(prompt: object, tokens: int) -> None:
    assert completion(prompt=prompt).prompt_tokens == tokens


def test_prompt_tokens_of_a_chat_count_contents_and_four_a_message() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    ]
    assert chat(messages=messages).prompt_tokens == 2 + 4 + 2 + 4


@pytest.mark.parametrize(
    ("true", "limit", "output", "finish"), [(7, 20, 7, "stop"), (20, 20, 20, "stop"), (30, 20, 20, "length")]
)
def test_output_is_the_given_length_within_max_tokens_when_a_trace_gives_it(
    true: int, limit: int, output: int, finish: str
) -> None:
    ask = completion(max_tokens=limit, vllm_xargs={"sim_output_tokens": true})
    assert (ask.output_tokens, ask.finish) == (output, finish)


def test_output_fills_max_tokens_when_eos_is_ignored() -> None:
    ask = completion(max_tokens=33, ignore_eos=True, vllm_xargs={"sim_output_tokens": 2})
    assert (ask.output_tokens, ask.finish) == (33, "length")


def test_output_is_made_up_from_the_prompt_when_nothing_tells_it() -> None:
    def asks(limit: int) -> list[Ask]:
        bodies = [{"model": MODEL, "prompt": f"prompt {n}", "max_tokens": limit} for n in range(30)]
        return [read_completion(json.dumps(body).encode(), [MODEL], 2000) for body in bodies]

    assert asks(1000) == asks(1000)
    assert all(1 <= ask.output_tokens <= 512 and ask.finish == "stop" for ask in asks(1000))
    assert len({ask.output_tokens for ask in asks(1000)}) > 5
    short = [(min(ask.output_tokens, 50), "stop" if ask.output_tokens <= 50 else "length") for ask in asks(1000)]
    assert [(ask.output_tokens, ask.finish) for ask in asks(50)] == short  # where the model stops is its own affair


def test_defaults_are_those_of_the_api_when_max_tokens_is_left_out() -> None:
    assert completion(ignore_eos=True).output_tokens == 16
    assert chat(ignore_eos=True).output_tokens == 100 - 6
    assert chat(ignore_eos=True, max_tokens=9).output_tokens == 9
    assert chat(ignore_eos=True, max_completion_tokens=8, max_tokens=9).output_tokens == 8


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "gpt-4"}, 404, "model"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": -5}, 400, "max_tokens"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"max_tokens": 99}, 400, "max_tokens"),  # 2 of the prompt and 99 exceed 100
        ({"max_tokens": 10**30}, 400, "max_tokens"),
        ({"prompt": list(range(100))}, 400, "prompt"),  # no room for a token of output
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [[]]}, 400, "prompt"),
        ({"prompt": ["two", "texts"]}, 400, "prompt"),
        ({"prompt": [[1], [2]]}, 400, "prompt"),
        ({"prompt": None}, 400, "prompt"),
        ({"prompt": [1, "a"]}, 400, "prompt"),
        ({"n": 2}, 400, "n"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"prompt": [-1]}, 400, "prompt"),
        ({"prompt": [10**30]}, 400, "prompt"),
        ({"priority": "high"}, 400, "priority"),
        ({"kv_transfer_params": {"prefill_tokens": 1}}, 400, "kv_transfer_params"),
        ({"kv_transfer_params": {"do_remote_decode": True, "prefill_tokens": 2}}, 400, "kv_transfer_params"),
        ({"kv_transfer_params": {"do_remote_decode": True, "chunk_tokens": 0}}, 400, "kv_transfer_params"),
        ({"kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [[1]]}}, 400, "kv_transfer_params"),
        ({"kv_transfer_params": {**REMOTE, "remote_host": "10.0.0.1"}}, 400, "kv_transfer_params"),
        ({"kv_transfer_params": {**REMOTE, "remote_host": "example.org"}}, 400, "kv_transfer_params"),
        ({"kv_transfer_params": {**REMOTE, "remote_port": 0}}, 400, "kv_transfer_params"),
        ({"vllm_xargs": {"sim_output_tokens": 0}}, 400, "vllm_xargs"),
        ({"vllm_xargs": {"sim_output_tokens": 1.5}}, 400, "vllm_xargs"),
    ],
)
def test_completion_is_refused_when_a_field_is_bad(body: dict[str, object], status: int, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        completion(**body)
    assert (caught.value.status, caught.value.param) == (status, param)


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": [{"type": "image_url"}]}], "hi", None])
def test_chat_is_refused_when_its_messages_are_bad(messages: object) -> None:
    with pytest.raises(RequestError) as caught:
        chat(messages=messages)
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": "no model"}'])
def test_body_is_refused_when_it_is_no_request(data: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        read_completion(data, [MODEL], 100)
    assert caught.value.status == 400


def test_rest_of_an_answer_is_asked_for_when_the_prompt_ends_with_its_beginning() -> None:
    whole = completion(max_tokens=30, vllm_xargs={"sim_output_tokens": 12})
    assert (whole.output_tokens, whole.finish) == (12, "stop")
    begun = "hello" + generated_text.text_of(whole.prompt.seed, 5)
    rest = completion(prompt=begun, max_tokens=25, vllm_xargs={"sim_output_tokens": 12})
    assert (rest.prompt_tokens, rest.output_tokens, rest.finish) == (whole.prompt_tokens + 5, 7, "stop")
    ids = [*whole.prompt.ids(), *generated_text.ids_of(whole.prompt.seed, 5)]
    assert completion(prompt=ids, max_tokens=25, vllm_xargs={"sim_output_tokens": 12}).output_tokens == 7


def test_chat_goes_on_with_its_last_message_when_it_is_asked_to() -> None:
    seed = chat().prompt.seed
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": generated_text.text_of(seed, 3)}]
    rest = chat(messages=messages, continue_final_message=True, add_generation_prompt=False, ignore_eos=True)
    assert (rest.prompt.written, rest.prompt_tokens) == (3, chat().prompt_tokens + 3)
    assert chat(messages=messages).prompt.written == 0
    with pytest.raises(RequestError, match="Cannot set both"):
        chat(messages=messages, continue_final_message=True)


def test_part_of_a_prompt_is_all_that_is_computed_when_prefill_tokens_say_so() -> None:
    ask = completion(prompt=[1] * 50, kv_transfer_params={"do_remote_decode": True, "prefill_tokens": 20})
    assert (ask.prompt_tokens, ask.prefill_tokens, ask.output_tokens, ask.finish) == (50, 20, 0, "length")


def test_transfer_parameters_of_vllm_are_understood_when_they_come_back_as_they_were_given() -> None:
    given = {**REMOTE, "do_remote_decode": False, "remote_num_tokens": 17, "tp_size": 2, "remote_blocks_expiry_time": 1}
    assert completion(kv_transfer_params=given).transfer.fetches
    assert not completion(kv_transfer_params={**given, "remote_block_ids": []}).transfer.fetches
    assert not completion(kv_transfer_params={"do_remote_decode": True, "remote_host": None}).transfer.fetches
