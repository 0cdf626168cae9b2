"""Request records: one row for each request that reached the gateway, however it ended."""

from __future__ import annotations

from django.db import models


class RequestRecord(models.Model):
    """Range-partitioned by `started_at`; fields as in `pools.wire.RequestRow`. `slo_met` null: nothing to judge."""

    class Status(models.TextChoices):
        OK = "ok"
        CLIENT_ERROR = "client_error"
        CLIENT_GONE = "client_gone"
        UPSTREAM_ERROR = "upstream_error"
        TIMEOUT = "timeout"
        REJECTED = "rejected"

    pk = models.CompositePrimaryKey("started_at", "request_id")
    started_at = models.DateTimeField()
    request_id = models.CharField(max_length=64)
    service = models.CharField(max_length=100)
    tenant = models.ForeignKey(
        "pools.Tenant", on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="+"
    )
    key_id = models.BigIntegerField(null=True)
    endpoint = models.CharField(max_length=20)
    stream = models.BooleanField()
    status = models.CharField(max_length=20, choices=Status)
    http_status = models.IntegerField()
    prompt_tokens = models.IntegerField(null=True)
    output_tokens = models.IntegerField(null=True)
    tokens_source = models.CharField(max_length=10, null=True)  # noqa: DJ001
    predicted_output_tokens = models.IntegerField(null=True)
    prediction_source = models.CharField(  # noqa: DJ001
        max_length=10,
        null=True,
        help_text="What the output tokens were predicted by: text, memory, encoder, cache, boosted, history, prior; or "
        "bound: the request may not have as many as were expected.",
    )
    max_tokens = models.IntegerField(null=True)
    request_class = models.CharField(max_length=20, null=True)  # noqa: DJ001
    actual_class = models.CharField(max_length=20, null=True)  # noqa: DJ001
    pool = models.ForeignKey(
        "pools.Pool", on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="+"
    )
    instance_uid = models.UUIDField(null=True)
    ttft_s = models.FloatField(null=True)
    tpot_s = models.FloatField(null=True)
    itl_max_s = models.FloatField(null=True)
    e2e_s = models.FloatField(null=True)
    window_s = models.FloatField(null=True)
    timely_tokens = models.IntegerField(null=True)
    predicted_energy_j = models.FloatField(null=True)
    queue_s = models.FloatField(null=True)
    lost = models.BooleanField(default=False)
    own_ttft_s = models.FloatField(null=True)
    own_tpot_s = models.FloatField(null=True)
    attempts = models.IntegerField()
    route_reason = models.CharField(max_length=200)
    error = models.CharField(max_length=500)
    slo_met = models.BooleanField(null=True)
    slo_failed = models.CharField(max_length=40)  # kinds that failed, comma-separated
    traceparent = models.CharField(max_length=55, null=True)  # noqa: DJ001 - W3C Trace Context, the client's
    adapter = models.CharField(  # noqa: DJ001
        max_length=100, null=True, help_text="The LoRA adapter that it asked for; none: the service's model itself."
    )
    class_probability = models.FloatField(
        null=True, help_text="How probable its class was, by what predicted it; null: that does not say."
    )

    class Meta:
        db_table = "telemetry_requestrecord"

    def __str__(self) -> str:
        return f"{self.request_id} {self.status}"
