"""The services that are served, with their SLOs, pools and instances."""

from __future__ import annotations

import uuid

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q

from core.algorithms.fleet.gpu_parts import EQUAL, Share
from core.engine.engine_launch import EngineLaunch
from core.observations.limits import lacks_pace
from core.policy import presets
from core.policy.knobs import DYNAMO, WHOLE, Knobs
from core.policy.presets import Policy
from core.types import Limits

from .catalogue import ModelCard, Partition, RequestClass
from .fleet import Gpu, Node, Site


class Service(models.Model):
    """A model offered to clients under `name`, with objectives, the partition in force, and the policy that runs it.

    `policy` and `knobs` are what people configure. Where that does not act, `acting_policy` and `acting_knobs` are what
    does: gateways, agents and loops go by these.
    """

    name = models.CharField(max_length=100, unique=True, help_text="The `model` that clients send.")
    model_card = models.ForeignKey(ModelCard, on_delete=models.PROTECT, related_name="services")
    partition = models.ForeignKey(
        Partition,
        on_delete=models.PROTECT,
        related_name="active_services",
        help_text=(
            "In force; the carbon epoch's. The policy may name another: greenserve serves all requests as one "
            "class. For classes of your own set the knob partition=NAME."
        ),
    )
    partitions = models.ManyToManyField(
        Partition, related_name="services", help_text="Those the carbon epoch may choose from."
    )
    description = models.CharField(max_length=300, blank=True)
    expected_rps = models.FloatField(
        null=True, blank=True, help_text="Load to plan for until five minutes have been seen, in requests/s."
    )
    expected_prompt_tokens = models.PositiveIntegerField(null=True, blank=True, help_text="Mean length of prompts.")
    expected_output_tokens = models.PositiveIntegerField(null=True, blank=True, help_text="Mean length of answers.")
    weight = models.FloatField(
        default=EQUAL.weight,
        db_default=EQUAL.weight,
        help_text="Its part beside other services where GPUs are scarce: 2 is twice as many as 1.",
    )
    min_gpus = models.PositiveIntegerField(
        default=EQUAL.min_gpus,
        db_default=EQUAL.min_gpus,
        verbose_name="min GPUs",
        help_text=(
            "It has as many, where it needs them, before others get more than an instance for each class. What it does "
            "not need, others may use."
        ),
    )
    max_gpus = models.PositiveIntegerField(
        null=True,
        blank=True,
        verbose_name="max GPUs",
        help_text="It never has more, not even where GPUs are free. Empty: there is no limit.",
    )
    max_loras = models.PositiveSmallIntegerField(
        default=4,
        db_default=4,
        verbose_name="max LoRAs",
        help_text="LoRA adapters that an engine has loaded at once; for another one the least recently used goes.",
    )
    policy = models.CharField(
        max_length=20,
        default=presets.DEFAULT,
        choices=presets.choices,
        help_text="A preset: the policy of a paper, or GreenServe's own.",
    )
    knobs = models.JSONField(default=dict, blank=True, help_text="Knobs that are set otherwise than in the preset.")
    acting_policy = models.CharField(
        max_length=20,
        blank=True,
        default="",
        choices=presets.choices,
        editable=False,
        help_text="The policy in force, where it is not the one configured. Empty: it is.",
    )
    acting_knobs = models.JSONField(
        default=dict, blank=True, editable=False, help_text="The knobs of the policy in force, as `knobs`."
    )

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(expected_rps__isnull=True)
                | (
                    Q(expected_rps__gt=0)
                    & Q(expected_prompt_tokens__isnull=False, expected_prompt_tokens__gt=0)
                    & Q(expected_output_tokens__isnull=False, expected_output_tokens__gt=0)
                ),
                name="service_expected_load_whole",
            ),
            models.CheckConstraint(condition=Q(weight__gt=0), name="service_weight_above_0"),
            models.CheckConstraint(
                condition=Q(max_gpus__isnull=True) | (Q(max_gpus__gte=1) & Q(max_gpus__gte=F("min_gpus"))),
                name="service_max_gpus_from_min",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raises ValidationError: the policy or a knob makes no sense, names a partition that there is not, or has no
        objective to go by."""
        super().clean()
        try:
            self.share  # noqa: B018
        except ValueError as error:
            name, _, words = str(error).partition(": ")
            raise ValidationError({name: words}) from None
        try:
            found = self.configured_policy().knobs
        except ValueError as error:
            raise ValidationError({"knobs" if self.policy in presets.PRESETS else "policy": str(error)}) from None
        known = {*Partition.objects.values_list("name", flat=True), WHOLE, DYNAMO, ""}
        if found.partition not in known:
            raise ValidationError(
                {"knobs": f"there is no partition '{found.partition}'; known are {', '.join(sorted(known - {''}))}"}
            )
        chosen = Service.objects.filter(pk=self.pk).exclude(policy=self.policy, knobs=self.knobs)
        if self.pk is not None and chosen.exists() and (words := self.lacks_pace(self.limits())):
            raise ValidationError({"policy": words})

    @property
    def share(self) -> Share:
        """Says what part of the GPUs it is to have. Raises ValueError where that cannot be, which `clean` prevents."""
        return Share(self.weight, self.min_gpus, self.max_gpus)

    def limits(self) -> Limits:
        """Returns the service's objectives as limits."""
        found = {slo.kind: slo.objective_s for slo in self.slos.all()}
        return Limits(found.get(SloMetric.TTFT), found.get(SloMetric.TPOT), found.get(SloMetric.E2E))

    def lacks_pace(self, limits: Limits) -> str:
        """Says why the policy that is configured has nothing to go by under such objectives, and what to do; empty: it
        has."""
        found = self.configured_policy()
        return lacks_pace(found.knobs.clock, found.knobs.admission, found.tuning.throttle.tbt_s, (limits,))

    def configured_policy(self) -> Policy:
        """Returns what people have configured. Raises ValueError when that makes no sense, which `clean` prevents."""
        return presets.policy(self.policy, self.knobs)

    def own_policy(self) -> Policy:
        """Returns the policy in force: what gateways, agents and loops go by."""
        return presets.policy(self.acting_policy, self.acting_knobs) if self.acting_policy else self.configured_policy()

    def policy_knobs(self) -> Knobs:
        """Returns the knobs of the policy in force."""
        return self.own_policy().knobs

    def max_lora_rank(self) -> int:
        """Returns the highest rank of its adapters, which its engines are started for; 0: it has none."""
        return max((adapter.rank for adapter in self.adapters.all()), default=0)


class Adapter(models.Model):
    """A LoRA adapter of a service's model. Clients ask for it by its own name; engines load it when one does."""

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="adapters")
    name = models.CharField(max_length=100, unique=True, help_text="The `model` that clients send.")
    source = models.CharField(
        max_length=300, help_text="Its weights: a Hugging Face id, or a folder on the nodes that have its engines."
    )
    rank = models.PositiveSmallIntegerField(help_text="`r` in its adapter_config.json.")

    class Meta:
        ordering = ["service", "name"]
        verbose_name = "LoRA adapter"

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raises ValidationError: a source that is neither an id nor a folder."""
        super().clean()
        try:
            EngineLaunch(self.source).check()
        except ValueError as error:
            raise ValidationError({"source": f"{str(error).partition(': ')[2]}."}) from None


class SloMetric(models.TextChoices):
    """The latency that an objective is for."""

    TTFT = "ttft", "TTFT"
    TPOT = "tpot", "TPOT"
    E2E = "e2e", "E2E"


class Slo(models.Model):
    """One objective: `percentile` of requests within `objective_s`."""

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="slos")
    kind = models.CharField(max_length=8, choices=SloMetric)
    objective_s = models.FloatField()
    percentile = models.FloatField(default=99.0)

    class Meta:
        ordering = ["service", "kind"]
        constraints = [
            models.UniqueConstraint(fields=["service", "kind"], name="slo_kind_per_service"),
            models.CheckConstraint(condition=Q(objective_s__gt=0), name="slo_objective_positive"),
            models.CheckConstraint(condition=Q(percentile__gt=0) & Q(percentile__lte=100), name="slo_percentile_range"),
        ]

    def __str__(self) -> str:
        return f"{self.service}: {self.get_kind_display()} p{self.percentile:g} <= {self.objective_s:g} s"


class Pool(models.Model):
    """The instances at one site that serve one request class of a service.

    `gpu_budget` (GPU type -> GPUs) is the carbon epoch's envelope; `workers` (worker mode -> instances) is what scale
    and shard want within it. A pool of a class outside the active partition has neither.
    """

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="pools")
    site = models.ForeignKey(Site, on_delete=models.PROTECT, related_name="pools")
    request_class = models.ForeignKey(RequestClass, on_delete=models.PROTECT, related_name="pools")
    gpu_budget = models.JSONField(default=dict, blank=True)
    workers = models.JSONField(default=dict, blank=True)
    warm = models.PositiveSmallIntegerField(
        default=0, help_text="Engines kept warm beside those that are wanted: asleep, or loaded, without requests."
    )

    class Meta:
        ordering = ["service", "request_class__rank", "site", "pk"]
        constraints = [models.UniqueConstraint(fields=["service", "site", "request_class"], name="pool_once")]

    def __str__(self) -> str:
        return f"{self.request_class.name} at {self.site}"


class Instance(models.Model):
    """A model replica on GPUs of one node. `desired` is ours, `state` is what the agent last reported.

    One without a node registered itself: somebody else runs it, and nobody meters its GPUs
    (`telemetry.ingest.scraper`).
    """

    class Desired(models.TextChoices):
        RUNNING = "running"
        SLEEPING = "sleeping"
        DRAINING = "draining"
        STOPPED = "stopped"

    class State(models.TextChoices):
        PENDING = "pending"
        STARTING = "starting"
        READY = "ready"
        SLEEPING = "sleeping"
        DRAINING = "draining"
        FAILED = "failed"
        STOPPED = "stopped"

    class Start(models.TextChoices):
        WARM = "warm"
        COLD = "cold"

    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="instances")
    node = models.ForeignKey(
        Node, null=True, on_delete=models.PROTECT, related_name="instances", help_text="Null: it registered itself."
    )
    model_card = models.ForeignKey(ModelCard, on_delete=models.PROTECT, related_name="instances")
    gpu_type = models.CharField(max_length=40)
    tp = models.PositiveSmallIntegerField()
    desired = models.CharField(max_length=10, choices=Desired, default=Desired.RUNNING)
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    detail = models.CharField(max_length=300, blank=True)
    url = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    start_kind = models.CharField(
        max_length=4,
        blank=True,
        default="",
        choices=Start,
        help_text="Warm: the weights were on the node. Cold: they had to be fetched. Empty: not known.",
    )
    wake_asked_at = models.DateTimeField(null=True, blank=True, help_text="When it was last asked to wake from sleep.")
    woken_at = models.DateTimeField(null=True, blank=True, help_text="When it was ready after that; null: not yet.")
    stopped_at = models.DateTimeField(null=True, blank=True)
    decision_id = models.BigIntegerField(
        null=True, blank=True, help_text="The decision that started it, or that last took it to other GPUs."
    )
    reshards = models.BooleanField(
        default=False, db_default=False, help_text="Its engine can go over to other GPUs while it serves."
    )
    reshard_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was last to go over to other GPUs in place. Empty: never."
    )
    resharded_at = models.DateTimeField(null=True, blank=True, help_text="When it served there. Empty: not yet.")
    max_lora_rank = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="The rank of LoRA adapters that it was started for; null: not known."
    )
    max_loras = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="As many adapters at once it was started for; null: not known."
    )
    replaces = models.JSONField(
        default=list, blank=True, help_text="Shadow start: uids of instances that serve until this one is ready."
    )

    class Meta:
        ordering = ["pool", "created_at"]
        constraints = [models.CheckConstraint(condition=Q(tp__gt=0), name="instance_tp_positive")]
        indexes = [
            models.Index(fields=["pool"], condition=~Q(state="stopped"), name="instance_live_by_pool"),
            models.Index(fields=["node"], condition=~Q(state="stopped"), name="instance_live_by_node"),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_type}/TP{self.tp} {str(self.uid)[:8]}"

    def started_for_less(self, max_lora_rank: int, max_loras: int) -> bool:
        """Says whether its engine cannot load what a service's can that are started now. Not if that is not known."""
        if not max_lora_rank or self.max_lora_rank is None or self.max_loras is None:
            return False
        return self.max_lora_rank < max_lora_rank or self.max_loras < max_loras


class InstanceGpu(models.Model):
    """A slice of a GPU that is allocated to an instance; of a GPU that is not cut, all of it is slice 0.

    No live instances share one, but for a shadow and its original. One that sleeps with its service has released it,
    and has it again once it is to wake.
    """

    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="gpu_holds")
    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="holds")
    slice = models.PositiveSmallIntegerField(default=0, db_default=0, help_text="Of the GPU's slices, from 0 on.")
    released_at = models.DateTimeField(null=True, blank=True)
    beside = models.BooleanField(default=False, help_text="Until the one that it replaces has gone from there.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["gpu", "slice", "beside"], condition=Q(released_at__isnull=True), name="gpu_held_once"
            ),
            models.UniqueConstraint(fields=["instance", "gpu"], name="instance_gpu_once"),
        ]

    def __str__(self) -> str:
        return f"{self.instance} on {self.gpu}"
