"""Tables of what was measured of engines: profiles, and what calibration found while they served.

Both are of a configuration: a model's shape, a GPU type, a TP degree and an engine (`core.engine.corrections`).
"""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from core.engine.calibration import Calibration
from core.engine.corrections import Configuration, Correction
from core.engine.profiles import Profile as EngineMeasurements
from core.engine.profiles import profiles_of
from core.types import Source

from .catalogue import ProfileSource


class _OfConfiguration(models.Model):
    shape = models.CharField(max_length=200, help_text="The model's shape, or its name where no shape is known.")
    gpu_type = models.CharField(max_length=40)
    tp = models.PositiveSmallIntegerField(validators=[MinValueValidator(1)])
    engine = models.CharField(max_length=40)

    class Meta:
        abstract = True

    @property
    def configuration(self) -> Configuration:
        return Configuration(self.shape, self.gpu_type, self.tp, self.engine)


class EngineProfile(_OfConfiguration):
    """One version of a configuration's profile. Of all versions at most one is published: decisions go by that.

    `points` are rows as `core.engine.profiles` reads them; `version` is the hash of their content.
    """

    model_name = models.CharField(max_length=100, help_text="The model that was measured.")
    version = models.CharField(max_length=64)
    source = models.CharField(max_length=10, choices=ProfileSource)
    origin = models.CharField(max_length=300, blank=True, help_text="Who measured it, and where.")
    points = models.JSONField()
    point_count = models.PositiveIntegerField()
    measured_at = models.DateTimeField(null=True, blank=True, help_text="Empty: not known.")
    created_at = models.DateTimeField(auto_now_add=True)
    published_at = models.DateTimeField(null=True, blank=True, help_text="Empty: no decision goes by it.")

    class Meta:
        ordering = ["shape", "gpu_type", "tp", "engine", "-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["shape", "gpu_type", "tp", "engine", "version"], name="engine_profile_version_once"
            ),
            models.UniqueConstraint(
                fields=["shape", "gpu_type", "tp", "engine"],
                condition=Q(published_at__isnull=False),
                name="engine_profile_one_published",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model_name} on {self.tp} x {self.gpu_type}, {self.engine}, {self.version[:8]}"

    def measurements(self) -> EngineMeasurements:
        """Returns the profile as the engine model reads it. Raises ProfileError: rows that cannot be used."""
        (found,) = profiles_of(self.points)
        return found


class EngineResidual(_OfConfiguration):
    """Says by how much a configuration's engines differ from what is predicted of them, of late.

    `time` and `power` are factors by clock, empty until there is enough to correct; `state` is the calibration's own.
    """

    time = models.JSONField(default=list)
    power = models.JSONField(default=list)
    state = models.JSONField(default=dict)
    windows = models.FloatField(default=0.0, help_text="Seen of late, the older the less.")
    time_drift = models.FloatField(default=0.0, help_text="Measured over predicted seconds, less 1.")
    power_drift = models.FloatField(default=0.0, help_text="Measured over predicted watts, less 1.")
    drifted = models.BooleanField(default=False, help_text="Far enough that a new profile is worth its while.")
    at = models.DateTimeField(help_text="End of the last window.")

    class Meta:
        ordering = ["shape", "gpu_type", "tp", "engine"]
        constraints = [
            models.UniqueConstraint(fields=["shape", "gpu_type", "tp", "engine"], name="engine_residual_once")
        ]

    def __str__(self) -> str:
        return f"{self.shape} on {self.tp} x {self.gpu_type}, {self.engine}"

    @property
    def correction(self) -> Correction | None:
        """The correction that is in force; None: none is."""
        if not self.time:
            return None
        return Correction(tuple(self.time), tuple(self.power), Source.CALIBRATED, self.at.timestamp())

    def calibration(self) -> Calibration:
        """Returns the ratios so far."""
        return Calibration.of_state(self.state)
