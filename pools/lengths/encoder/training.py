"""Trains the network of an encoder by PyTorch, with early stopping. The same seed gives the same network."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from . import network
from .length_classes import BORDER_SHARES, Classes
from .network import LengthNetwork
from .presets import PRESETS, SMALL_TOKENS, Preset
from .prompt_tokens import Batch, PromptTokens, new_tokenizer
from .training_data import Parts

_WORDS = 4096  # of the tokenizer that is trained from nothing
_POOL = 8  # batches whose rows are sorted by length, so that little is padded
_PATIENCE = 4  # epochs without a better loss
_WARM_UP = 0.1  # share of the steps
_WEIGHT_DECAY, _MOST_GRADIENT = 0.05, 1.0

Progress = Callable[[int, float, float, bool], None]  # epoch, losses of training and stopping, whether it is the best


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """`encoder` None: one is trained from nothing; `epochs` None: as many at most as the preset says."""

    preset: str = "bert"
    encoder: Path | None = None
    seed: int = 0
    epochs: int | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """The best network, and what reads prompts for it. `epochs`: after how many it was the best."""

    network: LengthNetwork
    kind: str
    tokenizer: bytes
    max_tokens: int
    max_chunks: int
    epochs: int
    interrupted: bool


def train(parts: Parts, classes: Classes, options: TrainingOptions, progress: Progress) -> Trained:
    """Trains until the loss of `parts.stop` gets no better, or Ctrl-C, and returns the best of all epochs.

    Raises KeyboardInterrupt where Ctrl-C came before the first epoch ended, and BadData where the encoder's folder
    cannot be used.
    """
    preset = PRESETS[options.preset]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        if options.encoder is None:
            tokenizer = new_tokenizer(parts.train.prompts, _WORDS)
            max_tokens = preset.max_tokens if preset.max_chunks > 1 else SMALL_TOKENS
            encoder = network.small_encoder(_WORDS, max_tokens)
            torch.set_num_threads(1)  # its matrices are too small for more
        else:
            encoder = network.encoder_of(options.encoder)
            tokenizer = (options.encoder / "tokenizer.json").read_bytes()
            max_tokens = network.most_tokens(encoder, preset)
        tokens = PromptTokens(tokenizer, max_tokens, preset.max_chunks)
        net = LengthNetwork(encoder, BORDER_SHARES, preset.lstm_width)
        net.to("cuda" if torch.cuda.is_available() else "cpu")
        epochs, interrupted = _Run(net, tokens, parts, classes, options, preset).until_it_gets_worse(progress)
    net.to("cpu").eval()
    kind = encoder.config.model_type if options.encoder else "bert, from nothing"
    return Trained(net, kind, tokenizer, max_tokens, preset.max_chunks, epochs, interrupted)


class _Run:
    def __init__(
        self,
        net: LengthNetwork,
        tokens: PromptTokens,
        parts: Parts,
        classes: Classes,
        options: TrainingOptions,
        preset: Preset,
    ) -> None:
        new = options.encoder is None
        self._net, self._tokens, self._batch = net, tokens, preset.batch
        self._device = next(net.parameters()).device
        self._train, self._stop = (tokens.chunks(part.prompts) for part in (parts.train, parts.stop))
        self._train_of, self._stop_of = (
            torch.from_numpy(classes.of(part.tokens)).to(self._device) for part in (parts.train, parts.stop)
        )
        self._random = random.Random(options.seed)
        self._epochs = options.epochs or (preset.epochs_new if new else preset.epochs)
        rate = preset.learning_rate_new if new else preset.learning_rate
        self._optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=_WEIGHT_DECAY)
        steps = max(1, self._epochs * -(-len(self._train) // self._batch))
        warm = max(1, round(_WARM_UP * steps))
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: min((step + 1) / warm, max(0.0, (steps - step) / max(1, steps - warm)))
        )

    def until_it_gets_worse(self, progress: Progress) -> tuple[int, bool]:
        """Leaves the best weights in the network; returns after how many epochs, and whether Ctrl-C ended it."""
        best, best_loss, best_epoch, interrupted = None, float("inf"), 0, False
        try:
            for epoch in range(1, self._epochs + 1):
                trained, stopped = self._learn(), self._judge()
                better = stopped < best_loss
                if better:
                    best, best_loss, best_epoch = copy.deepcopy(self._net.state_dict()), stopped, epoch
                progress(epoch, trained, stopped, better)
                if epoch - best_epoch >= _PATIENCE:
                    break
        except KeyboardInterrupt:
            if best is None:
                raise
            interrupted = True
        if best is None:
            raise ArithmeticError("training diverged: its loss is no number")
        self._net.load_state_dict(best)
        return best_epoch, interrupted

    def _learn(self) -> float:
        self._net.train()
        batches = list(self._tokens.batches(self._train, self._batch, self._order()))
        self._random.shuffle(batches)
        total = 0.0
        for batch in batches:
            self._optimizer.zero_grad()
            loss = self._loss(batch, self._train_of)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._net.parameters(), _MOST_GRADIENT)
            self._optimizer.step()
            self._schedule.step()
            total += loss.item() * len(batch.rows)
        return total / len(self._train)

    def _order(self) -> list[int]:
        """Returns all rows in a random order in which rows of about the same length lie beside each other."""
        rows = list(range(len(self._train)))
        self._random.shuffle(rows)
        pools = [rows[start : start + _POOL * self._batch] for start in range(0, len(rows), _POOL * self._batch)]
        return [row for pool in pools for row in sorted(pool, key=lambda row: len(self._train[row][0]))]

    def _judge(self) -> float:
        self._net.eval()
        with torch.inference_mode():
            batches = self._tokens.batches(self._stop, self._batch)
            total = sum(self._loss(one, self._stop_of).item() * len(one.rows) for one in batches)
            return float(total) / len(self._stop)

    def _loss(self, batch: Batch, classes: Tensor) -> Tensor:
        ids, mask, rows = (torch.from_numpy(one).to(self._device) for one in (batch.ids, batch.mask, batch.rows))
        return self._net.loss(ids, mask, classes[rows])
