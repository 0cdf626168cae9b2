"""Names the ways in which an encoder reads a prompt and is trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    """A prompt is read as at most `max_chunks` chunks of `max_tokens` tokens; `lstm_width` None: one chunk, no LSTM.

    Rates of learning are those of an encoder that others trained, and of one that is trained from nothing.
    """

    max_tokens: int
    max_chunks: int
    lstm_width: int | None
    learning_rate: float = 2e-5  # FREESH, table 8; mu-Serve's is BERT's own
    learning_rate_new: float = 1e-3
    epochs: int = 5
    epochs_new: int = 30
    batch: int = 16


PRESETS = {
    "bert": Preset(max_tokens=512, max_chunks=1, lstm_width=None),  # mu-Serve, section 3.3, but for pooling and head
    "freesh": Preset(max_tokens=512, max_chunks=8, lstm_width=384),  # FREESH, appendix D.5 and table 8
}
SMALL_TOKENS = 128  # of the encoder that is trained from nothing: what 8 ms on one core are enough for
