"""The messages of a machine that joins the fleet, and of the answer to it: JSON by msgspec, over HTTP."""

from __future__ import annotations

from pools.wire import Message


class GpuOffer(Message, frozen=True):
    """A GPU as the driver describes it; None: it does not say."""

    uuid: str
    index: int
    name: str
    gpu_type: str
    memory_bytes: int
    min_mhz: float
    max_mhz: float
    tdp_w: float | None = None
    nvlinks: int | None = None
    mig_slices: int | None = None


class NodeOffer(Message, frozen=True):
    token: str
    name: str
    driver: str
    gpus: list[GpuOffer]


class Joined(Message, frozen=True):
    """`broker_url`: the control plane's Redis, through which the agent hears and reports; it may hold a password."""

    node: str
    cluster: str
    broker_url: str
