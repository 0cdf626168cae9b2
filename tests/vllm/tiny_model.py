"""Makes a model small enough for tests: Llama's shape with random weights, and a tokenizer trained on the spot.

Run by the Python of vLLM's own environment: `python tests/vllm/tiny_model.py FOLDER [tiny | small]`, in ten seconds.
The small one (26 million parameters) is for timing: its iterations take longer than what surrounds them.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

VOCABULARY = 2048
LONGEST_TOKENS = 4096
_SIZES = {  # hidden, intermediate, layers, heads, heads of the KV cache, width of the weights
    # wide enough that a greedy answer is no single token over and over
    "tiny": (128, 256, 2, 4, 2, 0.2),
    "small": (512, 1408, 8, 8, 4, 0.05),
}
_ONSETS = list("bcdfghklmnprstw")
_VOWELS = list("aeiou")
_CODAS = ["", *"nrst"]
_SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make(folder: Path, size: str = "tiny") -> None:
    """Writes config, weights and tokenizer as `from_pretrained` reads them. The same each time: the seed is fixed."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=_SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    syllables = ["".join(parts) for parts in itertools.product(_ONSETS, _VOWELS, _CODAS)]
    words = (" ".join((one, one + two)) for one, two in itertools.product(syllables, syllables[::7]))
    tokenizer.train_from_iterator(words, trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(folder)

    torch.manual_seed(0)
    hidden, intermediate, layers, heads, kv_heads, width = _SIZES[size]
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=LONGEST_TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        initializer_range=width,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]), *sys.argv[2:])
