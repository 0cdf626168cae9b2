from .access import ApiKey, Tenant
from .catalogue import ModelCard, Partition, Profile, RequestClass
from .fleet import Cluster, Gpu, Node, Site
from .jobs import Job
from .serving import Instance, InstanceGpu, Pool, Service, Slo

__all__ = [
    "ApiKey",
    "Cluster",
    "Gpu",
    "Instance",
    "InstanceGpu",
    "Job",
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
