"""A model card's description of how its engine is started: the weights, and arguments and variables for vLLM.

A card is written in the control plane and its words end up on command lines of other machines. So only what tunes an
engine can be asked for here; what would run somebody's code or open a door (a chat template's file, custom code of a
model, another host or port) is the business of the machine's operator, who gives it to the agent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

DEFAULT_SHARE = 0.9  # of a GPU's memory: vLLM's
DTYPES = ("auto", "bfloat16", "float16", "float32")

# vLLM's own names without the dashes; True: a value follows. `no-` before a flag is the flag's opposite.
ARGUMENTS: Mapping[str, bool] = {
    "async-scheduling": False,
    "block-size": True,
    "disable-hybrid-kv-cache-manager": False,
    "enable-auto-tool-choice": False,
    "enable-chunked-prefill": False,
    "enable-expert-parallel": False,
    "enable-mfu-metrics": False,
    "enable-prefix-caching": False,
    "enable-sleep-mode": False,
    "enforce-eager": False,
    "gpu-memory-utilization": True,
    "kv-cache-dtype": True,
    "kv-cache-memory-bytes": True,
    "limit-mm-per-prompt": True,
    "max-num-partial-prefills": True,
    "quantization": True,
    "reasoning-parser": True,
    "revision": True,
    "seed": True,
    "tokenizer-mode": True,
    "tool-call-parser": True,
}
VARIABLES = (
    "NCCL_DEBUG",
    "NCCL_P2P_DISABLE",
    "OMP_NUM_THREADS",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_LOGGING_LEVEL",
)
# A name of a repository (owner/name), or a folder of the node.
_WEIGHTS = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*|/[\w./ @+=-]+")


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """`weights`: a Hugging Face id, or a folder on the nodes; empty: nobody said, and the engine cannot be started.

    `arguments` are vLLM's, word by word (`--kv-cache-dtype`, `fp8`). `max_lora_rank`: of LoRA adapters that it is to
    load, `max_loras` at once; 0: it loads none.
    """

    weights: str = ""
    dtype: str = "auto"
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    max_lora_rank: int = 0
    max_loras: int = 1

    def check(self) -> None:
        """Raises ValueError, which names what is wrong and what may be said."""
        if self.weights and (not _WEIGHTS.fullmatch(self.weights) or ".." in self.weights.split("/")):
            raise ValueError(f"weights: '{self.weights}' is neither owner/name nor a folder's absolute path")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: '{self.dtype}' is none of {', '.join(DTYPES)}")
        check_arguments(self.arguments)
        for name, value in self.environment.items():
            if name not in VARIABLES:
                raise ValueError(f"environment: {name} cannot be set here; {', '.join(VARIABLES)} can")
            if not isinstance(value, str) or not value.isprintable():
                raise ValueError(f"environment: {name} needs a line of text")


def check_arguments(words: Sequence[str]) -> None:
    """Raises ValueError unless the words are arguments that a card may give, each with its value or without one."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not isinstance(word, str) or not word.startswith("--"):
            raise ValueError(f"arguments: '{word}' stands where a name like --enforce-eager was expected")
        name, joined, value = word[2:].partition("=")
        takes = ARGUMENTS.get(name)
        if takes is None and name.startswith("no-"):
            takes = False if ARGUMENTS.get(name[3:]) is False else None
        if takes is None:
            raise ValueError(
                f"arguments: --{name} cannot be set on a model card; these can: {', '.join(sorted(ARGUMENTS))}. "
                "Others are given to the node's agent (--vllm-argument)"
            )
        if takes and not joined:
            value = rest.pop(0) if rest and isinstance(rest[0], str) and not rest[0].startswith("--") else ""
        if takes and (not value or not value.isprintable()):
            raise ValueError(f"arguments: --{name} needs a value")
        if not takes and joined:
            raise ValueError(f"arguments: --{name} takes no value")


def memory_share(words: Sequence[str]) -> float:
    """Returns the share of a GPU's memory that an engine takes, by its arguments: the last one counts.

    Of what is no number, vLLM's default: it refuses to start with it.
    """
    share = DEFAULT_SHARE
    for place, word in enumerate(words):
        name, joined, value = word.partition("=")
        if name == "--gpu-memory-utilization":
            try:
                share = float(value if joined else "".join(words[place + 1 : place + 2]))
            except ValueError:
                share = DEFAULT_SHARE
    return share
