"""No secret stands on a command line, which all on a machine can read: of no process, and of no command."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from core.engine.engine_launch import EngineLaunch
from core.ports import InstanceSpec
from greenserve import env
from greenserve.cli import cli
from greenserve.commands.node import _join_token
from greenserve.commands.secret_files import secret_of_file
from greenserve.servers import embedded, postgres_server
from greenserve.supervision import product_processes
from pools.agent.app import app
from pools.agent.join_fleet import agent_command
from pools.agent.vllm.engine_access import EngineTls, new_key
from pools.agent.vllm.launch import VllmOptions, command, environment

HUSH = "hush-hush-hush-hush-hush"
SECRETS = {
    "DATABASE_URL": f"postgresql://works:{HUSH}@db/greenserve",
    "GREENSERVE_DATABASE_OWNER_URL": f"postgresql://owns:{HUSH}@db/greenserve",
    "REDIS_URL": f"rediss://:{HUSH}@cache:6379/0",
    "GREENSERVE_EMAIL_URL": f"smtps://me:{HUSH}@mail:465",
    "GREENSERVE_ALERT_WEBHOOK_URL": f"https://hooks.example/{HUSH}",
    "GREENSERVE_OIDC_URL": "https://sso.example",
    "GREENSERVE_OIDC_CLIENT_ID": "greenserve",
    **{
        f"GREENSERVE_{name}": HUSH
        for name in (
            *("SECRET_KEY", "WORKER_TOKEN", "METRICS_TOKEN", "TOKEN", "JOIN_TOKEN", "ALERT_WEBHOOK_SECRET"),
            *(
                "OIDC_CLIENT_SECRET",
                "ELECTRICITY_MAPS_TOKEN",
                "WATTTIME_PASSWORD",
                "PJM_KEY",
                "ENTSOE_TOKEN",
                "EIA_KEY",
                "OPEN_METEO_KEY",
            ),
        )
    },
    "GREENSERVE_WATTTIME_USER": "me",
}
SECRET_NAMES = re.compile(r"(token|key|password|secret|login)s?")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> env.Env:
    (key := tmp_path / "worker-key").write_text(HUSH)
    values = {"GREENSERVE_VAR": str(tmp_path), "GREENSERVE_WORKER_KEY_FILE": str(key), **SECRETS}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return env.read(values)


def servers(config: env.Env, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    monkeypatch.setattr(postgres_server, "_ensure_data", lambda *_, **__: None)
    monkeypatch.setattr(postgres_server, "_postgres_binaries", lambda _: Path("/usr/bin"))
    monkeypatch.setattr(postgres_server, "own_folder", lambda *_: None)
    yield postgres_server.spec(config.var_dir).argv
    yield embedded.redis(config.var_dir).argv


def test_no_process_of_the_product_has_a_secret_on_its_command_line(
    config: env.Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [
        product_processes.web(config),
        *product_processes.gateways(config),
        *(spec for spec in (product_processes.lengths(config),) if spec is not None),
        product_processes.picker(config, 9002),
        *product_processes.background(config),
        product_processes.simulated_node(config, "n1", [("A100-80GB", 1)], 9000, {}),
        product_processes.agent(config, "n1", 9000),
        product_processes.traffic(config, "a-model"),
    ]
    lines = [*(spec.argv for spec in specs), *servers(config, monkeypatch)]
    assert len(lines) >= 14
    assert HUSH in config.secrets
    for words in lines:
        assert not any(HUSH in word for word in words), words


def test_no_process_of_a_node_has_a_secret_on_its_command_line(config: env.Env, tmp_path: Path) -> None:
    tls = EngineTls(tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "a.pem")
    options = VllmOptions(tmp_path / "vllm", tmp_path / "engines", tls=tls)
    spec = InstanceSpec("u", "Llama3-8B", "vllm-v1", ("G0",), 4096, launch=EngineLaunch("meta/llama"))
    key = new_key()
    variables = environment(spec, options, {**SECRETS, "BROKER_URL": SECRETS["REDIS_URL"]}, key)
    words = [*command(spec, options, 18400), *agent_command("n1")]
    assert not any(HUSH in word or key in word for word in words)
    assert [name for name, value in variables.items() if key in value] == ["VLLM_API_KEY"]
    assert not any(HUSH in value for value in variables.values())


def every_option(command: click.Command, path: str = "greenserve") -> Iterator[tuple[str, click.Option]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from every_option(found, f"{path} {name}")
    for option in command.params:
        if isinstance(option, click.Option):
            yield path, option


def test_commands_and_agents_take_secrets_from_files_alone() -> None:
    agents = (("agent", option) for option in app.user_options["worker"])
    files, seen = [], 0
    for path, option in itertools.chain(every_option(cli), agents):
        seen += 1
        words = [part for name in option.opts for part in name.strip("-").split("-")]
        if any(map(SECRET_NAMES.fullmatch, words)):
            files.append(f"{path} {option.opts[0]}")
    assert seen > 150
    assert sorted(files) == [
        "agent --bmc-login",  # a file
        "agent --tls-key",  # a file
        "greenserve apply --token-file",
        "greenserve engine publish --token-file",
        "greenserve node join --token-file",
        "greenserve node profile --key-file",
        "greenserve observe --key-file",
        "greenserve replay --key-file",
        "greenserve replay --max-tokens",  # a number
        "greenserve units --snapshot-key-file",
        "greenserve user create --password-file",
    ]


@pytest.mark.parametrize(
    ("given", "typed", "found"),
    [
        ({"token": "gsj_on-the-line"}, "", "gsj_on-the-line"),
        ({"token": "-"}, "gsj_typed\n", "gsj_typed"),
        ({"from_file": "gsj_of-a-file"}, "", "gsj_of-a-file"),
        ({}, "", "gsj_of-the-environment"),
    ],
)
def test_join_token_comes_from_standard_input_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], typed: str, found: str
) -> None:
    monkeypatch.setenv("GREENSERVE_VAR", str(tmp_path))
    monkeypatch.setenv("GREENSERVE_JOIN_TOKEN", "gsj_of-the-environment")
    said: list[str] = []
    asks = click.Command(
        "ask", callback=lambda: said.append(_join_token(**{"token": None, "from_file": None, **given}))
    )
    assert CliRunner().invoke(asks, input=typed).exit_code == 0
    assert said == [found]


def test_secret_file_is_refused_by_name_when_it_is_empty_or_not_there(tmp_path: Path) -> None:
    (empty := tmp_path / "empty").touch()
    for path, words in ((empty, "there is nothing in "), (tmp_path / "none", "No such file")):
        with pytest.raises(click.BadParameter, match=words):
            secret_of_file(str(path))
