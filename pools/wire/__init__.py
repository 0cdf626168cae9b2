"""The messages that processes send each other through Redis: key names and message types, encoded by msgspec.

As JSON, but for agents' batches, which are MessagePack: they are what there is most of.

No Django here: the agent and the gateway import this package without a database. Messages are tolerant readers:
unknown fields are ignored, so one side can be upgraded before the other. Times are Unix seconds.

Callers write `from pools import wire` and `wire.DesiredInstance`. Each name stands in one module:

- redis_keys: keys, streams, channels and queues, with who writes and who reads each
- message_codec: `Message`, the base of all; `encode` and `decode`
- desired_state: what a node is to run, and the clocks that gateways ask for
- agent_state: how a node and its instances are now
- fleet_snapshot: what gateways know of the fleet
- measured_engines: what was measured of engines
- stream_room: the bounds of streams
- worker_registration: engines that register themselves
- sample_batches: what agents measured and decided
- request_rows: records of requests
- gateway_boards, gateway_use: what gateways tell each other
- open_requests: requests that have come and not ended
- process_table: the supervisor's processes, and signs of life
- simulation_updates: how a run stands
"""

from pools.wire.agent_state import (
    AgentState,
    InstanceState,
    ModelOnDisk,
    NodeFinds,
)
from pools.wire.desired_state import (
    LONGEST_CLOCK_LEASE_S,
    ClockPolicy,
    ClockRequest,
    DesiredInstance,
    DesiredNode,
    LatencyLimits,
)
from pools.wire.fleet_snapshot import (
    Fleet,
    FleetAdapter,
    FleetClass,
    FleetIndex,
    FleetKey,
    FleetPool,
    FleetService,
    RefusingBudget,
    RequestLimits,
    RequestPolicy,
    RequestTuning,
)
from pools.wire.gateway_boards import GATEWAY_BOARDS_TTL_S, EngineBoard, EnginePaces, GatewayBoards
from pools.wire.gateway_use import GATEWAY_USE_TTL_S, GatewayUse
from pools.wire.measured_engines import (
    MeasuredEngine,
    decode_profile,
    encode_profile,
)
from pools.wire.message_codec import (
    Message,
    decode,
    encode,
)
from pools.wire.node_certificate import (
    CERTIFICATE_KEPT_S,
    NodeCertificate,
)
from pools.wire.node_rights import (
    COMMANDS_SINCE_7_2,
    NODE_USER_PREFIX,
    node_user,
    rights_of_node,
)
from pools.wire.open_requests import (
    OPEN_REQUESTS_MOST,
    OpenRequests,
)
from pools.wire.process_table import (
    DiskState,
    Heartbeat,
    ProcessRow,
    ProcessTable,
    UnreachableEngine,
)
from pools.wire.redis_keys import (
    AGENT_STATE_TTL_S,
    ALIVE_PREFIX,
    BATCH_STREAM,
    BATCHES_QUEUE,
    CERTIFICATES_KEY,
    FLEET_CHANNEL,
    FLEET_INDEX_KEY,
    FLEET_INDEX_SIGNATURE_KEY,
    FLEET_INDEX_TTL_S,
    FLEET_KEY,
    FLEET_KEYS_CHANGED_KEY,
    FLEET_KEYS_KEY,
    FLEET_SERVICES_KEY,
    FLEET_SIGNATURE_KEY,
    GATEWAYS_KEY,
    HEARTBEAT_TTL_S,
    INGEST_GROUP,
    MEASURED_WORKERS_KEY,
    NODE_STREAM_PREFIX,
    NODE_USERS_KEY,
    OPEN_REQUESTS_TTL_S,
    PROCESSES_KEY,
    PROFILES_KEY,
    PUBLISHED_KEY,
    REQUEST_STREAM,
    SIMULATION_KEPT_S,
    SIMULATIONS_QUEUE,
    TASKS_KEY,
    WORKERS_KEY,
    agent_key,
    alive_key,
    batch_stream,
    celery_prefix,
    certificate_answer_key,
    certificate_asked_key,
    clock_channel,
    desired_key,
    gateway_boards_key,
    gateway_member,
    gateway_process,
    gateway_use_key,
    node_of_stream,
    node_queue,
    open_requests_key,
    process_name,
    processes_key,
    profiles_key,
    runs_key,
    simulation_key,
    simulation_stop_key,
    worker_key,
)
from pools.wire.request_rows import (
    RequestBatch,
    RequestRow,
)
from pools.wire.sample_batches import (
    GPU_NUMBERS,
    NUMBER_BYTES,
    AgentBatch,
    ClockDecision,
    GpuLabels,
    GpuSampleRow,
    GpuSamples,
    HostSampleRow,
    InstanceSampleRow,
)
from pools.wire.simulation_updates import (
    SimulationUpdate,
)
from pools.wire.stream_room import (
    ADD_WHILE_ROOM,
    BATCH_STREAM_MOST,
    NODE_STREAM_MOST,
    REQUEST_STREAM_MOST,
)
from pools.wire.worker_registration import (
    WorkerRegistration,
)

__all__ = [
    "ADD_WHILE_ROOM",
    "AGENT_STATE_TTL_S",
    "ALIVE_PREFIX",
    "BATCHES_QUEUE",
    "BATCH_STREAM",
    "BATCH_STREAM_MOST",
    "CERTIFICATES_KEY",
    "CERTIFICATE_KEPT_S",
    "COMMANDS_SINCE_7_2",
    "FLEET_CHANNEL",
    "FLEET_INDEX_KEY",
    "FLEET_INDEX_SIGNATURE_KEY",
    "FLEET_INDEX_TTL_S",
    "FLEET_KEY",
    "FLEET_KEYS_CHANGED_KEY",
    "FLEET_KEYS_KEY",
    "FLEET_SERVICES_KEY",
    "FLEET_SIGNATURE_KEY",
    "GATEWAYS_KEY",
    "GATEWAY_BOARDS_TTL_S",
    "GATEWAY_USE_TTL_S",
    "GPU_NUMBERS",
    "HEARTBEAT_TTL_S",
    "INGEST_GROUP",
    "LONGEST_CLOCK_LEASE_S",
    "MEASURED_WORKERS_KEY",
    "NODE_STREAM_MOST",
    "NODE_STREAM_PREFIX",
    "NODE_USERS_KEY",
    "NODE_USER_PREFIX",
    "NUMBER_BYTES",
    "OPEN_REQUESTS_MOST",
    "OPEN_REQUESTS_TTL_S",
    "PROCESSES_KEY",
    "PROFILES_KEY",
    "PUBLISHED_KEY",
    "REQUEST_STREAM",
    "REQUEST_STREAM_MOST",
    "SIMULATIONS_QUEUE",
    "SIMULATION_KEPT_S",
    "TASKS_KEY",
    "WORKERS_KEY",
    "AgentBatch",
    "AgentState",
    "ClockDecision",
    "ClockPolicy",
    "ClockRequest",
    "DesiredInstance",
    "DesiredNode",
    "DiskState",
    "EngineBoard",
    "EnginePaces",
    "Fleet",
    "FleetAdapter",
    "FleetClass",
    "FleetIndex",
    "FleetKey",
    "FleetPool",
    "FleetService",
    "GatewayBoards",
    "GatewayUse",
    "GpuLabels",
    "GpuSampleRow",
    "GpuSamples",
    "Heartbeat",
    "HostSampleRow",
    "InstanceSampleRow",
    "InstanceState",
    "LatencyLimits",
    "MeasuredEngine",
    "Message",
    "ModelOnDisk",
    "NodeCertificate",
    "NodeFinds",
    "OpenRequests",
    "ProcessRow",
    "ProcessTable",
    "RefusingBudget",
    "RequestBatch",
    "RequestLimits",
    "RequestPolicy",
    "RequestRow",
    "RequestTuning",
    "SimulationUpdate",
    "UnreachableEngine",
    "WorkerRegistration",
    "agent_key",
    "alive_key",
    "batch_stream",
    "celery_prefix",
    "certificate_answer_key",
    "certificate_asked_key",
    "clock_channel",
    "decode",
    "decode_profile",
    "desired_key",
    "encode",
    "encode_profile",
    "gateway_boards_key",
    "gateway_member",
    "gateway_process",
    "gateway_use_key",
    "node_of_stream",
    "node_queue",
    "node_user",
    "open_requests_key",
    "process_name",
    "processes_key",
    "profiles_key",
    "rights_of_node",
    "runs_key",
    "simulation_key",
    "simulation_stop_key",
    "worker_key",
]
