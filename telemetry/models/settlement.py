"""Settled windows: who used a site's energy, and what it emitted and cost. Append-only, each with its version.

A settlement's id is the ledger's version: they are made one after the other under a lock, so that all lines of versions
up to V are there as soon as V is, and what was true as of V can be read again for ever.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from pools.models import Site

OF_ADAPTER = "The LoRA adapter that the requests asked for; empty: none, or settled before lines said it."


class Settlement(models.Model):
    """One site's window [start_at, end_at), settled for the first time or again (`revision` above 0).

    `sources` says by which versions of intensity, PUE, tariff, rates and factors it was valued, and what it was made
    from (joules, requests); where that is no longer valid, the window is settled again. `shares` is the settlement
    whose request shares are valid for it: its own, or an earlier one's when only values changed.
    """

    site = models.ForeignKey(Site, on_delete=models.PROTECT, related_name="+")
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    revision = models.PositiveIntegerField()
    cause = models.CharField(max_length=100, help_text="What changed since the revision before.")
    sources = models.JSONField()
    currency = models.CharField(max_length=3)
    energy_uj = models.BigIntegerField(help_text="All of the site's GPUs, as the energy entries have it.")
    unattributed_uj = models.BigIntegerField(help_text="Of that, what is nobody's: missing samples or requests.")
    shares = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="+")
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["site", "start_at", "revision"], name="settlement_revision"),
            models.CheckConstraint(condition=Q(end_at__gt=F("start_at")), name="settlement_interval"),
            models.CheckConstraint(
                condition=Q(unattributed_uj__gte=0, unattributed_uj__lte=F("energy_uj")), name="settlement_unattributed"
            ),
        ]
        indexes = [models.Index(fields=["start_at", "site"])]

    def __str__(self) -> str:
        return f"{self.site} {self.start_at:%Y-%m-%d %H:%M} revision {self.revision}"


class Amounts(models.Model):
    """Whole units, so that they add up exactly: see `StatementLine`."""

    energy_uj = models.BigIntegerField()
    prefill_uj = models.BigIntegerField(default=0)
    facility_uj = models.BigIntegerField(default=0, help_text="The same at the site's own meter: x PUE.")
    host_uj = models.BigIntegerField(db_default=0, help_text="Of the nodes' hosts, beside the GPUs: not in the others.")
    host_known_uj = models.BigIntegerField(db_default=0, help_text="Of energy_uj: the part whose host was metered.")
    gpu_us = models.BigIntegerField(default=0)
    carbon_ug = models.BigIntegerField(default=0)
    carbon_unknown_uj = models.BigIntegerField(default=0)
    cost_nano = models.BigIntegerField(default=0)
    cost_unknown_uj = models.BigIntegerField(default=0)
    rental_nano = models.BigIntegerField(default=0)
    rental_unknown_us = models.BigIntegerField(default=0)
    embodied_ug = models.BigIntegerField(default=0)
    embodied_unknown_us = models.BigIntegerField(default=0)
    requests = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)

    class Meta:
        abstract = True


class StatementLine(Amounts):
    """The amounts of one tenant's requests of a service or an adapter of it in a pool in a settled window, or nobody's.

    Whole units, so that lines add up exactly: microjoules at the GPUs' meters, microseconds of one GPU, micrograms,
    billionths of the currency. `host_uj` stands beside the GPUs' joules, and is known where `host_known_uj` is all of
    these; facility, carbon and cost are of the GPUs alone. Of a part whose intensity, tariff or rate is not known the
    amount is not in the sum, and the `unknown` columns say how much that is. Carbon is location-based and average; PUE
    is in carbon and cost.
    A settlement that corrects another has its lines once more, negated (reversal), and the valid ones (restated).
    """

    class LineEntry(models.TextChoices):
        ORIGINAL = "original"
        REVERSAL = "reversal"
        RESTATED = "restated"

    settlement = models.ForeignKey(Settlement, on_delete=models.PROTECT, related_name="lines")
    entry = models.CharField(max_length=8, choices=LineEntry)
    kind = models.CharField(max_length=12)  # as EnergyEntry.EnergyKind
    pool = models.ForeignKey(
        "pools.Pool", on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="+"
    )
    service = models.CharField(max_length=100, blank=True)
    tenant = models.ForeignKey(
        "pools.Tenant", on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="+"
    )
    adapter = models.CharField(max_length=100, blank=True, db_default="", help_text=OF_ADAPTER)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["settlement", "entry", "kind", "pool", "service", "tenant", "adapter"],
                nulls_distinct=False,
                name="statement_line_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.settlement_id} {self.entry} {self.kind} {self.energy_uj} uJ"


class StatementHour(Amounts):
    """What the lines of a site's UTC hour add up to as of its newest settlement: kept by a trigger, with the lines.

    A report reads these in place of twelve windows' lines, wherever nothing newer than its version is in the hour.
    `lines` counts originals and restated ones, less reversals: at 0 nothing of it is valid any more.
    """

    site = models.ForeignKey(Site, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+")
    start_at = models.DateTimeField()
    kind = models.CharField(max_length=12)
    pool_id = models.BigIntegerField(null=True)
    service = models.CharField(max_length=100, blank=True)
    tenant_id = models.BigIntegerField(null=True)
    adapter = models.CharField(max_length=100, blank=True, db_default="", help_text=OF_ADAPTER)
    currency = models.CharField(max_length=3)
    lines = models.IntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["start_at", "site", "pool_id", "kind", "service", "tenant_id", "adapter", "currency"],
                nulls_distinct=False,
                name="statement_hour_once",
            ),
        ]

    def __str__(self) -> str:
        return f"site {self.site_id} {self.start_at:%Y-%m-%d %H:%M} {self.kind} {self.energy_uj} uJ"


class RequestShare(models.Model):
    """A request's part of a settled window's joules: measured and shared out, where the record has a prediction.

    Range-partitioned by `start_at`, the window's. A request that went on over several windows has a share of each.
    """

    pk = models.CompositePrimaryKey("start_at", "settlement_id", "request_id")
    start_at = models.DateTimeField()
    settlement_id = models.BigIntegerField()
    started_at = models.DateTimeField()  # the request's
    request_id = models.CharField(max_length=64)
    prefill_uj = models.BigIntegerField()
    decode_uj = models.BigIntegerField()
    gpu_us = models.BigIntegerField()

    class Meta:
        db_table = "telemetry_requestshare"

    def __str__(self) -> str:
        return f"{self.request_id} {self.prefill_uj + self.decode_uj} uJ"
