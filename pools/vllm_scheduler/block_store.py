"""A KV connector for requests that two engines serve as one, through a folder that both can reach (docs/plugin.md).

The engine with the first part (`kv_transfer_params: {"do_remote_decode": true}`) writes each block of the request's
cache as it fills, prompt and output alike; the one with the second (`do_remote_prefill`) reads those of the tokens that
it is given, and computes the rest. A block's file is named by the tokens up to its end, so neither has to know
anything of the other, and a stream needs no parameters at its end, which vLLM sends only with whole answers. Other
requests are not touched. What cannot be written or read is computed again.

It is for engines on one node, with the folder in memory (/dev/shm); over a network NIXL is the right means. vLLM's
connector interface is public but young: the version is pinned as the scheduler's.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole

from . import require
from .block_keys import BlockKeys

log = logging.getLogger("vllm.greenserve")

KEPT_S = 120.0
SWEEP_EVERY_S = 30.0

require(vllm.__version__)


@dataclass
class Orders(KVConnectorMetadata):
    """The blocks that a step's worker reads before the step and writes after it, as (key, block) pairs."""

    loads: list[tuple[str, int]] = field(default_factory=list)
    saves: list[tuple[str, int]] = field(default_factory=list)


@dataclass(slots=True)
class Saving:
    request: Any
    keys: BlockKeys
    blocks: int = 0  # written so far


class BlockStoreConnector(KVConnectorBase_V1):
    """`kv_connector_extra_config`: `folder`, and `kept_s`, after which blocks that nobody fetched are removed."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Raises ValueError where the folder is not named, or the model has caches of several kinds."""
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        if not extra.get("folder"):
            raise ValueError("BlockStoreConnector needs kv_connector_extra_config.folder, which all its engines reach")
        if len(kv_cache_config.kv_cache_groups) != 1:
            raise ValueError("BlockStoreConnector is for models whose layers all have a cache of one kind")
        parallel, model = vllm_config.parallel_config, vllm_config.model_config
        self._block_tokens = vllm_config.cache_config.block_size
        self._ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        self._rank = parallel.rank
        self._kept_s = float(extra.get("kept_s", KEPT_S))
        same = f"{model.model}|{model.dtype}|{vllm_config.cache_config.cache_dtype}|{self._block_tokens}|{self._ranks}"
        self._folder = Path(extra["folder"]) / hashlib.sha256(same.encode()).hexdigest()[:16]
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is in a cache can be read out of it
        # The scheduler's side
        self._saving: dict[str, Saving] = {}
        self._found: dict[str, tuple[int, list[str]]] = {}  # first block, and keys from there on
        # The worker's side
        self._tensors: dict[str, dict[str, Any]] = {}
        self._failed: set[int] = set()
        self._swept_s = time.monotonic()

    def _path(self, key: str, rank: int) -> Path:
        return self._folder / f"{key}.{rank}"

    # -- the scheduler's side ----------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        if (request.kv_transfer_params or {}).get("do_remote_decode") and not request.mm_features:
            self._saving[request.request_id] = Saving(request, self._keys_of(request))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Returns how many tokens beyond those computed have their blocks there; at least one stays to be computed."""
        self._found.pop(request.request_id, None)
        if not (request.kv_transfer_params or {}).get("do_remote_prefill") or request.mm_features:
            return 0, False
        tokens: Sequence[int] = request.prompt_token_ids or []
        keys = self._keys_of(request).upto(tokens, len(tokens) - 1)
        first = last = num_computed_tokens // self._block_tokens
        while last < len(keys) and all(self._path(keys[last], rank).exists() for rank in range(self._ranks)):
            last += 1
        if last == first:
            return 0, False
        self._found[request.request_id] = (first, keys[first:last])
        return last * self._block_tokens - num_computed_tokens, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:
            self._found.pop(request.request_id, None)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        orders = Orders()
        blocks_of: Callable[[str], Sequence[Sequence[int]]]
        blocks_of = scheduler_output.kv_connector_block_state.resolve_block_ids
        for request_id, tokens in scheduler_output.num_scheduled_tokens.items():
            if (found := self._found.pop(request_id, None)) is not None:
                first, keys = found
                ids = blocks_of(request_id)[0]
                orders.loads += [(key, ids[first + n]) for n, key in enumerate(keys)]
            saving = self._saving.get(request_id)
            if saving is not None:
                keys = saving.keys.upto(saving.request.all_token_ids, saving.request.num_computed_tokens + tokens)
                ids = blocks_of(request_id)[0]
                orders.saves += [(keys[n], ids[n]) for n in range(saving.blocks, len(keys))]
                saving.blocks = max(saving.blocks, len(keys))
        return orders

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._saving.pop(request.request_id, None)
        self._found.pop(request.request_id, None)
        return False, None

    def _keys_of(self, request: Any) -> BlockKeys:
        lora = request.lora_request.lora_name if request.lora_request is not None else ""
        return BlockKeys(self._block_tokens, f"{lora}|{request.cache_salt or ''}")

    # -- the worker's side -------------------------------------------------------------------------

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        layers = {
            name: layer.kv_cache
            for name, layer in forward_context.no_compile_layers.items()
            if getattr(layer, "kv_cache", None) is not None
        }
        for key, block in self._orders().loads:
            try:
                tensors = safetensors.torch.load_file(self._path(key, self._rank))
                for name, tensor in tensors.items():
                    layers[name][block].copy_(tensor)
            except (OSError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
                log.warning("block %s cannot be read and is computed again: %s", key, error)
                self._failed.add(block)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads end before the step begins."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        for key, block in self._orders().saves:
            self._tensors.setdefault(key, {})[layer_name] = kv_layer[block].detach().cpu().contiguous().clone()

    def wait_for_save(self) -> None:
        tensors, self._tensors = self._tensors, {}
        for key, layers in tensors.items():
            path = self._path(key, self._rank)
            draft = path.with_name(f"{path.name}.{os.getpid()}")
            try:
                safetensors.torch.save_file(layers, draft)
                os.replace(draft, path)  # a reader sees all of it or nothing
            except (OSError, safetensors.SafetensorError) as error:
                log.warning("block %s cannot be written, another engine will compute it again: %s", key, error)
                with contextlib.suppress(OSError):
                    draft.unlink(missing_ok=True)
        if tensors and time.monotonic() - self._swept_s > SWEEP_EVERY_S:
            self._sweep()

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def _orders(self) -> Orders:
        found: Orders = self._get_connector_metadata()
        return found

    def _sweep(self) -> None:
        """Removes what nobody has fetched in time; other engines may do the same."""
        self._swept_s = time.monotonic()
        oldest_s = time.time() - self._kept_s
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                with contextlib.suppress(OSError):
                    if entry.stat().st_mtime < oldest_s:
                        os.unlink(entry.path)
