"""The network of a trained encoder, in PyTorch: encoder, pooling, ordinal head. Nothing but training imports it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus
from transformers import AutoConfig, AutoModel, BertConfig
from transformers.utils import logging

from .presets import Preset
from .training_data import BadData

KINDS = ("bert", "roberta", "xlm-roberta", "modernbert")
_WIDTH, _LAYERS, _HEADS = 128, 2, 2  # of the one that is trained from nothing
_DROPOUT = 0.1


class LengthNetwork(nn.Module):
    """Reads chunks of tokens, and says how probable it is that the answer is longer than each border.

    The tokens of a chunk are pooled by their mean. FREESH's preset (appendix D.5) aggregates the chunks by a
    bidirectional LSTM and takes its last states; else there is one chunk. The head is a proportional-odds model
    (McCullagh 1980), logit P(y > j) = w x - b_j: one direction of the embedding orders all prompts, and since the b_j
    ascend by construction, no class's probability is below 0. Its loss is CORAL's (Cao, Mirjalili
    and Raschka 2020).
    """

    def __init__(self, encoder: Any, shares: Sequence[float], lstm_width: int | None) -> None:
        """Begins with the base rates: `shares` (k - 1,) are the quantiles that the borders are."""
        super().__init__()
        self.encoder = encoder
        width = int(encoder.config.hidden_size)
        self.lstm = None
        if lstm_width is not None:
            self.lstm = nn.LSTM(width, lstm_width, batch_first=True, bidirectional=True)
            width = 2 * lstm_width
        self.width = width
        self.dropout = nn.Dropout(_DROPOUT)
        self.score = nn.Linear(width, 1, bias=False)
        borders = torch.logit(torch.tensor(list(shares), dtype=torch.float32))
        self.first = nn.Parameter(borders[:1])
        self.gaps = nn.Parameter(torch.log(torch.expm1(borders.diff())))  # softplus of it is the gap

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Returns the embeddings (n, width) of prompts whose tokens are (n, chunks, tokens)."""
        prompts, chunks, tokens = ids.shape
        flat = mask.reshape(prompts * chunks, tokens)
        read = self.encoder(input_ids=ids.reshape(prompts * chunks, tokens), attention_mask=flat).last_hidden_state
        weight = flat.unsqueeze(-1).to(read.dtype)
        pooled = ((read * weight).sum(1) / weight.sum(1)).reshape(prompts, chunks, -1)
        if self.lstm is None:
            return pooled.mean(1)
        _, (last, _) = self.lstm(pooled)
        return torch.cat([last[0], last[1]], dim=-1)

    def logits(self, embedding: Tensor) -> Tensor:
        """Returns logit P(y > j) for each border j, (n, k - 1)."""
        borders = torch.cat([self.first, self.first + softplus(self.gaps).cumsum(0)])
        return self.score(self.dropout(embedding)) - borders

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Returns P(y > j) (n, k - 1) and the embeddings (n, width): what is exported."""
        embedding = self.embed(ids, mask)
        return torch.sigmoid(self.logits(embedding)), embedding

    def loss(self, ids: Tensor, mask: Tensor, classes: Tensor) -> Tensor:
        """Returns CORAL's loss of prompts whose answers are of these classes (n,), the mean over borders."""
        logits = self.logits(self.embed(ids, mask))
        longer = classes.unsqueeze(1) > torch.arange(logits.shape[1], device=classes.device)
        return binary_cross_entropy_with_logits(logits, longer.to(logits.dtype))


def small_encoder(words: int, max_tokens: int) -> Any:
    """Returns an untrained BERT of two layers, 128 wide."""
    config = BertConfig(
        vocab_size=words,
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=2 * _WIDTH,
        max_position_embeddings=max_tokens,
    )
    return _without_pooler(AutoModel.from_config(config))


def encoder_of(folder: Path) -> Any:
    """Loads an encoder as others trained it. Raises BadData where the folder has none that is fit for this."""
    if not (folder / "config.json").is_file():
        raise BadData(f"--encoder: {folder} is no folder of a model: it has no config.json")
    try:
        kind = AutoConfig.from_pretrained(folder, local_files_only=True).model_type
    except (OSError, ValueError) as error:
        raise BadData(f"--encoder: {folder / 'config.json'} cannot be used: {str(error).splitlines()[0]}") from None
    if kind not in KINDS:
        raise BadData(f"--encoder: {folder} is a {kind}; encoders are of {', '.join(KINDS)}")
    if not list(folder.glob("*.safetensors")):
        raise BadData(f"--encoder: {folder} has no *.safetensors; pickles (*.bin) are not opened: convert them first")
    if not (folder / "tokenizer.json").is_file():
        raise BadData(f"--encoder: {folder} has no tokenizer.json: save its fast tokenizer there")
    logging.disable_progress_bar()
    try:
        return _without_pooler(AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True))
    except (OSError, ValueError, RuntimeError) as error:
        raise BadData(f"--encoder: {folder} cannot be loaded: {str(error).splitlines()[0]}") from None


def most_tokens(encoder: Any, preset: Preset) -> int:
    """Returns how many tokens a chunk may have: the preset's, or fewer where the encoder has no more positions."""
    config = encoder.config
    reserved = 2 if config.model_type in ("roberta", "xlm-roberta") else 0  # positions begin after the padding's
    return min(preset.max_tokens, int(config.max_position_embeddings) - reserved)


def _without_pooler(encoder: Any) -> Any:
    if hasattr(encoder, "pooler"):
        encoder.pooler = None  # it reads the first token alone, and is not asked
    return encoder
