"""The clock actuator: the one process of a node that may change GPU clocks, and all that it can do.

    python -m pools.actuator --socket SOCKET --state FILE --allow-uid UID

Locked clocks need root or CAP_SYS_ADMIN, which the agent, with its network and its engines, is not to have. This
process has a unix socket and NVML and nothing else: no network, no database, no configuration, three requests
(`actuator_protocol`). It owns the leases: a clock returns to its default when the agent stops renewing it, goes away or
is killed, and when this process ends, or starts again after it was killed.
"""
