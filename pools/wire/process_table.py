"""The processes that run, as their supervisor sees them; and signs of life of their own loops."""

from __future__ import annotations

from pools.wire.message_codec import Message


class ProcessRow(Message, frozen=True):
    name: str
    pid: int | None
    state: str  # running | restarting | stopped
    started_at_s: float | None
    restarts: int
    log: str  # path of its log file
    last_exit: str = ""
    cpu_s: float | None = None  # of this process and all it started, since it started
    rss_bytes: int | None = None
    stalls: int = 0  # restarts because it made no progress
    stalled_s: float | None = None  # how long ago the last of them was


class ProcessTable(Message, frozen=True):
    """`owner`: machine and data folder of the supervisor; a second one must not go by the same name."""

    at_s: float
    processes: list[ProcessRow]
    owner: str = ""


class DiskState(Message, frozen=True):
    """Whether a process can write what it must not lose: a gateway's request records, an agent's batches of samples.

    `fault`: why the disk takes nothing; empty: it does. `held`: records or batches in memory alone. `lost` since its
    start, the last at `lost_at_s` (Unix).
    """

    fault: str = ""
    held: int = 0
    lost: int = 0
    lost_at_s: float | None = None


class UnreachableEngine(Message, frozen=True):
    """An instance whose engine a gateway cannot reach: where, since when (Unix), and why, in words.

    `node` is empty for a worker that registered itself.
    """

    uid: str
    node: str
    url: str
    since_s: float
    why: str


class Heartbeat(Message, frozen=True):
    """A sign of life of a process's own loop. It is late after `period_s` x 3. `unreachable`: of a gateway."""

    process: str
    at_s: float
    period_s: float
    detail: str = ""
    disk: DiskState | None = None  # None: it writes nothing that must not be lost
    unreachable: list[UnreachableEngine] = []
