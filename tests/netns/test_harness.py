"""What the run on machines goes by: the wire between them, and the page's blocks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import documents
from tests.netns import machines, page
from tests.netns.machines import Machine, Network
from tests.netns.stage import NAMES
from tests.netns.wire import Wire

A, B = 3, 4  # file descriptors
SENT_S = 10.0


def wire(loss: float = 0.0) -> Wire:
    return Wire({"a": (A, "10.77.0.1"), "b": (B, "10.77.0.2")}, 0.004, loss, random.Random(1))


def packet(destination: str, payload: bytes = b"") -> bytes:
    return bytes(16) + bytes(map(int, destination.split("."))) + payload


def test_packet_arrives_after_the_delay_at_whom_it_is_for() -> None:
    one = wire()
    one.take(A, packet("10.77.0.2", b"x"), SENT_S)
    assert one.due(SENT_S + 0.003) == []
    assert one.wait_s(SENT_S + 0.003) == pytest.approx(0.001)
    assert one.due(SENT_S + 0.004) == [(B, packet("10.77.0.2", b"x"))]
    assert one.wait_s(SENT_S) is None


def test_packets_arrive_in_their_order() -> None:
    one = wire()
    sent = [packet("10.77.0.2", bytes([number])) for number in range(20)]
    for each in sent:
        one.take(A, each, SENT_S)
    assert [arrived for _, arrived in one.due(SENT_S + 1.0)] == sent


def test_machine_that_is_cut_off_neither_hears_nor_is_heard_until_it_is_mended() -> None:
    one = wire()
    one.hear("cut b")
    one.take(A, packet("10.77.0.2"), SENT_S)
    one.take(B, packet("10.77.0.1"), SENT_S)
    assert one.due(SENT_S + 1.0) == []
    one.hear("mend b")
    one.take(B, packet("10.77.0.1"), SENT_S)
    assert one.due(SENT_S + 1.0) == [(A, packet("10.77.0.1"))]
    with pytest.raises(ValueError, match="cut c"):
        one.hear("cut c")


def test_share_of_packets_is_lost_and_so_is_what_is_for_nobody() -> None:
    one = wire(loss=0.1)
    for _ in range(2_000):
        one.take(A, packet("10.77.0.2"), SENT_S)
        one.take(A, packet("8.8.8.8"), SENT_S)
    assert 1_700 < len(one.due(SENT_S + 1.0)) < 1_900


def test_page_names_machines_that_are_there_and_each_node_its_token() -> None:
    found = [block for block in documents.blocks(page.PAGE) if block.where]
    named = {name for block in found for name in (block.where or "").rpartition("on ")[2].split(", ")}
    assert named - {"copies"} <= set(NAMES)
    texts = [block.text for block in found if page.TOKEN in block.text]
    assert len(texts) == len([name for name in NAMES if name.startswith("gpu-")])


def test_token_of_the_printed_line_is_used_on_its_node_and_the_address_is_compared(tmp_path: Path) -> None:
    run = page.PageRun(Network(tmp_path), tmp_path)
    run.heard("Paste this line on it:\n  greenserve node join https://control:8443 gsj_a.b --name gpu-1\n")
    script = f"greenserve node join https://control:8443 {page.TOKEN} --name gpu-1"
    assert run.with_token(script, "gpu-1") == script.replace(page.TOKEN, "gsj_a.b")
    with pytest.raises(AssertionError, match="another address"):
        run.with_token(script.replace("8443", "443"), "gpu-1")


def test_copies_go_from_machine_to_machine(tmp_path: Path) -> None:
    network = Network(tmp_path, {name: Machine(name, "", tmp_path / name) for name in ("a", "b")})
    (tmp_path / "a/etc/keys").mkdir(parents=True)
    (tmp_path / "a/etc/keys/one.pem").write_text("1")
    (tmp_path / "a/etc/two.pem").write_text("2")
    page.copy(network, "scp a:/etc/two.pem b:/srv/other.pem")
    page.copy(network, "scp a:/etc/keys/*.pem a:/etc/two.pem b:/srv/all/")
    page.copy(network, "scp -r a:/etc/keys b:/srv/")
    copied = sorted(str(path.relative_to(tmp_path / "b/srv")) for path in (tmp_path / "b/srv").rglob("*.pem"))
    assert copied == ["all/one.pem", "all/two.pem", "keys/one.pem", "other.pem"]


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert any("install the package systemd-container" in one for one in machines.lacking())
