"""What `node join` finds on the machine, shows and hands to the agent."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from greenserve.commands.node import node
from pools.agent import join_fleet
from pools.agent.join_messages import Joined, NodeOffer
from pools.agent.node_identity import NodeIdentity
from pools.engine_trust import names_of
from pools.registration.authority import NODES, Authority
from tests.fakes.vllm_program import program


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[NodeOffer]:
    """What the control plane was sent, which signs all requests; nobody asks for its Redis."""
    made: list[NodeOffer] = []
    now = datetime.now(UTC)
    authority = Authority.open(tmp_path / "secrets", NODES, now)

    def send(_: str, offer: NodeOffer, *, plain_http: bool) -> Joined:
        made.append(offer)
        signed = authority.sign_node(offer.request, offer.name, (), now)
        return Joined(offer.name, "oslo/main", "redis://127.0.0.1:6379/0", [], signed.pem, authority.certificate_pem)

    monkeypatch.setattr(join_fleet, "send", send)
    monkeypatch.setattr(join_fleet, "unreachable", lambda _: "")
    return made


def join(folder: Path, *words: str) -> Result:
    given = ("join", "http://control", "gsj_secret", "--name", "box", "--cpu", "A100-80GB:2", "--keep", str(folder))
    return CliRunner().invoke(node, [*given, *words])


def test_finds_are_shown_and_what_was_said_of_engines_is_in_the_unit(sent: list[NodeOffer], tmp_path: Path) -> None:
    weights = tmp_path / "srv/model"
    weights.mkdir(parents=True)
    (weights / "config.json").write_text("{}")
    words = ("--vllm", str(program(tmp_path)), "--model-folder", str(tmp_path / "srv"))
    done = join(tmp_path / "var", *words, "--engine-host", "0.0.0.0", "--engine-address", "box.example")  # noqa: S104
    assert done.exit_code == 0, done.output
    assert f"vLLM 0.32.0\n  weights {weights}, 0.0 GB\n" in done.output
    assert (
        "Engines listen at 0.0.0.0, and gateways reach them at box.example, by TLS with the node's certificate."
        in done.output
    )
    assert "Let gateways alone to their ports (18400-18499)" in done.output
    unit = done.output.partition("ExecStart=")[2]
    assert (tmp_path / "var" / "greenserve-agent.service").read_text().partition("ExecStart=")[2] == unit
    for option in ("--engine-host 0.0.0.0", "--engine-address box.example", f"--model-folder {tmp_path / 'srv'}"):
        assert option in unit
    identity = NodeIdentity.of(tmp_path / "var", "box")
    assert shlex.join(join_fleet.engine_trust(identity)) in unit
    certificate = x509.load_pem_x509_certificate(identity.certificate.read_bytes())
    assert {"box", "box.example", "127.0.0.1", "::1", "localhost"} <= set(names_of(certificate))
    assert [offer.token for offer in sent] == ["gsj_secret"]
    assert sent[0].release


def test_engines_are_said_to_serve_this_machine_alone_when_the_control_plane_is_on_it(
    sent: list[NodeOffer], tmp_path: Path
) -> None:
    done = join(tmp_path / "var", "--vllm", str(program(tmp_path)))
    assert "Engines listen at 127.0.0.1, which gateways of this machine alone reach" in done.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--engine-host", "10.0.0.5"), "--engine-host is for engines, which the agent starts with --vllm only"),
        (("--vllm", "{vllm}", "--engine-host", "10.0.0.5:80"), "give an address or a name, without a port"),
    ],
)
def test_join_is_refused_before_the_token_is_used_when_engines_could_not_be_started(
    sent: list[NodeOffer], tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    vllm = str(program(tmp_path))
    done = join(tmp_path / "var", *(word.format(vllm=vllm) for word in words))
    assert done.exit_code == 2
    assert reason in done.output
    assert not sent


def test_join_is_refused_with_the_missing_options_when_vllm_lacks_them(sent: list[NodeOffer], tmp_path: Path) -> None:
    done = join(tmp_path / "var", "--vllm", str(program(tmp_path, "0.6.1", "--host --port --enforce-eager")))
    assert done.exit_code == 1
    assert "vLLM 0.6.1" in done.output
    assert "--kv-cache-memory-bytes" in done.output
    assert not sent
