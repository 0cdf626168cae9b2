"""Records of requests that ended, from gateways to the ingester."""

from __future__ import annotations

from pools.wire.message_codec import Message


class RequestRow(Message, frozen=True):
    """One request, written when it ended, however it ended.

    status: ok | client_error | client_gone | upstream_error | timeout | rejected. Token counts are the engine's
    (`usage`) where it gave them; `tokens_source` says usage | chunks | estimate.
    """

    request_id: str
    started_at_s: float
    service: str
    tenant_id: int | None
    key_id: int | None
    endpoint: str  # completions | chat | embeddings | responses | rerank | score
    stream: bool
    status: str
    http_status: int
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_source: str | None = None
    predicted_output_tokens: int | None = None
    prediction_source: str | None = None  # text | memory | encoder | cache | boosted | history | prior | bound
    max_tokens: int | None = None
    request_class: str | None = None  # as classified
    actual_class: str | None = None  # by the true output length
    pool_id: int | None = None
    instance_uid: str | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None  # mean over the request
    itl_max_s: float | None = None
    e2e_s: float | None = None
    window_s: float | None = None  # fairness window W = 1.4 x Lat (FREESH C.2)
    timely_tokens: int | None = None  # tokens delivered within the window
    predicted_energy_j: float | None = None  # the increment that routing expected
    queue_s: float | None = None  # in the gateway's queue; None: it did not wait in one
    lost: bool = False  # admitted although it cannot keep its own limits (throttLL'eM)
    own_ttft_s: float | None = None  # objectives that the request brought itself
    own_tpot_s: float | None = None
    attempts: int = 1
    route_reason: str = ""
    error: str = ""
    traceparent: str | None = None  # W3C Trace Context, as the client sent it
    adapter: str | None = None  # LoRA's, which it asked for by name; None: the service's model itself
    class_probability: float | None = None  # of request_class, as predicted; None: the source does not say


class RequestBatch(Message, frozen=True):
    gateway: str
    boot: str
    seq: int
    rows: list[RequestRow]
