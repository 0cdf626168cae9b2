"""A KV connector for requests that two engines of one node serve as one, through a folder that both can reach.

The engine with the first part writes each block as it fills; the one with the second (`do_remote_prefill`) reads those
of the tokens that it is given, and computes the rest. A block's file is named by the tokens up to its end, so neither
has to know anything of the other, and a stream needs no parameters at its end, which vLLM sends only with whole
answers. Other requests are not touched. What cannot be written or read is computed again.

The folder is best in memory (/dev/shm). Between nodes caches are sent by NIXL (`transfer`). vLLM's connector interface
is public but young: the version is pinned as the scheduler's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole

from .block_connector import BlockConnector

log = logging.getLogger("vllm.greenserve")

KEPT_S = 120.0
SWEEP_EVERY_S = 30.0


@dataclass
class Orders(KVConnectorMetadata):
    """The blocks that a step's worker reads before the step and writes after it, as (key, block) pairs."""

    loads: list[tuple[str, int]] = field(default_factory=list)
    saves: list[tuple[str, int]] = field(default_factory=list)


class BlockStoreConnector(BlockConnector):
    """`kv_connector_extra_config`: `folder`, and `kept_s`, after which blocks that nobody fetched are removed."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Raises ValueError where the folder is not named, or the model has caches of several kinds."""
        super().__init__(vllm_config, role, kv_cache_config)
        if not self._extra.get("folder"):
            raise ValueError("BlockStoreConnector needs kv_connector_extra_config.folder, which all its engines reach")
        self._kept_s = float(self._extra.get("kept_s", KEPT_S))
        self._folder = Path(self._extra["folder"]) / self._fingerprint()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is in a cache can be read out of it
        self._found: dict[str, tuple[int, list[str]]] = {}  # the scheduler's: first block, and keys from there on
        # The worker's side
        self._layers: dict[str, Any] = {}
        self._failed: set[int] = set()
        self._swept_s = time.monotonic()

    def _path(self, key: str, rank: int) -> Path:
        return self._folder / f"{key}.{rank}"

    # -- the scheduler's side ----------------------------------------------------------------------

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
        for request_id in scheduler_output.num_scheduled_tokens:
            if (found := self._found.pop(request_id, None)) is not None:
                first, keys = found
                ids = blocks_of(request_id)[0]
                orders.loads += [(key, ids[first + n]) for n, key in enumerate(keys)]
        for _, _, blocks, _ in self._saves(scheduler_output):
            orders.saves += blocks
        return orders

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._found.pop(request.request_id, None)
        return super().request_finished(request, block_ids)

    # -- the worker's side -------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._layers = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for key, block in self._orders().loads:
            try:
                tensors = safetensors.torch.load_file(self._path(key, self._rank))
                for name, tensor in tensors.items():
                    self._layers[name][block].copy_(tensor)
            except (OSError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
                log.warning("block %s cannot be read and is computed again: %s", key, error)
                self._failed.add(block)

    def wait_for_save(self) -> None:
        saves = self._orders().saves
        for key, block in saves:
            tensors = {name: layer[block].detach().cpu().contiguous().clone() for name, layer in self._layers.items()}
            path = self._path(key, self._rank)
            draft = path.with_name(f"{path.name}.{os.getpid()}")
            try:
                safetensors.torch.save_file(tensors, draft)
                os.replace(draft, path)  # a reader sees all of it or nothing
            except (OSError, safetensors.SafetensorError) as error:
                log.warning("block %s cannot be written, another engine will compute it again: %s", key, error)
                with contextlib.suppress(OSError):
                    draft.unlink(missing_ok=True)
        if saves and time.monotonic() - self._swept_s > SWEEP_EVERY_S:
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
