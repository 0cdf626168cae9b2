"""Tables of what is served, on which GPUs and how fast: model cards, GPU types, request classes, profiles."""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q

from core.engine import gpu_types
from core.engine.engine_launch import DTYPES, EngineLaunch
from core.engine.engine_params import FITTED, split_fault
from core.engine.gpu_type_fields import FIGURES, checked, sheet_of, values_of
from core.engine.model_config import BadConfig
from core.types import Limits
from pools.model_files.hugging_face import kv_bits_of, parse, shape_of_document


class ModelCard(models.Model):
    """A model that pools can serve.

    The engine model goes by its `shape`, which is made of its `config` whenever the card is saved: fine-tunes of a base
    share what is known of it. Without a config the card's name must be one that the engine model knows.
    """

    name = models.CharField(max_length=100, unique=True)
    hugging_face_id = models.CharField(max_length=200, blank=True)
    config = models.JSONField(
        null=True, blank=True, help_text="The model's config.json; empty: the engine model must know the card's name."
    )
    shape = models.CharField(max_length=200, blank=True, editable=False, help_text="Made of the config.")
    max_model_len = models.PositiveIntegerField(help_text="Longest prompt plus output, in tokens.")
    engine = models.CharField(max_length=40, default="vllm-2025", help_text="Engine parameters of the engine model.")
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

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Makes the shape of the config. Rows of `bulk_create` must bring theirs. Raises BadConfig."""
        self.take_shape()
        if (names := kwargs.get("update_fields")) is not None:
            kwargs["update_fields"] = {*names, "shape"}
        super().save(*args, **kwargs)

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
        try:
            self.take_shape()
        except BadConfig as error:
            raise ValidationError({"config": str(error)}) from None

    @property
    def engine_model_name(self) -> str:
        """The name by which the engine model knows it: its shape's key, or else the card's own."""
        return self.shape or self.name

    def take_shape(self) -> None:
        """Makes the shape of the config as it now is. Raises BadConfig."""
        self.shape = self._shape()

    def _shape(self) -> str:
        if self.config is None:
            return ""
        return shape_of_document(parse(json.dumps(self.config)), self.name, kv_bits_of(self.engine_arguments or ())).key

    def launch(self) -> EngineLaunch:
        """Returns how a real engine of this card is started."""
        weights = self.weights or self.hugging_face_id
        return EngineLaunch(weights, self.dtype, tuple(self.engine_arguments), dict(self.engine_environment))


class GpuType(models.Model):
    """A GPU product beyond those that are shipped, by its data sheet (`core.engine.gpu_types`)."""

    name = models.CharField(max_length=gpu_types.MOST_NAME, unique=True, help_text="For example L40S-48GB.")
    peak_tflops = models.FloatField(help_text="Dense, at 16 bit.")
    fp8_tflops = models.FloatField(null=True, blank=True, help_text="Dense, at 8 bit; empty: it has no such units.")
    fp4_tflops = models.FloatField(null=True, blank=True, help_text="Dense, at 4 bit; empty: it has no such units.")
    memory_gb = models.FloatField(help_text="Billions of bytes, as its driver says.")
    memory_gb_per_s = models.FloatField(help_text="Bandwidth of its memory.")
    link_gb_per_s = models.FloatField(help_text="To the other GPUs of its node, both directions together.")
    tdp_w = models.FloatField()
    idle_w = models.FloatField(null=True, blank=True, help_text="With nothing loaded; empty: as the type it is like.")
    min_mhz = models.FloatField(help_text="Lowest SM clock.")
    max_mhz = models.FloatField(help_text="Highest SM clock.")
    like = models.CharField(
        max_length=gpu_types.MOST_NAME,
        help_text="The measured type whose efficiencies it is given until it has a profile of its own.",
    )
    driver_names = models.JSONField(
        default=list, blank=True, help_text='Names by which drivers know it: ["NVIDIA L40S"].'
    )
    source = models.CharField(max_length=300, help_text="Where these figures are from.")
    assumed = models.JSONField(default=list, blank=True, help_text='Fields that the source lacks: ["min_mhz"].')

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raises ValidationError: figures that no GPU has, or the name of a shipped type."""
        super().clean()
        if self.name in gpu_types.SHIPPED:
            raise ValidationError({"name": "This type is shipped: give yours another name."})
        for name in ("driver_names", "assumed"):
            words = getattr(self, name)
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise ValidationError({name: "Write a list of words."})
        if unknown := sorted(set(self.assumed) - FIGURES.keys()):
            known = ", ".join(FIGURES)
            raise ValidationError({"assumed": f"No such fields: {', '.join(unknown)}; known are {known}."})
        try:
            checked(self.sheet(), FITTED)
        except gpu_types.BadGpuType as error:
            if getattr(self, error.field_name, "") is not None:  # what is missing is said already
                raise ValidationError({error.field_name: str(error).partition(": ")[2]}) from None

    @classmethod
    def of_sheet(cls, sheet: gpu_types.GpuType) -> GpuType:
        """Returns a row, not stored, that says the same."""
        return cls(name=sheet.name, **values_of(sheet))

    def sheet(self) -> gpu_types.GpuType:
        """Returns the data sheet as the engine model reads it."""
        names = (*FIGURES, "like", "source", "driver_names", "assumed")
        return sheet_of(self.name, {name: getattr(self, name) for name in names})


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

    def clean(self) -> None:
        """Raises ValidationError: a TP degree that the model cannot be cut by."""
        super().clean()
        known = bool(self.tp) and self.model_card_id is not None
        if known and (fault := split_fault(self.model_card.engine_model_name, self.gpu_type, self.tp)):
            raise ValidationError({"tp": f"{fault}."})
