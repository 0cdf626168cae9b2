"""A worker's KV cache as rows of bytes, one for a block with all layers, and staging memory for such rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .mover import Staging


class BlockMemory:
    """Copies blocks out of vLLM's cache and into it. Blocks are vLLM's own numbers."""

    def __init__(self, caches: Mapping[str, Any], blocks: int) -> None:
        """Takes a tensor for each layer, by its name. Raises ValueError: they are not divided into `blocks`."""
        self._layers: list[torch.Tensor] = []
        for name, cache in sorted(caches.items()):
            if not isinstance(cache, torch.Tensor) or cache.shape[0] != blocks:
                shape = list(getattr(cache, "shape", ()))
                raise ValueError(f"the cache of layer {name} has shape {shape}: it is not divided into {blocks} blocks")
            self._layers.append(cache)
        if not self._layers:
            raise ValueError("the model has no KV cache")
        self._widths = [layer[0].numel() * layer.element_size() for layer in self._layers]
        self.block_bytes = sum(self._widths)

    def gather(self, blocks: Sequence[int]) -> torch.Tensor:
        """Returns what is in blocks, as a row of bytes for each, in the memory of the CPU."""
        ids = torch.tensor(blocks, device=self._layers[0].device)
        rows = [
            layer.index_select(0, ids).contiguous().reshape(len(blocks), -1).view(torch.uint8) for layer in self._layers
        ]
        return torch.cat(rows, dim=1).cpu()

    def scatter(self, blocks: Sequence[int], rows: torch.Tensor) -> None:
        """Puts rows of bytes into blocks."""
        ids = torch.tensor(blocks, device=self._layers[0].device)
        for layer, part in zip(self._layers, rows.split(self._widths, dim=1), strict=True):
            values = part.contiguous().view(layer.dtype).reshape(len(blocks), *layer.shape[1:])
            layer.index_copy_(0, ids, values.to(layer.device))


class StagingMemory:
    """Memory that others read or write: a row of bytes for each slot."""

    def __init__(self, size_bytes: int, slot_bytes: int) -> None:
        """Raises ValueError: not one slot fits."""
        slots = size_bytes // slot_bytes
        if slots < 1:
            raise ValueError(f"staging_bytes is too small: a block of this model takes {slot_bytes} bytes, twice")
        self._rows = torch.zeros((slots, slot_bytes), dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        self.staging = Staging(self._rows.data_ptr(), slots, slot_bytes)

    def put(self, slots: Sequence[int], rows: torch.Tensor) -> None:
        self._rows[list(slots)] = rows

    def get(self, slots: Sequence[int]) -> torch.Tensor:
        """Returns a copy."""
        return self._rows[list(slots)]
