"""The places of the fleet: sites, clusters, nodes, GPUs."""

from __future__ import annotations

import itertools
from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator, validate_ipv4_address
from django.db import models
from django.db.models import Q

from core import bounds
from core.engine.gpu_slices import MOST as MOST_SLICES
from core.engine.gpu_slices import sliced

PUE_MOST = bounds.PUE.most


class Site(models.Model):
    """A data centre: one grid zone, one PUE, one currency."""

    name = models.SlugField(unique=True)
    label = models.CharField(max_length=100, help_text="Name shown to people, for example Ashburn.")
    grid_zone = models.CharField(max_length=40, help_text="The carbon feeds' name of the grid zone, for example DE.")
    market = models.CharField(
        max_length=60,
        blank=True,
        help_text="Market that its contracts for electricity must be from, for example AIB; empty: not declared.",
    )
    time_zone = models.CharField(max_length=60, default="UTC", help_text="IANA name, for example Europe/Berlin.")
    latitude = models.FloatField(
        null=True,
        blank=True,
        help_text="Degrees north of the equator, for its weather, for example 39.04; empty: unknown.",
    )
    longitude = models.FloatField(
        null=True,
        blank=True,
        help_text="Degrees east of Greenwich, west is negative, for example -77.49; empty: unknown.",
    )
    pue = models.FloatField(
        default=1.54,
        validators=[MinValueValidator(1.0), MaxValueValidator(PUE_MOST)],
        help_text="Power usage effectiveness; the default is Uptime Institute's mean of 2025.",
    )
    currency = models.CharField(max_length=3, default="USD")
    power_cap_w = models.FloatField(null=True, blank=True, help_text="Cap on the site's power in watts; empty: none.")
    rank = models.PositiveSmallIntegerField(default=0, help_text="Order on pages.")
    colour = models.PositiveSmallIntegerField(
        blank=True,
        editable=False,
        help_text="Place among the colours of charts, given once; other sites never move it.",
    )

    class Meta:
        ordering = ["rank", "name"]
        constraints = [
            models.CheckConstraint(condition=Q(pue__gte=1.0), name="site_pue_at_least_1"),
            models.CheckConstraint(
                condition=Q(power_cap_w__isnull=True) | Q(power_cap_w__gt=0), name="site_power_cap_positive"
            ),
            models.CheckConstraint(condition=Q(currency__regex=r"^[A-Z]{3}$"), name="site_currency_iso4217"),
            models.CheckConstraint(
                condition=Q(latitude__isnull=True, longitude__isnull=True)
                | Q(latitude__isnull=False, longitude__isnull=False),
                name="site_latitude_with_longitude",
            ),
        ]

    def __str__(self) -> str:
        return self.label or self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Gives a new site the first colour that no other has. Rows of `bulk_create` must bring theirs."""
        if self._state.adding and self.colour is None:
            taken = set(Site.objects.values_list("colour", flat=True))
            self.colour = next(n for n in itertools.count() if n not in taken)
        super().save(*args, **kwargs)


class Cluster(models.Model):
    """Nodes of one site that are run together; a site has one or more."""

    site = models.ForeignKey(Site, on_delete=models.PROTECT, related_name="clusters")
    name = models.SlugField()

    class Meta:
        ordering = ["site", "name"]
        constraints = [models.UniqueConstraint(fields=["site", "name"], name="cluster_name_per_site")]

    def __str__(self) -> str:
        return f"{self.site.name}/{self.name}"


class Slicing(models.TextChoices):
    """Says what keeps the engines on a GPU apart."""

    MEMORY = "memory", "memory alone"
    MPS = "mps", "memory, and threads by CUDA MPS"


class PowerPort(models.TextChoices):
    """Says by what a server is switched off and on."""

    NONE = "none", "nothing: it stays on"
    REDFISH = "redfish", "its BMC, by Redfish"
    WAKE_ON_LAN = "wake_on_lan", "wake-on-LAN, and off by a webhook"
    WEBHOOK = "webhook", "a webhook of yours"
    SIMULATED = "simulated", "the simulated node itself"


class Node(models.Model):
    """A machine with GPUs and an agent. `name` is also its Celery queue's suffix.

    Its GPUs' rows say what is in the machine; plans count slices, as GPUs of a type of their own (`planned_type`).
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="nodes")
    name = models.SlugField(unique=True)
    simulated = models.BooleanField(default=False)
    schedulable = models.BooleanField(default=True, help_text="Off: epochs place nothing new here.")
    gpu_slices = models.PositiveSmallIntegerField(
        default=1,
        db_default=1,
        verbose_name="slices of each GPU",
        validators=[MinValueValidator(1), MaxValueValidator(MOST_SLICES)],
        help_text=(
            "So many engines share each GPU, each with an equal part of its memory and TP 1; all have its one clock. "
            "1: an engine has its GPUs to itself. It can be changed while no instance lives on the node."
        ),
    )
    slicing = models.CharField(
        max_length=6,
        choices=Slicing,
        default=Slicing.MEMORY,
        db_default=Slicing.MEMORY,
        verbose_name="engines on a GPU share",
        help_text="With MPS each gets its part of the threads too; the node's MPS daemon is for you to run.",
    )
    power_port = models.CharField(
        max_length=12,
        choices=PowerPort,
        default=PowerPort.NONE,
        db_default=PowerPort.NONE,
        verbose_name="switched off and on by",
        help_text="By it plans whose knob servers is power_off switch the server off while it is not needed.",
    )
    power_url = models.CharField(
        max_length=300,
        blank=True,
        default="",
        db_default="",
        verbose_name="address of what switches it",
        help_text="Of its BMC's system, https://BMC/redfish/v1/Systems/ID, or of the webhook. Its password or secret "
        "is in a file: docs/servers.md.",
    )
    power_mac = models.CharField(
        max_length=17,
        blank=True,
        default="",
        db_default="",
        verbose_name="MAC address",
        help_text="Of the network card that wakes it, for wake-on-LAN, for example 12:34:56:78:9a:bc.",
    )
    power_broadcast = models.CharField(
        max_length=15,
        blank=True,
        default="",
        db_default="",
        verbose_name="broadcast address",
        validators=[validate_ipv4_address],
        help_text="To which the packet of wake-on-LAN goes; empty: 255.255.255.255.",
    )
    boot_s = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1.0), MaxValueValidator(bounds.DURATION.most)],
        verbose_name="time to boot",
        help_text="Seconds from being switched on until its agent reports, until that is measured; empty: 600.",
    )

    class Meta:
        ordering = ["cluster", "name"]
        constraints = [
            models.CheckConstraint(
                condition=Q(gpu_slices__gte=1) & Q(gpu_slices__lte=MOST_SLICES), name="node_gpu_slices_range"
            )
        ]

    def __str__(self) -> str:
        return self.name


class Gpu(models.Model):
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="gpus")
    uuid = models.CharField(max_length=64, unique=True)
    index = models.PositiveSmallIntegerField()
    gpu_type = models.CharField(max_length=40, help_text="Name in the engine model, for example A100-80GB.")
    memory_gb = models.FloatField()
    min_mhz = models.FloatField()
    max_mhz = models.FloatField()
    tdp_w = models.FloatField()

    class Meta:
        ordering = ["node", "index"]
        constraints = [
            models.UniqueConstraint(fields=["node", "index"], name="gpu_index_per_node"),
            models.CheckConstraint(
                condition=Q(min_mhz__gt=0) & Q(max_mhz__gte=models.F("min_mhz")), name="gpu_clock_range"
            ),
            models.CheckConstraint(condition=Q(memory_gb__gt=0) & Q(tdp_w__gt=0), name="gpu_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.node.name}#{self.index}"

    @property
    def planned_type(self) -> str:
        """The type that plans count it as: its own, or that of its slices."""
        return sliced(self.gpu_type, self.node.gpu_slices)


def simulated_gpus() -> dict[str, list[tuple[str, int]]]:
    """Returns the GPUs of each simulated node that has some, by its name: types and counts, in the order of indices."""
    nodes: dict[str, list[tuple[str, int]]] = {}
    rows = Gpu.objects.filter(node__simulated=True).order_by("node__name", "index")
    for node, gpu_type in rows.values_list("node__name", "gpu_type"):
        groups = nodes.setdefault(node, [])
        if groups and groups[-1][0] == gpu_type:
            groups[-1] = (gpu_type, groups[-1][1] + 1)
        else:
            groups.append((gpu_type, 1))
    return nodes
