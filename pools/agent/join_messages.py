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
    """`release`: of GreenServe on the machine; empty: a program that does not say it yet.

    `request`: for a certificate of the node's key (`node_identity`), PEM.
    """

    token: str
    name: str
    driver: str
    gpus: list[GpuOffer]
    release: str = ""
    request: str = ""


class Joined(Message, frozen=True):
    """`broker_url`: the control plane's Redis, through which the agent hears and reports; with its own user's password.

    `notes`: what is to be known of the node's GPU types. `certificate`, `authority`, `redis_authority`: as of
    wire.NodeCertificate.
    """

    node: str
    cluster: str
    broker_url: str
    notes: list[str] = []
    certificate: str = ""
    authority: str = ""
    redis_authority: str = ""
