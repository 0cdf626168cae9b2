from __future__ import annotations

import shutil
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_network
from pathlib import Path
from threading import Thread

import pytest

from greenserve import env
from greenserve.process import StartError
from greenserve.servers import node_relay
from greenserve.supervision import product_processes, up
from pools.engine_trust import trust_in
from pools.gateway.__main__ import _config
from pools.registration.authority import CONTROL_PLANE, NODES, Authority

TOKEN = "a-token-for-workers"


def words(tmp_path: Path, **values: str) -> tuple[str, ...]:
    (spec,) = product_processes.gateways(env.read({"GREENSERVE_VAR": str(tmp_path), **values}))
    return spec.argv


def test_gateway_gets_where_the_worker_token_is_and_not_what(tmp_path: Path) -> None:
    argv = words(tmp_path, GREENSERVE_WORKER_TOKEN=TOKEN, GREENSERVE_WORKER_HOSTS="private,gpu-1")
    assert argv[argv.index("--worker-token-file") + 1] == str(tmp_path / "worker-token")
    assert argv[argv.index("--worker-hosts") + 1] == "private,gpu-1"
    assert not any(TOKEN in word for word in argv)


def test_background_leaves_out_the_checks_that_would_load_all_pages(tmp_path: Path) -> None:
    specs = product_processes.background(env.read({"GREENSERVE_VAR": str(tmp_path)}))
    assert [spec.name for spec in specs if "--skip-checks" not in spec.argv] == []


def test_gateway_has_no_worker_token_when_none_is_given(tmp_path: Path) -> None:
    assert "--worker-token-file" not in words(tmp_path)


def test_no_command_line_has_redis_password_and_only_those_who_need_it_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "redis://:hush@cache:6379/0"
    monkeypatch.setenv("REDIS_URL", url)
    monkeypatch.setenv("GREENSERVE_SECRET_KEY", "hush")
    monkeypatch.setenv("DATABASE_URL", "postgresql://works:hush@db/greenserve")
    monkeypatch.setenv("GREENSERVE_DATABASE_OWNER_URL", "postgresql://owns:hush@db/greenserve")
    config = env.read({"GREENSERVE_VAR": str(tmp_path), "REDIS_URL": url})
    agent = product_processes.agent(config, "n1", 9000)
    apart = [
        *product_processes.gateways(config),
        product_processes.picker(config, 9002),
        product_processes.simulated_node(config, "n1", [("A100-80GB", 1)], 9000, {}),
        product_processes.traffic(config, "a-model"),
    ]
    rest = [product_processes.web(config), *product_processes.background(config)]
    for spec in (*apart, *rest, agent):
        assert not any("hush" in word for word in spec.argv), spec.name
    assert not any("hush" in value for spec in apart for value in spec.env.values())
    assert {name for name, value in agent.env.items() if "hush" in value} == {"BROKER_URL"}
    assert not any("owns:" in value for spec in rest for value in spec.env.values()), "only who migrates has it"
    assert all("works:hush" in spec.env["DATABASE_URL"] for spec in rest)
    for spec in apart[:2]:
        assert spec.argv[spec.argv.index("--redis-url-file") + 1] == str(tmp_path / "redis-url")


def test_gateway_gets_its_limits_and_where_the_metrics_token_is(tmp_path: Path) -> None:
    (tmp_path / "metrics-token").write_text(TOKEN)
    argv = words(
        tmp_path,
        GREENSERVE_METRICS_TOKEN=TOKEN,
        GREENSERVE_MEDIA_HOSTS="images.example.org",
        GREENSERVE_PASS_FIELDS="cache_salt,vllm_xargs.mode",
        GREENSERVE_GATEWAY_CONNECTIONS="100",
        GREENSERVE_GATEWAY_UNKEYED_PER_ADDRESS="7",
        GREENSERVE_GATEWAY_CONNECTIONS_PER_KEY="8",
        GREENSERVE_GATEWAY_HELD_MIB="64",
        GREENSERVE_GATEWAY_HEADS_MIB="2",
        GREENSERVE_GATEWAY_UNKEYED="90",
        GREENSERVE_GATEWAY_UNKEYED_PER_S="9",
        GREENSERVE_GATEWAY_PROXIES="10.0.0.1",
    )
    assert argv[argv.index("--metrics-token-file") + 1] == str(tmp_path / "metrics-token")
    assert not any(TOKEN in word for word in argv)
    assert "--metrics-token-file" not in words(tmp_path)
    (tmp_path / "redis-url").write_text("redis://:hush@localhost:6379/0")
    up.keep_trust(env.read({"GREENSERVE_VAR": str(tmp_path)}))
    config = _config([*argv[3:]])
    assert config.fields.more == {"cache_salt", "vllm_xargs.mode"}
    assert config.fields.media_hosts.allow("images.example.org")
    together = config.all_clients
    assert (together.most, together.unkeyed, together.unkeyed_of_address, together.of_key) == (100, 90, 7, 8)
    assert (together.head_bytes, together.body_bytes) == (2 << 20, 64 << 20)
    assert together.unkeyed_per_s == 9
    assert together.proxies == (ip_network("10.0.0.1"),)


def test_web_process_limits_addresses_unless_all_clients_come_through_a_proxy(tmp_path: Path) -> None:
    def web(**values: str) -> tuple[str, ...]:
        return product_processes.web(env.read({"GREENSERVE_VAR": str(tmp_path), **values})).argv

    assert "--behind-proxy" in web(GREENSERVE_PROXIES="1")
    alone = web(GREENSERVE_WEB_PORT="9000", GREENSERVE_LOG_LEVEL="WARNING")
    options = ("--host", "127.0.0.1", "--port", "9000", "--log-level", "warning")
    assert alone[1:] == ("-m", "greenserve.web_server", *options)


def test_gateways_share_a_port_and_a_spool_folder_when_there_are_several(tmp_path: Path) -> None:
    specs = product_processes.gateways(env.read({"GREENSERVE_VAR": str(tmp_path), "GREENSERVE_GATEWAY_PROCESSES": "3"}))
    assert [spec.name for spec in specs] == ["gateway.1", "gateway.2", "gateway.3"]
    shares = [spec.argv[spec.argv.index("--share") + 1] for spec in specs]
    assert shares == ["1/3", "2/3", "3/3"]
    for option in ("--port", "--spool", "--state"):
        assert len({spec.argv[spec.argv.index(option) + 1] for spec in specs}) == 1
    assert "--share" not in words(tmp_path)


def test_gateways_and_picker_ask_the_predictor_of_lengths_unless_its_budget_is_nothing(tmp_path: Path) -> None:
    config = env.read({"GREENSERVE_VAR": str(tmp_path), "GREENSERVE_LENGTH_BUDGET_MS": "20"})
    own = product_processes.lengths(config)
    assert own is not None
    socket = own.argv[own.argv.index("--socket") + 1]
    for spec in (*product_processes.gateways(config), product_processes.picker(config, 9002)):
        assert spec.argv[spec.argv.index("--lengths") + 1] == socket
        assert spec.argv[spec.argv.index("--length-budget-s") + 1] == "0.02"
        assert spec.rank > own.rank, "it is stopped when they have ended"
    assert len(socket) < 100
    without = env.read({"GREENSERVE_VAR": str(tmp_path), "GREENSERVE_LENGTH_BUDGET_MS": "0"})
    assert product_processes.lengths(without) is None
    assert "--lengths" not in words(tmp_path, GREENSERVE_LENGTH_BUDGET_MS="0")


def test_agents_have_spool_folders_of_their_own(tmp_path: Path) -> None:
    config = env.read({"GREENSERVE_VAR": str(tmp_path)})
    specs = [product_processes.agent(config, node, 9000) for node in ("n1", "n2")]
    folders = {Path(spec.argv[spec.argv.index("--spool") + 1]) for spec in specs}
    assert len(folders) == 2
    assert {folder.parent.parent for folder in folders} == {tmp_path / "spool"}


def test_embedded_database_has_two_roles_and_one_of_ones_own_those_that_are_set(tmp_path: Path) -> None:
    own = {"GREENSERVE_VAR": str(tmp_path)}
    embedded = env.read(own)
    assert "//greenserve@" in product_processes.owner_url(embedded)
    assert "//greenserve_run@" in product_processes.database_url(embedded)
    own |= {"DATABASE_URL": "postgresql://works@db/x"}
    assert product_processes.owner_url(env.read(own)) == "postgresql://works@db/x"
    own |= {"GREENSERVE_DATABASE_OWNER_URL": "postgresql://owns@db/x"}
    assert product_processes.owner_url(env.read(own)) == "postgresql://owns@db/x"
    assert product_processes.database_url(env.read(own)) == "postgresql://works@db/x"


def test_processes_of_a_further_control_plane_have_its_name(tmp_path: Path) -> None:
    shared = {"DATABASE_URL": "postgresql://db/g", "REDIS_URL": "redis://cache", "GREENSERVE_SECRET_KEY": "same"}
    more = {"GREENSERVE_PLANE": "b", "GREENSERVE_DEMO": "0", "GREENSERVE_GATEWAY_PROCESSES": "2"}
    config = env.read({"GREENSERVE_VAR": str(tmp_path), **shared, **more})
    specs = [*product_processes.gateways(config), product_processes.picker(config, 9002)]
    assert [spec.argv[spec.argv.index("--name") + 1] for spec in specs] == ["b.gateway", "b.gateway", "b.picker"]
    assert "--name" not in words(tmp_path)


def test_relay_is_a_process_where_a_port_for_nodes_is_set(tmp_path: Path) -> None:
    def relay(**variables: str) -> list[str]:
        spec = product_processes.node_relay(env.read({"GREENSERVE_VAR": str(tmp_path), **variables}))
        return [] if spec is None else list(spec.argv)

    assert relay() == []
    (tmp_path / "redis-url").write_text("unix:///r.sock")
    both = relay(GREENSERVE_RELAY_PORT="6390", GREENSERVE_JOIN_PORT="8443", GREENSERVE_WEB_NAMES="a.example,10.0.0.1")
    given = node_relay.arguments(both[3:])
    assert (given.redis_port, given.join_port, given.web_port) == (6390, 8443, 8000)
    assert given.name == ["a.example", "10.0.0.1"]
    assert given.redis_socket.name == "redis.sock"
    own = relay(GREENSERVE_RELAY_PORT="6390", GREENSERVE_JOIN_PORT="8443", REDIS_URL="rediss://redis.example:6390/0")
    assert "--redis-port" not in own, "nodes reach it themselves"
    public = relay(GREENSERVE_JOIN_PORT="8443", GREENSERVE_PUBLIC_URL="https://dash.example")
    assert node_relay.arguments(public[3:]).name == ["dash.example"]
    assert relay(GREENSERVE_RELAY_PORT="6390", REDIS_URL="rediss://redis.example:6390/0") == []


def test_gateways_trust_our_authority_for_nodes_and_the_operators(tmp_path: Path) -> None:
    own, others = {"GREENSERVE_VAR": str(tmp_path / "var")}, tmp_path / "others.pem"
    others.write_text(Authority.open(tmp_path, CONTROL_PLANE, datetime.now(UTC)).certificate_pem)
    for more, count in (({}, 1), ({"GREENSERVE_ENGINE_AUTHORITY": str(others)}, 2)):
        config = env.read(own | more)
        up.keep_trust(config)
        argv = product_processes.gateways(config)[0].argv
        path = Path(argv[argv.index("--engine-authority") + 1])
        assert len(trust_in(path).get_ca_certs()) == count
        assert "PRIVATE" not in path.read_text()
    nodes = Authority.open(config.secrets_dir, NODES, datetime.now(UTC)).certificate_pem
    assert path.read_text() == nodes + others.read_text()


def test_further_control_plane_has_the_keys_of_the_first(tmp_path: Path) -> None:
    shared = {"DATABASE_URL": "postgresql://db/g", "REDIS_URL": "redis://cache", "GREENSERVE_SECRET_KEY": "same"}
    more = {"GREENSERVE_PLANE": "b", "GREENSERVE_DEMO": "0"}
    first = env.read({"GREENSERVE_VAR": str(tmp_path / "a"), **shared})
    second = env.read({"GREENSERVE_VAR": str(tmp_path / "b"), **shared, **more})
    up.keep_trust(first)
    with pytest.raises(StartError, match="copy there the folder `secrets`"):
        up.keep_trust(second)
    shutil.copytree(first.secrets_dir, second.secrets_dir)
    up.keep_trust(second)
    keys = [product_processes.snapshot_key_file(config).read_text() for config in (first, second)]
    assert keys[0] == keys[1]


def test_server_that_sends_on_to_https_answers() -> None:
    """The web process does with GREENSERVE_HTTPS, and nothing speaks TLS where it sends to."""

    class SendsOn(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(301)
            self.send_header("Location", f"https://127.0.0.1:{self.server.server_address[1]}{self.path}")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), SendsOn) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        assert product_processes.answers(f"http://127.0.0.1:{server.server_port}/login/")()
        thread.join(5)
    assert not product_processes.answers(f"http://127.0.0.1:{server.server_port}/login/")()
