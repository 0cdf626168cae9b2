"""Redis: the message bus of the fleet, and not on the way of a request."""

from __future__ import annotations

from tests.chaos.fault import Fault
from tests.chaos.stand import Stand

NOBODY = "Clients notice nothing; records and samples wait on disk, and are written once."
OTHER_HOST = "127.0.0.1"
NO_PORT = "1"  # nobody listens


def _fill(stand: Stand) -> None:
    """Leaves no memory for anything more."""
    with stand.redis() as client:
        client.config_set("maxmemory", max(1, client.info("memory")["used_memory"] // 2))


def _make_room(stand: Stand) -> None:
    with stand.redis() as client:
        client.config_set("maxmemory", 0)


def _read_only(stand: Stand) -> None:
    """A replica refuses writes."""
    with stand.redis() as client:
        client.replicaof(OTHER_HOST, NO_PORT)


def _writable(stand: Stand) -> None:
    with stand.redis() as client:
        client.replicaof("NO", "ONE")


def _empty(stand: Stand) -> None:
    with stand.redis() as client:
        client.flushall()


FAULTS = (
    Fault(
        name="Redis killed",
        component="Redis",
        kind="killed",
        promise=NOBODY,
        part=6,
        begin=lambda stand: stand.kill("redis"),
    ),
    Fault(
        name="Redis frozen for 20 s",
        component="Redis",
        kind="frozen",
        promise=NOBODY,
        part=6,
        begin=lambda stand: stand.freeze("redis"),
        end=Stand.thaw,
        lasts_s=20.0,
    ),
    Fault(
        name="Redis at maxmemory for 40 s",
        component="Redis",
        kind="full",
        promise=NOBODY,
        part=6,
        begin=_fill,
        end=_make_room,
        lasts_s=40.0,
    ),
    Fault(
        name="Redis read-only for 20 s",
        component="Redis",
        kind="read-only",
        promise=NOBODY,
        part=6,
        begin=_read_only,
        end=_writable,
        lasts_s=20.0,
    ),
    Fault(
        name="Redis emptied",
        component="Redis",
        kind="emptied",
        promise="Clients notice nothing, and the fleet is published anew within seconds.",
        part=6,
        begin=_empty,
    ),
)
