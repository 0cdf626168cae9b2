"""What `node join` finds on the machine, shows and hands to the agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from greenserve.commands.node import node
from pools.agent import join_fleet
from pools.agent.join_messages import Joined, NodeOffer
from tests.fakes.vllm_program import program


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[NodeOffer]:
    """What the control plane was sent; its Redis is at an address of the documentation, which nobody is asked for."""
    made: list[NodeOffer] = []

    def send(_: str, offer: NodeOffer) -> Joined:
        made.append(offer)
        return Joined(offer.name, "oslo/main", "redis://127.0.0.1:6379/0")

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
    assert "Engines listen at 0.0.0.0, and gateways reach them at box.example." in done.output
    assert "let gateways alone to their ports (18400-18499)" in done.output
    unit = done.output.partition("ExecStart=")[2]
    for option in ("--engine-host 0.0.0.0", "--engine-address box.example", f"--model-folder {tmp_path / 'srv'}"):
        assert option in unit
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
