"""Disks that are full. In part 5 each folder lies on a small disk of its own."""

from __future__ import annotations

from tests.chaos import machine
from tests.chaos.fault import Fault
from tests.chaos.stand import Stand, folder_of

# MiB of the disks, by folder of the data folder: small enough to fill at once, large enough for the part otherwise.
SIZES = {"spool": 32, "log": 64, "redis": 96, "postgres": 400, "learned": 8, "simnode": 8, "run": 8}
LASTS_S = 20.0


def _full(folder: str, what: str, promise: str) -> Fault:
    def begin(stand: Stand) -> None:
        machine.fill(folder_of(stand.product.var_dir, folder))

    def end(stand: Stand) -> None:
        machine.free(folder_of(stand.product.var_dir, folder))

    return Fault(
        name=f"{what} full for {LASTS_S:.0f} s",
        component=what,
        kind="full",
        promise=promise,
        part=5,
        begin=begin,
        end=end,
        lasts_s=LASTS_S,
    )


FAULTS = (
    _full("spool", "disk of journals", "Clients notice nothing, and what was answered is on record."),
    _full("log", "disk of logs", "Clients notice nothing; all processes run on."),
    _full("redis", "disk of Redis", "Clients notice nothing; records wait on disk and are written once."),
    _full("postgres", "disk of PostgreSQL", "Clients notice nothing; records and samples wait, and are written once."),
    _full("learned", "disk of what gateways learn", "Clients notice nothing."),
    _full("simnode", "disk of the nodes' counters", "Clients notice nothing, and no counter is set back."),
    _full("run", "disk of the process table", "All processes run on, and killed ones are still started again."),
)
