"""The wall clock of the machine that is turned, for all processes, and rows that come from a clock that is wrong."""

from __future__ import annotations

import time
import uuid

from pools import wire
from tests.chaos import machine
from tests.chaos.fault import Fault
from tests.chaos.stand import Stand

HOUR_S = 3600
TURNED = (
    "Clients notice nothing; loops, clocks and ledger go on by the time that passes; energy of the wrong hours is "
    "never entered twice; records of an hour to come wait for it."
)


def _future_row(stand: Stand) -> None:
    """Sends a batch of a node's agent in which one row of three is of tomorrow."""
    node = sorted(stand.nodes())[0]
    gpus = stand.ask_node(node, "/gpus")
    now_s = time.time()
    rows = [
        wire.GpuSampleRow(
            at_s=at_s,
            gpu_uuid=gpu["uuid"],
            energy_j=gpu["energy_j"],
            power_w=gpu["power_w"],
            sm_clock_mhz=gpu["sm_clock_mhz"],
            utilisation=0.0,
            memory_used_bytes=0,
            temperature_c=None,
            instance_uid=None,
            instance_state=None,
            running=None,
        )
        for gpu, at_s in zip(gpus[:3], (now_s, now_s + 24 * HOUR_S, now_s), strict=False)
    ]
    batch = wire.AgentBatch(agent=node, boot=uuid.uuid4().hex, seq=0, sent_at_s=now_s, gpus=wire.GpuSamples.pack(rows))
    stand.kept["at_s"] = now_s
    with stand.redis() as client:
        client.xadd(wire.BATCH_STREAM, {"b": wire.encode(batch)})


def _samples_go_on(stand: Stand) -> str:
    [(age_s,)] = stand.sql("SELECT extract(epoch FROM now() - max(at)) FROM telemetry_gpusample WHERE at <= now()")
    return "" if age_s is not None and float(age_s) < 15.0 else f"the newest sample is {age_s} s old"


def _the_others_of_the_batch_are_kept(stand: Stand) -> str:
    [(rows,)] = stand.sql(
        "SELECT count(*) FROM telemetry_gpusample WHERE at BETWEEN to_timestamp(%s) AND to_timestamp(%s)",
        stand.kept["at_s"] - 0.001,
        stand.kept["at_s"] + 0.001,
    )
    return "" if rows == 2 else f"{rows} of the 2 good rows of the batch are kept"


def _turned(name: str, by_s: int) -> Fault:
    return Fault(
        name=name,
        component="wall clock",
        kind="back" if by_s < 0 else "ahead",
        promise=TURNED,
        part=4,
        begin=lambda _: machine.turn_clock(by_s),
        end=lambda _: machine.turn_clock(0),
        lasts_s=25.0,
        look=(_samples_go_on,),
    )


def _of_gateways(name: str, by_s: int) -> Fault:
    return Fault(
        name=name,
        component="gateway",
        kind="clock ahead" if by_s > 0 else "clock back",
        promise="Clients notice nothing: no age is the difference of two clocks; all is on record.",
        part=4,
        begin=lambda _: machine.turn_clock(0, of_gateways_s=by_s),
        end=lambda _: machine.turn_clock(0),
        lasts_s=25.0,
        look=(_samples_go_on,),
    )


FAULTS = (
    _turned("wall clock back by two hours, and right again", -2 * HOUR_S),
    _turned("wall clock ahead by two hours, and right again", 2 * HOUR_S),
    _turned("wall clock back by 40 s, and right again", -40),
    _turned("wall clock ahead by 40 s, and right again", 40),
    _of_gateways("clock of the gateways' host 30 s ahead of the others'", 30),
    _of_gateways("clock of the gateways' host 30 s behind the others'", -30),
    Fault(
        name="a row of tomorrow in a batch of an agent",
        component="agent",
        kind="wrong time",
        promise="The row is refused, the others of its batch are kept, and the GPU's energy goes on.",
        part=4,
        begin=_future_row,
        lasts_s=8.0,
        look=(_samples_go_on, _the_others_of_the_batch_are_kept),
    ),
)
