"""Redis keys, streams and channels, how long keys are kept, and Celery's queues.

| key | kind | writer | reader |
|---|---|---|---|
| `greenserve:desired:<node>` | string, DesiredNode | scheduler.control, when it changes | its agent, the supervisor |
| `greenserve:agent:<node>` | string with expiry, AgentState | the agent, each second | gateway, snapshot |
| `greenserve:fleet:index` | string with expiry, FleetIndex; at each turn | scheduler.control | gateways, supervisor |
| `greenserve:fleet:index:signature` | string with expiry, signature of the index | scheduler.control | gateways |
| `greenserve:fleet:signature` | string, signature of `greenserve:fleet` | scheduler.control | gateways |
| `greenserve:fleet:services` | hash, FleetService by name | scheduler.control | gateways, ingester |
| `greenserve:fleet:keys` | hash, FleetKey by its hash | scheduler.control | gateways |
| `greenserve:fleet:keys:changed` | sorted set, key hashes by version of change | scheduler.control | gateways |
| `greenserve:fleet:profiles` | hash, measured profiles by version | scheduler.control | gateways |
| `greenserve:profiles:<node>` | hash, those of them that its desired state names | scheduler.control | its agent |
| `greenserve:published` | hash with expiry, digests of the last | scheduler.control | scheduler.control |
| `greenserve:fleet` | string, Fleet; and a channel that announces versions | scheduler.control | gateways of 0.1.0 |
| `greenserve:worker:<uid>` | string with expiry, WorkerRegistration | gateways, for workers | gateways, ingester |
| `greenserve:workers` | sorted set, uid by the end of its lease | gateways, for workers | gateways, ingester |
| `greenserve:workers:measured` | string with expiry, AgentState of no node | the ingester, each second | gateways |
| `greenserve:clock:<node>` | channel, ClockRequest | gateways, as they decide | that node's agent, at once |
| `greenserve:batches:<node>` | stream, field `b` = AgentBatch of that node | its agent | telemetry ingester |
| `greenserve:batches` | the same | agents of 0.1.0, the ingester for registered engines | telemetry ingester |
| `greenserve:celery:<node>:...` | keys and channels of its Celery queue | scheduler.control, its agent | its agent |
| `greenserve:identity:<node>:asked` | string with expiry, certificate request | its agent | pools.registration |
| `greenserve:identity:<node>:answer` | string with expiry, NodeCertificate | pools.registration | its agent |
| `greenserve:certificates` | hash, node by its certificate's serial number | pools.registration | the relay to Redis |
| `greenserve:node-users` | hash, digest of its user's rules by node | pools.registration | pools.registration |
| `greenserve:requests` | stream, field `b` = RequestBatch | gateways | telemetry ingester |
| `greenserve:processes`, and `:<plane>` | string with expiry, ProcessTable | supervisors, each second | health page |
| `greenserve:gateways` | sorted set, `<name>@<host>` by last sign of life | gateways | gateways: how many they are |
| `greenserve:open:<gateway>` | string with expiry, OpenRequests | gateways, each two seconds | scheduler.control |
| `greenserve:use:<gateway>` | string with expiry, GatewayUse | gateways, each two seconds | gateways |
| `greenserve:boards:<gateway>` | string with expiry, GatewayBoards | gateways, each 0.1 s, of several | gateways |
| `greenserve:alive:<process>` | string with expiry, Heartbeat | every process | health page |
| `greenserve:runs`, and `:<plane>` | count of the task without work | Celery workers | their supervisor |
| `greenserve:tasks` | hash, sums by `<task>|<outcome>` and `<task>|seconds` | Celery workers | web's `/metrics` |
| `greenserve:simulation:<id>` | list with expiry, SimulationUpdate | a `simulations` worker | who asked for the run |
| `greenserve:simulation:<id>:stop` | string with expiry | who asked for the run | that worker, now and then |

Streams have a bound (`stream_room`). `node_rights` says which of these keys a node's own user may use.
"""

from __future__ import annotations

FLEET_INDEX_KEY = "greenserve:fleet:index"
FLEET_INDEX_SIGNATURE_KEY = "greenserve:fleet:index:signature"
FLEET_SIGNATURE_KEY = "greenserve:fleet:signature"  # of the fleet as a whole
FLEET_SERVICES_KEY = "greenserve:fleet:services"
FLEET_KEYS_KEY = "greenserve:fleet:keys"
FLEET_KEYS_CHANGED_KEY = "greenserve:fleet:keys:changed"
PROFILES_KEY = "greenserve:fleet:profiles"
PUBLISHED_KEY = "greenserve:published"
FLEET_KEY = "greenserve:fleet"  # the fleet as a whole, as 0.1.0 writes and reads it
FLEET_CHANNEL = "greenserve:fleet"
BATCH_STREAM = "greenserve:batches"
CERTIFICATES_KEY = "greenserve:certificates"
NODE_USERS_KEY = "greenserve:node-users"
REQUEST_STREAM = "greenserve:requests"
GATEWAYS_KEY = "greenserve:gateways"
WORKERS_KEY = "greenserve:workers"
MEASURED_WORKERS_KEY = "greenserve:workers:measured"
PROCESSES_KEY = "greenserve:processes"
TASKS_KEY = "greenserve:tasks"
RUNS_KEY = "greenserve:runs"
INGEST_GROUP = "ingest"

SIMULATIONS_QUEUE = "simulations"  # of Celery
BATCHES_QUEUE = "batches"

AGENT_STATE_TTL_S = 10
FLEET_INDEX_TTL_S = 60  # it goes when a scheduler of 0.1.0 takes over: gateways then read what that one writes
HEARTBEAT_TTL_S = 60
OPEN_REQUESTS_TTL_S = 10
SIMULATION_KEPT_S = 3600

DESIRED_PREFIX = "greenserve:desired:"
AGENT_PREFIX = "greenserve:agent:"
ALIVE_PREFIX = "greenserve:alive:"
CLOCK_PREFIX = "greenserve:clock:"
WORKER_PREFIX = "greenserve:worker:"
NODE_STREAM_PREFIX = f"{BATCH_STREAM}:"
OPEN_REQUESTS_PREFIX = "greenserve:open:"
GATEWAY_USE_PREFIX = "greenserve:use:"
GATEWAY_BOARDS_PREFIX = "greenserve:boards:"


def desired_key(node: str) -> str:
    return DESIRED_PREFIX + node


def agent_key(node: str) -> str:
    return AGENT_PREFIX + node


def process_name(process: str, plane: str) -> str:
    """Names a process for all that share Redis: `beat`, or `b.beat` of the control plane `b`."""
    return f"{plane}.{process}" if plane else process


def processes_key(plane: str) -> str:
    return f"{PROCESSES_KEY}:{plane}" if plane else PROCESSES_KEY


def runs_key(plane: str) -> str:
    return f"{RUNS_KEY}:{plane}" if plane else RUNS_KEY


def alive_key(process: str) -> str:
    return ALIVE_PREFIX + process


def clock_channel(node: str) -> str:
    """Names the channel of clocks that gateways ask a node's agent for. Nothing is kept: who is not there misses it."""
    return CLOCK_PREFIX + node


def gateway_member(process: str, host: str) -> str:
    """Names a gateway among those of all machines."""
    return f"{process}@{host}"


def gateway_process(member: str) -> str:
    """Returns the name of a member's process; those of 0.1.0 are members by it alone."""
    return member.partition("@")[0]


def gateway_use_key(gateway: str) -> str:
    return GATEWAY_USE_PREFIX + gateway


def gateway_boards_key(gateway: str) -> str:
    return GATEWAY_BOARDS_PREFIX + gateway


def batch_stream(node: str) -> str:
    """Names the stream of a node's batches."""
    return NODE_STREAM_PREFIX + node


def node_of_stream(stream: str) -> str | None:
    """Returns the node whose own stream of batches this is; None: it is no node's."""
    return stream.removeprefix(NODE_STREAM_PREFIX) if stream.startswith(NODE_STREAM_PREFIX) else None


def profiles_key(node: str) -> str:
    return f"greenserve:profiles:{node}"


def celery_prefix(node: str) -> str:
    """Returns what all keys and channels of a node's Celery queue begin with."""
    return f"greenserve:celery:{node}:"


def certificate_asked_key(node: str) -> str:
    return f"greenserve:identity:{node}:asked"


def certificate_answer_key(node: str) -> str:
    return f"greenserve:identity:{node}:answer"


def open_requests_key(gateway: str) -> str:
    return OPEN_REQUESTS_PREFIX + gateway


def worker_key(uid: str) -> str:
    return WORKER_PREFIX + uid


def simulation_key(run: str) -> str:
    return f"greenserve:simulation:{run}"


def simulation_stop_key(run: str) -> str:
    return f"{simulation_key(run)}:stop"


def node_queue(node: str) -> str:
    """Names the Celery queue of a node's agent."""
    return f"node.{node}"
