"""Caches on their way: a sender, a receiver and the side channel between them; a double moves the bytes."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pools.vllm_scheduler.transfer.arrivals import Arrivals
from pools.vllm_scheduler.transfer.channel import Channel, ChannelTls
from pools.vllm_scheduler.transfer.receiver import Receiver
from pools.vllm_scheduler.transfer.sender import Outgoing, Sender
from tests.fakes.certificates import Authority
from tests.fakes.kv_mover import FakeMover, memory, slot_of

SAME = "a model"
SLOTS, SLOT_BYTES = 16, 4
KEYS = [f"key {n}" for n in range(SLOTS)]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline_s, f"no {what}"
        time.sleep(0.001)


class Pair:
    """An engine that sends, and one that takes."""

    def __init__(self, sender_tls: ChannelTls | None = None, receiver_tls: ChannelTls | None = None) -> None:
        self.outgoing, self.incoming = memory(SLOTS, SLOT_BYTES), memory(SLOTS, SLOT_BYTES)
        self.mover = FakeMover(self.outgoing)
        self.arrivals = Arrivals(SLOTS)
        address = ("127.0.0.1", 0)
        self.taker = FakeMover(self.incoming)
        self.receiver = Receiver(address, SAME, self.arrivals, self.taker, self.incoming, receiver_tls)
        self.sender = Sender(SAME, self.mover, self.outgoing, sender_tls)

    def begin(self, transfer: str = "t", blocks: int = 8, chunk_blocks: int | None = 2) -> None:
        self.sender.begin(Outgoing(transfer, "127.0.0.1", self.receiver.port, blocks, chunk_blocks))

    def compute(self, first: int, last: int, transfer: str = "t") -> None:
        """Blocks `first` to `last`, without it, are computed."""
        slots = self.sender.take(last - first)
        for block, slot in zip(range(first, last), slots, strict=True):
            slot_of(self.outgoing, slot)[:] = bytes([block]) * SLOT_BYTES
        self.sender.add(transfer, list(zip(KEYS[first:last], slots, strict=True)))

    def here(self, transfer: str = "t") -> list[int]:
        """The blocks that have come, by what is in them."""
        return [slot_of(self.incoming, slot)[0] for slot in self.arrivals.look(transfer, KEYS).slots]

    def comes(self, blocks: int, settled: bool, transfer: str = "t") -> None:
        until(
            lambda: (self.here(transfer), self.arrivals.look(transfer, KEYS).settled) == (list(range(blocks)), settled),
            f"{blocks} blocks here, settled: {settled}",
        )

    def free_again(self, slots: int = SLOTS) -> None:
        def all_free() -> bool:
            found = self.sender.take(SLOTS)
            self.sender.give_back(found, sent=True)
            return len(found) == slots

        until(all_free, f"{slots} free slots of the sender")


@pytest.fixture
def make() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def pair(*tls: ChannelTls | None) -> Pair:
        made.append(Pair(*tls))
        return made[-1]

    yield pair
    for one in made:
        one.receiver.close()


def test_chunks_arrive_while_the_rest_is_computed(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.begin()
    pair.compute(0, 3)
    pair.comes(2, settled=False)
    pair.compute(3, 4)
    pair.comes(4, settled=False)
    pair.compute(4, 5)
    assert pair.taker.expected == 1
    pair.sender.end("t")
    pair.comes(5, settled=True)
    until(lambda: pair.taker.expected == 0, "end of what is expected")
    assert [len(slots) for slots in pair.mover.writes] == [2, 2, 1]
    pair.free_again()


def test_all_is_sent_at_the_end_when_there_are_no_chunks(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.begin("other", chunk_blocks=2)
    pair.begin(chunk_blocks=None)
    pair.compute(0, 6)
    pair.compute(0, 2, "other")
    pair.comes(2, settled=False, transfer="other")
    assert pair.here() == []
    pair.sender.end("t")
    pair.comes(6, settled=True)
    assert [len(slots) for slots in pair.mover.writes] == [2, 6]


def test_bytes_that_got_there_are_counted(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.begin(blocks=3)
    pair.compute(0, 4)
    pair.sender.end("t")
    pair.comes(3, settled=True)
    assert pair.sender.figures() == (3 * SLOT_BYTES, 1), "one block had no room there"
    assert pair.sender.figures() == (0, 0)


def test_what_is_here_can_be_used_when_the_link_fails(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.begin()
    pair.compute(0, 2)
    pair.comes(2, settled=False)
    pair.mover.fails = True
    pair.compute(2, 6)
    pair.comes(2, settled=True)
    until(lambda: pair.taker.expected == 0, "end of what is expected")
    pair.free_again()
    until(lambda: pair.mover.parted == ["other"], "parting")
    pair.sender.end("t")
    pair.mover.fails = False
    pair.begin("next")
    pair.compute(0, 2, "next")
    pair.comes(2, settled=False, transfer="next")


def test_write_that_takes_too_long_is_given_up(make: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pools.vllm_scheduler.transfer.sender._WRITES_WITHIN_S", 0.01)
    pair = make()
    pair.mover.held = True
    pair.begin()
    pair.compute(0, 4)
    until(lambda: pair.arrivals.look("t", KEYS) == ([], True, True), "end of the transfer")
    pair.free_again()
    assert pair.arrivals.free == SLOTS - 8, "what was granted may still be written"


def test_engine_that_ended_is_met_again_when_another_is_at_its_address(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.begin()
    pair.compute(0, 2)
    pair.sender.end("t")
    pair.comes(2, settled=True)
    port = pair.receiver.port
    (peer,) = pair.sender._peers.values()
    assert peer._channel is not None
    peer._channel._connection.shutdown(socket.SHUT_RDWR)
    pair.begin("u")
    pair.compute(0, 2, "u")
    pair.comes(2, settled=False, transfer="u")
    assert pair.receiver.port == port


def test_engine_that_cannot_be_reached_holds_up_nothing(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.receiver.close()
    for transfer in ("t", "u"):
        pair.begin(transfer)
        pair.compute(0, 4, transfer)
        pair.sender.end(transfer)
        pair.free_again()
    assert pair.mover.writes == []


def test_cache_of_another_model_is_refused(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.sender = Sender("another model", pair.mover, pair.outgoing, None)
    pair.begin()
    pair.compute(0, 4)
    pair.free_again()
    assert not pair.arrivals.look("t", KEYS).known


def test_only_engines_with_a_certificate_of_the_authority_are_heard(make: Callable[..., Pair], tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    tls, stranger = of_node(ours, tmp_path), of_node(theirs, tmp_path)
    pair = make(tls, tls)
    pair.begin()
    pair.compute(0, 2)
    pair.comes(2, settled=False)
    for wrong in (stranger, ChannelTls(stranger.certificate, tls.authority), None):
        other = make(wrong, tls)
        other.begin()
        other.compute(0, 2)
        other.free_again()
        assert not other.arrivals.look("t", KEYS).known


def test_engine_does_not_send_to_a_host_that_the_certificate_is_not_of(tmp_path: Path) -> None:
    tls = of_node(Authority(tmp_path / "ours"), tmp_path, "10.0.0.9")
    incoming = memory(SLOTS, SLOT_BYTES)
    receiver = Receiver(("127.0.0.1", 0), SAME, Arrivals(SLOTS), FakeMover(incoming), incoming, tls)
    try:
        with pytest.raises(ssl.SSLCertVerificationError, match="127"):
            Channel.connect("127.0.0.1", receiver.port, tls, 5.0)
    finally:
        receiver.close()


@pytest.mark.parametrize(
    "said",
    [
        b"x\n",
        b"[1]\n",
        b'{"op": "open"}\n',
        b'{"op": "written", "transfer": "t", "blocks": [["a", 0]]}\n',
        b'{"op": "open", "transfer": "v", "blocks": "many"}\n',
        b'{"op": "end"',
    ],
)
def test_engine_that_makes_no_sense_is_cut_off_and_others_are_not(make: Callable[..., Pair], said: bytes) -> None:
    pair = make()
    pair.begin()
    pair.compute(0, 2)
    pair.comes(2, settled=False)
    with socket.create_connection(("127.0.0.1", pair.receiver.port), 5.0) as wrong:
        wrong.sendall(json.dumps({"op": "hello", "same": SAME}).encode() + b"\n")
        assert json.loads(wrong.makefile("rb").readline())["ok"]
        wrong.sendall(said)
        wrong.shutdown(socket.SHUT_WR)
        assert wrong.recv(100) == b""
    pair.compute(2, 4)
    pair.comes(4, settled=False)


def of_node(authority: Authority, folder: Path, host: str = "127.0.0.1") -> ChannelTls:
    files = authority.node(host)
    own = files.certificate.with_suffix(".both")
    own.write_bytes(files.read())
    return ChannelTls(str(own), str(files.authority))
