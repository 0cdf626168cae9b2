"""The fleet's tables: sites, nodes, GPUs, models, services, pools, instances, people and jobs."""

from .access import ApiKey, Tenant
from .catalogue import ModelCard, Partition, Profile, RequestClass
from .fleet import Cluster, Gpu, Node, Site
from .jobs import Job
from .joining import JoinToken
from .people import AccessToken, AuditEntry, Membership, MembershipSite
from .serving import Instance, InstanceGpu, Pool, Service, Slo

__all__ = [
    "AccessToken",
    "ApiKey",
    "AuditEntry",
    "Cluster",
    "Gpu",
    "Instance",
    "InstanceGpu",
    "Job",
    "JoinToken",
    "Membership",
    "MembershipSite",
    "ModelCard",
    "Node",
    "Partition",
    "Pool",
    "Profile",
    "RequestClass",
    "Service",
    "Site",
    "Slo",
    "Tenant",
]
