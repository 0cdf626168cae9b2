"""A KV connector that sends the cache of a request's first part to the engine of its second part, by NIXL.

The first part's `kv_transfer_params` name the second engine: `transfer_id`, `remote_host`, `remote_port`, and
`chunk_tokens` (None: all is sent at the end). The second part's have the same `transfer_id`, and `remote_num_tokens`
where the first part ended inside the prompt. The second engine waits for what is under way beside its steps. What does
not come it computes again.

Blocks go from vLLM's cache to staging memory, from there to that of the other engine, and there into the cache: so no
transfer holds up a block of a cache, and what vLLM does with its blocks meanwhile does not matter.
"""

from __future__ import annotations

import ipaddress
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole

from ..block_connector import BlockConnector
from .arrivals import Arrivals
from .block_memory import BlockMemory, StagingMemory
from .channel import ChannelTls
from .figures import TransferMetrics, TransferStats
from .mover import NixlMover
from .receiver import Receiver
from .sender import Outgoing, Sender

log = logging.getLogger("vllm.greenserve")

STAGING_BYTES = 4 << 30
WAIT_S = 10.0
_APPEARS_WITHIN_S = 0.3  # a transfer whose first word is still on its way
_LOADED_A_STEP_BYTES = 64 << 20  # so that decodes do not wait long for a copy


class BlockLoad(NamedTuple):
    """The blocks of a second part: what is in them, and where it is to go."""

    request: str
    transfer: str
    keys: list[str]
    blocks: list[int]


@dataclass
class Orders(KVConnectorMetadata):
    """What a step's worker does: transfers begin and end, blocks go as (transfer, key, block), others are loaded."""

    begins: list[Outgoing] = field(default_factory=list)
    saves: list[tuple[str, str, int]] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    loads: list[BlockLoad] = field(default_factory=list)


@dataclass(slots=True)
class _Loading:
    load: BlockLoad
    began_s: float
    done: int = 0  # blocks


class TransferConnector(BlockConnector):
    """`kv_connector_extra_config`: `host` and `port` of the side channel (of rank r: `port` + r x `port_step`);
    `certificate` and `authority`, files without which it listens on the loopback alone; `staging_bytes`, `wait_s`.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Raises ValueError: an address is missing, or would be open to strangers."""
        super().__init__(vllm_config, role, kv_cache_config)
        host, port = self._extra.get("host"), self._extra.get("port")
        if not host or not isinstance(port, int):
            raise ValueError("TransferConnector needs kv_connector_extra_config.host and .port, of its side channel")
        self._host, self._port = str(host), port
        self._port_step = int(self._extra.get("port_step", 1))
        self._tls = None
        if self._extra.get("certificate"):
            self._tls = ChannelTls(str(self._extra["certificate"]), str(self._extra["authority"]))
        elif not _is_loopback(self._host):
            raise ValueError(
                f"TransferConnector would take caches of anybody at {self._host}: name the files "
                "kv_connector_extra_config.certificate and .authority"
            )
        self._wait_s = float(self._extra.get("wait_s", WAIT_S))
        # The scheduler's side
        self._transfers: dict[str, str] = {}  # of first parts, by request
        self._begins: list[Outgoing] = []
        self._ends: list[str] = []
        self._found: dict[str, tuple[int, BlockLoad]] = {}  # first block, and what goes there and after it
        self._asked: set[str] = set()
        self._loads: list[BlockLoad] = []
        # The worker's side
        self._receiver: Receiver | None = None
        self._sender: Sender | None = None
        self._loading: list[_Loading] = []
        self._failed: set[int] = set()
        self._stats = TransferStats()

    # -- the scheduler's side ----------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        if request.request_id not in self._saving:
            return
        params = request.kv_transfer_params
        transfer, host, port = (params.get(name) for name in ("transfer_id", "remote_host", "remote_port"))
        if not (isinstance(transfer, str) and isinstance(host, str) and isinstance(port, int)):
            del self._saving[request.request_id]
            log.warning("request %s says not which engine its cache is for: it is not sent", request.request_id)
            return
        tokens = request.num_prompt_tokens + request.max_tokens - 1
        chunk = params.get("chunk_tokens")
        chunk_blocks = max(1, chunk // self._block_tokens) if isinstance(chunk, int) else None
        self._transfers[request.request_id] = transfer
        self._begins.append(Outgoing(transfer, host, port, tokens // self._block_tokens, chunk_blocks))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Returns how many tokens beyond those computed are to come; at least one stays to be computed."""
        params = request.kv_transfer_params or {}
        transfer, tokens = params.get("transfer_id"), request.prompt_token_ids or []
        if not params.get("do_remote_prefill") or not isinstance(transfer, str) or request.mm_features:
            return 0, False
        if request.request_id in self._asked:  # what did not come will not, and what came is gone
            return 0, False
        there = params.get("remote_num_tokens")
        most = min(len(tokens) - 1, there if isinstance(there, int) else len(tokens))
        first = num_computed_tokens // self._block_tokens
        keys = self._keys_of(request).upto(tokens, most)[first:]
        if not keys:
            return 0, False
        self._found[request.request_id] = first, BlockLoad(request.request_id, transfer, keys, [])
        return len(keys) * self._block_tokens, True

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        found = self._found.pop(request.request_id, None)
        if found is not None and num_external_tokens:
            first, load = found
            ids = blocks.get_block_ids()[0]
            self._loads.append(load._replace(blocks=list(ids[first : first + len(load.keys)])))
            self._asked.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        orders = Orders(begins=self._begins, ends=self._ends, loads=self._loads)
        self._begins, self._ends, self._loads = [], [], []
        for request_id, _, blocks, ends in self._saves(scheduler_output):
            transfer = self._transfers[request_id]
            orders.saves += [(transfer, key, block) for key, block in blocks]
            if ends:
                self._end(request_id, orders.ends)
        return orders

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._end(request.request_id, self._ends)
        self._found.pop(request.request_id, None)
        self._asked.discard(request.request_id)
        return False, None

    def _end(self, request_id: str, ends: list[str]) -> None:
        self._saving.pop(request_id, None)
        if (transfer := self._transfers.pop(request_id, None)) is not None:
            ends.append(transfer)

    # -- the worker's side -------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Begins to take caches. Raises ValueError, OSError and ImportError, which end the engine's start."""
        self._memory = BlockMemory(kv_caches, self._kv_cache_config.num_blocks)
        half = int(self._extra.get("staging_bytes", STAGING_BYTES)) // 2
        self._outgoing = StagingMemory(half, self._memory.block_bytes)
        self._incoming = StagingMemory(half, self._memory.block_bytes)
        outgoing, incoming = self._outgoing.staging, self._incoming.staging
        same = f"{self._fingerprint()}|{self._rank}|{self._memory.block_bytes}"
        mover = NixlMover(uuid.uuid4().hex, outgoing, incoming)
        self._arrivals = Arrivals(incoming.slots)
        address = self._host, self._port + self._rank * self._port_step
        self._receiver = Receiver(address, same, self._arrivals, mover, incoming, self._tls)
        self._sender = Sender(same, mover, outgoing, self._tls)
        log.info("caches of other engines are taken at %s:%d, up to %d blocks at once", *address, incoming.slots)

    def shutdown(self) -> None:
        if self._receiver is not None:
            self._receiver.close()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        now_s = time.monotonic()
        self._loading += [_Loading(load, now_s) for load in self._orders().loads]

    def wait_for_save(self) -> None:
        orders, sender = self._orders(), self._sender
        assert sender is not None
        for outgoing in orders.begins:
            port = outgoing.port + self._rank * self._port_step
            sender.begin(outgoing._replace(port=port))
        if orders.saves:
            self._send(sender, orders.saves)
        for transfer in orders.ends:
            sender.end(transfer)

    def _send(self, sender: Sender, saves: list[tuple[str, str, int]]) -> None:
        slots = sender.take(len(saves))
        sender.unsent(len(saves) - len(slots))
        if not slots:
            return
        self._outgoing.put(slots, self._memory.gather([block for _, _, block in saves[: len(slots)]]))
        by_transfer: dict[str, list[tuple[str, int]]] = {}
        for (transfer, key, _), slot in zip(saves, slots, strict=False):
            by_transfer.setdefault(transfer, []).append((key, slot))
        for transfer, blocks in by_transfer.items():
            sender.add(transfer, blocks)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Copies what has come into the cache; returns the requests that need not wait any more."""
        if not self._loading:
            return None, None
        now_s, over = time.monotonic(), set()
        for loading in list(self._loading):
            if self._load(loading, now_s):
                self._loading.remove(loading)
                over.add(loading.load.request)
        return None, over or None

    def _load(self, loading: _Loading, now_s: float) -> bool:
        """Copies some more blocks; returns whether that is all that comes."""
        load, waited_s = loading.load, now_s - loading.began_s
        look = self._arrivals.look(load.transfer, load.keys)
        most = max(1, _LOADED_A_STEP_BYTES // self._memory.block_bytes)
        slots = look.slots[loading.done : loading.done + most]
        if slots:
            self._memory.scatter(load.blocks[loading.done : loading.done + len(slots)], self._incoming.get(slots))
            loading.done += len(slots)
            self._stats.data["received_bytes"] += len(slots) * self._memory.block_bytes
        missing = len(load.keys) - loading.done
        more = loading.done < len(look.slots) or not look.settled or (not look.known and waited_s < _APPEARS_WITHIN_S)
        if missing and more and waited_s < self._wait_s:
            return False
        if missing:
            log.warning("%d of %d blocks of %s did not come", missing, len(load.keys), load.request)
            self._failed.update(load.blocks[loading.done :])
            self._stats.data["missing_blocks"] += missing
            self._stats.data["incomplete"] += 1
        self._arrivals.release(load.transfer)
        self._stats.data["exposed_s"].append(time.monotonic() - loading.began_s)
        return True

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def _orders(self) -> Orders:
        found: Orders = self._get_connector_metadata()
        return found

    # -- figures -----------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> TransferStats | None:
        if self._sender is None:
            return None
        sent = self._sender.figures()
        self._stats.data["sent_bytes"] += sent.bytes
        self._stats.data["unsent_blocks"] += sent.unsent_blocks
        if self._stats.is_empty():
            return None
        stats, self._stats = self._stats, TransferStats()
        return stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TransferStats:
        return TransferStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Mapping[Any, Any], labelnames: list[str], per_engine_labelvalues: Any
    ) -> TransferMetrics:
        return TransferMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
