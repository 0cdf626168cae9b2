"""What-ifs: a scenario, and several runs of it in the simulator."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from pools.models import Job


class Study(models.Model):
    """A what-if: one scenario, several runs of it in the simulator. Its job says how it goes (docs/what-if.md).

    `scenario` is a scenario file's mapping; files that it names are rows of `StudyFile`. `heard_at` is when a worker
    last said something of it, or when it was last sent to one.
    """

    name = models.CharField(max_length=120)
    base = models.CharField(max_length=120, help_text="What the scenario was made from.")
    scenario = models.JSONField()
    notes = models.JSONField(default=list, help_text="What the scenario assumes or leaves out, in sentences.")
    currency = models.CharField(max_length=3, default="USD", help_text="Of all its prices.")
    target = models.FloatField(default=0.99, help_text="The share of requests that is to keep every objective.")
    job = models.OneToOneField(Job, on_delete=models.PROTECT, related_name="study")
    attempts = models.PositiveSmallIntegerField(default=0, help_text="How many workers took it up.")
    heard_at = models.DateTimeField()
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "studies"

    def __str__(self) -> str:
        return self.name


class StudyFile(models.Model):
    """A trace or a series that a study's scenario names, compressed with zlib."""

    study = models.ForeignKey(Study, on_delete=models.CASCADE, related_name="files")
    name = models.CharField(max_length=100)
    data = models.BinaryField()

    class Meta:
        ordering = ["study", "name"]
        constraints = [models.UniqueConstraint(fields=["study", "name"], name="study_file_once")]

    def __str__(self) -> str:
        return self.name


class RunState(models.TextChoices):
    """The progress of a study's run."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StudyRun(models.Model):
    """A study's scenario under one policy. `figures` are the simulator's; `series` is over time, by site."""

    study = models.ForeignKey(Study, on_delete=models.CASCADE, related_name="runs")
    index = models.PositiveSmallIntegerField()
    label = models.CharField(max_length=200)
    policy = models.CharField(max_length=40)
    knobs = models.JSONField(default=dict, blank=True, help_text="Keys of the policy that are set otherwise.")
    changes = models.JSONField(default=list, blank=True, help_text="Fields set otherwise: key.key=value.")
    state = models.CharField(max_length=10, choices=RunState, default=RunState.QUEUED)
    progress = models.FloatField(null=True, help_text="Share done; null: it is not known.")
    simulated_s = models.FloatField(default=0.0)
    figures = models.JSONField(null=True)
    series = models.JSONField(null=True)
    error = models.TextField(blank=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["study", "index"]
        constraints = [models.UniqueConstraint(fields=["study", "index"], name="study_run_once")]

    def __str__(self) -> str:
        return self.label
