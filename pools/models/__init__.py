"""The fleet's tables: sites, nodes, GPUs, models, services, pools, instances, people and jobs."""

from .access import LIMITS, ApiKey, Tenant
from .catalogue import GpuType, ModelCard, Partition, Profile, ProfileSource, RequestClass
from .fleet import Cluster, Gpu, Node, PowerPort, Site, Slicing, simulated_gpus
from .jobs import Job, JobState
from .joining import JoinToken, NodeIdentity
from .measurements import EngineProfile, EngineResidual
from .people import AccessToken, AuditEntry, Membership, MembershipSite
from .power import PowerCycle
from .serving import Adapter, Instance, InstanceGpu, Pool, Service, Slo, SloMetric

__all__ = [
    "LIMITS",
    "AccessToken",
    "Adapter",
    "ApiKey",
    "AuditEntry",
    "Cluster",
    "EngineProfile",
    "EngineResidual",
    "Gpu",
    "GpuType",
    "Instance",
    "InstanceGpu",
    "Job",
    "JobState",
    "JoinToken",
    "Membership",
    "MembershipSite",
    "ModelCard",
    "Node",
    "NodeIdentity",
    "Partition",
    "Pool",
    "PowerCycle",
    "PowerPort",
    "Profile",
    "ProfileSource",
    "RequestClass",
    "Service",
    "Site",
    "Slicing",
    "Slo",
    "SloMetric",
    "Tenant",
    "simulated_gpus",
]
