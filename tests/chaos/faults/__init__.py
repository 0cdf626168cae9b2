"""The faults, a module for each component. `EVERY` has them all, in the order of the page."""

from __future__ import annotations

from tests.chaos.fault import Fault
from tests.chaos.faults import (
    control_plane,
    disks,
    gateways,
    hostile,
    networks,
    nodes,
    postgres,
    redis_server,
    time_faults,
    workers,
)

EVERY: tuple[Fault, ...] = (
    *gateways.FAULTS,
    *nodes.FAULTS,
    *workers.FAULTS,
    *redis_server.FAULTS,
    *postgres.FAULTS,
    *control_plane.FAULTS,
    *time_faults.FAULTS,
    *hostile.FAULTS,
    *disks.FAULTS,
    *networks.FAULTS,
)
