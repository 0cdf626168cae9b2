"""The messages of a machine that joins the fleet, and of the answer to it: JSON by msgspec, over HTTP."""

from __future__ import annotations

from core.engine.gpu_types import GpuType
from pools.wire import Message


class GpuOffer(Message, frozen=True):
    """A GPU as the driver describes it; None: it does not say.

    `sheet`: of a type that the machine does not know, the data sheet that the driver's figures come to. `lacking`: the
    figures for want of which there is none.
    """

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
    sheet: GpuType | None = None
    lacking: list[str] = []


class NodeOffer(Message, frozen=True):
    """`release`: of GreenServe on the machine; empty: a program that does not say it yet."""

    token: str
    name: str
    driver: str
    gpus: list[GpuOffer]
    release: str = ""


class Joined(Message, frozen=True):
    """`broker_url`: the control plane's Redis, through which the agent hears and reports; it may hold a password.

    `notes`: what is to be known of the node's GPU types.
    """

    node: str
    cluster: str
    broker_url: str
    notes: list[str] = []
