"""The models that can be served and their performance: model cards, partitions with request classes, profiles."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q

from core.engine.engine_launch import DTYPES, EngineLaunch
from core.types import Limits


class ModelCard(models.Model):
    """A model that pools can serve. `name` is also its name in the engine model."""

    name = models.CharField(max_length=100, unique=True)
    hugging_face_id = models.CharField(max_length=200, blank=True)
    max_model_len = models.PositiveIntegerField(help_text="Longest prompt plus output, in tokens.")
    engine = models.CharField(max_length=40, default="vllm-v1", help_text="Engine parameters of the engine model.")
    tokenizer = models.CharField(
        max_length=300,
        blank=True,
        help_text="The model's tokenizer.json, a file on the gateways' machines; empty: prompts are estimated.",
    )
    weights = models.CharField(
        max_length=300, blank=True, help_text="Folder on the nodes with the weights; empty: the Hugging Face id."
    )
    dtype = models.CharField(
        max_length=10,
        default="auto",
        choices=[(name, name) for name in DTYPES],
        help_text="Number format that engines compute in; auto: that of the weights.",
    )
    engine_arguments = models.JSONField(
        default=list, blank=True, help_text='vLLM\'s arguments, word by word: ["--kv-cache-dtype", "fp8"].'
    )
    engine_environment = models.JSONField(
        default=dict, blank=True, help_text='Variables of engines: {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}.'
    )

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(max_model_len__gt=0), name="model_card_max_model_len_positive")
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raises ValidationError: an argument or a variable that may not be set here."""
        super().clean()
        if not isinstance(self.engine_arguments, list):
            raise ValidationError({"engine_arguments": 'Write a list of words: ["--kv-cache-dtype", "fp8"].'})
        if not isinstance(self.engine_environment, dict):
            raise ValidationError({"engine_environment": "Write an object of names and values."})
        fields = {"arguments": "engine_arguments", "environment": "engine_environment"}
        try:
            self.launch().check()
        except ValueError as error:
            where, _, why = str(error).partition(": ")
            raise ValidationError({fields.get(where, where): why}) from None

    def launch(self) -> EngineLaunch:
        """Returns how a real engine of this card is started."""
        weights = self.weights or self.hugging_face_id
        return EngineLaunch(weights, self.dtype, tuple(self.engine_arguments), dict(self.engine_environment))


class Partition(models.Model):
    """A way to cut requests into classes by prompt and output length (FREESH knob 2)."""

    name = models.SlugField(unique=True)
    source = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class RequestClass(models.Model):
    """A range of lengths of a partition. Lower bounds are inclusive, upper ones exclusive; empty: no bound.

    The thresholds are the clock loop's (FREESH table 7), not the service's SLO. Plans and gateways keep them too where
    a service's policy has `class_limits`.
    """

    partition = models.ForeignKey(Partition, on_delete=models.CASCADE, related_name="classes")
    name = models.CharField(max_length=20)
    rank = models.PositiveSmallIntegerField(help_text="Order by size; spilling goes upwards.")
    input_min = models.PositiveIntegerField(default=0)
    input_max = models.PositiveIntegerField(null=True, blank=True)
    output_min = models.PositiveIntegerField(default=0)
    output_max = models.PositiveIntegerField(null=True, blank=True)
    ttft_threshold_s = models.FloatField(null=True, blank=True)
    tpot_threshold_s = models.FloatField(null=True, blank=True)
    e2e_threshold_s = models.FloatField(null=True, blank=True)

    class Meta:
        ordering = ["partition", "rank"]
        constraints = [
            models.UniqueConstraint(fields=["partition", "name"], name="request_class_name_per_partition"),
            models.UniqueConstraint(fields=["partition", "rank"], name="request_class_rank_per_partition"),
            models.CheckConstraint(
                condition=Q(input_max__isnull=True) | Q(input_max__gt=F("input_min")), name="request_class_input_range"
            ),
            models.CheckConstraint(
                condition=Q(output_max__isnull=True) | Q(output_max__gt=F("output_min")),
                name="request_class_output_range",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.partition.name}/{self.name}"

    @property
    def thresholds(self) -> Limits:
        return Limits(self.ttft_threshold_s, self.tpot_threshold_s, self.e2e_threshold_s)


class ProfileSource(models.TextChoices):
    """The source of a profile's figures, in order of trust; `core.types.Source` has interpolated ones as well."""

    MEASURED = "measured"
    PUBLISHED = "published"
    MODELLED = "modelled"


class Profile(models.Model):
    """The performance of one instance of a worker mode for one class at its top clock; figures with their source.

    `max_rps` 0: the mode cannot serve the class. A figure that the source lacks, or that is impossible, is empty.
    """

    model_card = models.ForeignKey(ModelCard, on_delete=models.CASCADE, related_name="profiles")
    request_class = models.ForeignKey(RequestClass, on_delete=models.CASCADE, related_name="profiles")
    gpu_type = models.CharField(max_length=40)
    tp = models.PositiveSmallIntegerField()
    max_rps = models.FloatField()
    power_w = models.FloatField(help_text="Whole instance, at max_rps.")
    e2e_s = models.FloatField(null=True, blank=True)
    tpot_s = models.FloatField(null=True, blank=True)
    ttft_s = models.FloatField(null=True, blank=True)
    kind = models.CharField(max_length=10, choices=ProfileSource)
    source = models.CharField(max_length=300)
    note = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["model_card", "request_class", "gpu_type", "tp"]
        constraints = [
            models.UniqueConstraint(
                fields=["model_card", "request_class", "gpu_type", "tp", "source"], name="profile_once_per_source"
            ),
            models.CheckConstraint(
                condition=Q(tp__gt=0) & Q(max_rps__gte=0) & Q(power_w__gt=0), name="profile_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model_card} {self.request_class} {self.gpu_type}/TP{self.tp}"
