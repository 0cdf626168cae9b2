"""Small worlds for the policies' tests."""

from __future__ import annotations

from core.engine.engine_model import gpu
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.policies import CellLoad, ClassInfo, PartitionInfo, ServiceInfo, SiteInfo, World
from core.types import Limits

A100, H100 = "A100-80GB", "H100-SXM-80GB"
MODEL = "Llama2-70B"
LIMITS = Limits(ttft_s=1.0, tpot_s=0.1)


def templates(sites, tps=(8,), gpu_name=H100, model=MODEL):
    return tuple(
        InstanceSpec(f"{site}-tp{tp}", model, gpu_name, tp, gpu(gpu_name).f_max, site=site)
        for site in sites
        for tp in tps
    )


def service(*names, limits=LIMITS, name="chat"):
    """A service with one class for each cell."""
    classes = tuple(ClassInfo(class_name, limits) for class_name in names)
    return ServiceInfo(name, MODEL, (PartitionInfo("only", classes, {n: n for n in range(len(names))}),))


def world(sites, tps=(8,), classes=("all",), rps=2.0, limits=LIMITS, **more):
    """`sites`: {name: GPUs}, or SiteInfo values. `rps` of each cell is declared; None: nothing is."""
    infos = tuple(SiteInfo(s, {H100: n}) for s, n in sites.items()) if isinstance(sites, dict) else tuple(sites)
    declared = () if rps is None else tuple(CellLoad(rps, 1000.0, 200.0) for _ in classes)
    return World(
        infos,
        (service(*classes, limits=limits),),
        templates([info.name for info in infos], tps),
        len(classes),
        declared,
        **more,
    )
