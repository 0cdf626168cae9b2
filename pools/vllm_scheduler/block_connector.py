"""Decides which blocks of which requests are handed over, and names them: what KV connectors here have in common.

A request's first part has `kv_transfer_params: {"do_remote_decode": true}`. Each of its blocks is saved as it fills,
prompt and output alike. With `prefill_tokens` the first part ends inside the prompt: the engine is given only so many
of its tokens. It then generates one token, as vLLM always does, which is of no use to anybody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

from . import require
from .block_keys import BlockKeys

require(vllm.__version__)


@dataclass(slots=True)
class Saving:
    """A first part. `blocks`: saved so far."""

    request: Any
    keys: BlockKeys
    blocks: int = 0

    def fresh(self, tokens: int, ids: Sequence[int]) -> list[tuple[str, int]]:
        """Returns the blocks that fill up when `tokens` more are computed, as (key, block)."""
        keys = self.keys.upto(self.request.all_token_ids, self.request.num_computed_tokens + tokens)
        first, self.blocks = self.blocks, max(self.blocks, len(keys))
        return [(keys[n], ids[n]) for n in range(first, len(keys))]

    def ends_after(self, tokens: int) -> bool:
        """Says whether `tokens` more are all that it computes."""
        whole = self.request.num_prompt_tokens + self.request.max_tokens - 1
        return bool(self.request.num_computed_tokens + tokens >= whole)


class BlockConnector(KVConnectorBase_V1):
    """The scheduler's side; what of it a connector does not override does nothing."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Raises ValueError: the model has caches of several kinds."""
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        name = type(self).__name__
        if len(kv_cache_config.kv_cache_groups) != 1:
            raise ValueError(f"{name} is for models whose layers all have a cache of one kind")
        parallel, model, cache = vllm_config.parallel_config, vllm_config.model_config, vllm_config.cache_config
        self._extra: dict[str, Any] = self._kv_transfer_config.kv_connector_extra_config
        self._block_tokens: int = cache.block_size
        self._ranks: int = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        self._rank: int = parallel.rank
        self._same = f"{model.model}|{model.dtype}|{cache.cache_dtype}|{self._block_tokens}|{self._ranks}"
        self._saving: dict[str, Saving] = {}

    def on_new_request(self, request: Any) -> None:
        params = request.kv_transfer_params or {}
        if params.get("do_remote_decode") and not request.mm_features:
            if isinstance(tokens := params.get("prefill_tokens"), int):
                _shorten(request, tokens)
            self._saving[request.request_id] = Saving(request, self._keys_of(request))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._saving.pop(request.request_id, None)
        return False, None

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing is loaded but what `get_num_new_matched_tokens` said."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads end before the step begins."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are saved with all their layers, at the end of a step."""

    def _fingerprint(self) -> str:
        """Returns what caches have to have in common to be of use to each other."""
        return hashlib.sha256(self._same.encode()).hexdigest()[:16]

    def _keys_of(self, request: Any) -> BlockKeys:
        lora = request.lora_request.lora_name if request.lora_request is not None else ""
        return BlockKeys(self._block_tokens, f"{lora}|{request.cache_salt or ''}")

    def _saves(self, scheduler_output: Any) -> list[tuple[str, Saving, list[tuple[str, int]], bool]]:
        """Returns the first parts in a step: request, what is to be saved after the step, and whether the part ends."""
        blocks_of: Callable[[str], Sequence[Sequence[int]]]
        blocks_of = scheduler_output.kv_connector_block_state.resolve_block_ids
        found = []
        for request_id, tokens in scheduler_output.num_scheduled_tokens.items():
            if (saving := self._saving.get(request_id)) is not None:
                ends = saving.ends_after(tokens)
                found.append((request_id, saving, saving.fresh(tokens, blocks_of(request_id)[0]), ends))
        return found


def _shorten(request: Any, tokens: int) -> None:
    """Leaves a request the first `tokens` of its prompt. vLLM has not begun with it."""
    if request.prompt_token_ids is None or not 0 < tokens < request.num_prompt_tokens:
        return
    request.prompt_token_ids = request.prompt_token_ids[:tokens]
    del request._all_token_ids[tokens:]  # `all_token_ids` is a view of it
    request.num_prompt_tokens = tokens
    request.max_tokens = 1
    request.block_hashes.clear()
    request.update_block_hashes()
