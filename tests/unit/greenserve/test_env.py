from __future__ import annotations

import stat
from pathlib import Path

import pytest

from greenserve import env
from pools import redis_address
from telemetry.providers.secrets import VARIABLES


def read(tmp_path: Path, **values: str) -> env.Env:
    return env.read({"GREENSERVE_VAR": str(tmp_path / "var"), **values})


def test_data_of_a_checkout_lies_in_it_and_of_an_installed_product_in_the_accounts_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert env.read({"GREENSERVE_SECRET_KEY": "k"}).var_dir == env.ROOT / "var"
    monkeypatch.setattr(env, "ROOT", tmp_path / "site-packages")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    home = tmp_path / "home" / ".local" / "share" / "greenserve"
    for said, folder in (("", home), ("not/whole", home), ("/data", Path("/data/greenserve"))):
        config = env.read({"GREENSERVE_SECRET_KEY": "k", "XDG_DATA_HOME": said})
        assert config.var_dir == config.work_dir == folder
    assert env.read({"GREENSERVE_SECRET_KEY": "k", "GREENSERVE_VAR": "/own"}).var_dir == Path("/own")


def test_account_without_a_home_is_asked_for_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(env, "ROOT", tmp_path / "site-packages")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(env.BadEnvironment, match="set GREENSERVE_VAR"):
        env.read({"GREENSERVE_SECRET_KEY": "k"})
    assert env.read({"GREENSERVE_SECRET_KEY": "k", "GREENSERVE_VAR": "/own"}).var_dir == Path("/own")


def test_defaults_are_the_documented_ones_when_nothing_is_set(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert (found.web_host, found.web_port) == ("127.0.0.1", 8000)
    assert (found.gateway_host, found.gateway_port) == ("127.0.0.1", 8080)
    assert found.picker_port is None
    assert found.database_url is None
    assert found.redis_url is None
    assert (found.demo, found.demo_speedup, found.demo_rps, found.debug) == (True, 30.0, 3.0, False)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("GREENSERVE_WEB_PORT", "eighty", "port between 1 and 65535"),
        ("GREENSERVE_ORGANISATION", "x" * 101, "at most 100 letters"),
        ("GREENSERVE_URL", "dashboard", "https://host"),
        ("GREENSERVE_PUBLIC_URL", "dash.example", "http://HOST:PORT"),
        ("GREENSERVE_PUBLIC_URL", "https://dash.example/greenserve", "http://HOST:PORT"),
        ("GREENSERVE_WEB_PORT", "0", "port between 1 and 65535"),
        ("GREENSERVE_GATEWAY_PORT", "65536", "port between 1 and 65535"),
        ("GREENSERVE_GATEWAY_PROCESSES", "0", "between 1 and 64"),
        ("GREENSERVE_GATEWAY_PROCESSES", "two", "between 1 and 64"),
        ("GREENSERVE_LENGTH_BUDGET_MS", "1001", "milliseconds between 0 and 1000"),
        ("GREENSERVE_PICKER_PORT", "0", "port between 1 and 65535"),
        ("GREENSERVE_PICKER_METRICS_PORT", "70000", "port between 1 and 65535"),
        ("GREENSERVE_WORKER_HOSTS", "private,10.0.0.0/99", "networks"),
        ("GREENSERVE_DEMO", "perhaps", "1 or 0"),
        ("GREENSERVE_DEBUG", "2", "1 or 0"),
        ("GREENSERVE_DEMO_SPEEDUP", "0.5", "between 1 and 1000"),
        ("GREENSERVE_DEMO_SPEEDUP", "nan", "between 1 and 1000"),
        ("GREENSERVE_DEMO_DAYS", "32", "between 0 and 31"),
        ("GREENSERVE_DEMO_RPS", "-1", "between 0 and 1000"),
        ("GREENSERVE_LOG_LEVEL", "LOUD", "DEBUG, INFO, WARNING, ERROR"),
        ("GREENSERVE_CARBON_HOSTS", "mirror.example,10.0.0.1", "names of hosts"),
        ("GREENSERVE_FEEDS_DIR", "feeds", "the whole path of a folder"),
        ("GREENSERVE_WEBHOOK_HOSTS", "https://hooks.lan/", "names or addresses of hosts"),
        ("GREENSERVE_WEBHOOK_HOSTS", "hooks.lan,169.254.169.254", "names or addresses of hosts"),
        ("GREENSERVE_CARBON_HOSTS", "https://mirror.example", "names of hosts"),
        ("GREENSERVE_PLANE", "B 2", "small letters, digits"),
        ("GREENSERVE_PLANE", "gateway", "no process's"),
    ],
)
def test_one_line_names_variable_and_remedy_when_a_value_is_bad(
    tmp_path: Path, name: str, value: str, remedy: str
) -> None:
    with pytest.raises(env.BadEnvironment) as caught:
        read(tmp_path, **{name: value})
    message = str(caught.value)
    assert name in message
    assert repr(value) in message
    assert remedy in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("DATABASE_URL", "sqlite:///hush", "postgresql://"),
        ("DATABASE_URL", "postgresql://me:hush%zz@db/name", "%XX"),
        ("DATABASE_URL", "postgresql://me:hush/5@db/name", "%XX"),
        ("GREENSERVE_DATABASE_OWNER_URL", "postgresql://me:hush%zz@db/name", "%XX"),
        ("REDIS_URL", "localhost:hush", "redis://"),
        ("REDIS_URL", "redis://:hush#1@cache:6379/0", "%XX"),
    ],
)
def test_address_of_a_server_is_not_repeated_when_it_cannot_be_used(
    tmp_path: Path, name: str, value: str, remedy: str
) -> None:
    with pytest.raises(env.BadEnvironment) as caught:
        read(tmp_path, **{name: value})
    assert f"{name} cannot be used: " in str(caught.value)
    assert remedy in str(caught.value)
    assert "hush" not in str(caught.value)


def test_settings_do_not_show_secrets_when_they_are_printed(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        DATABASE_URL="postgresql://me:hush@db/name",
        GREENSERVE_DATABASE_OWNER_URL="postgresql://owns:hush@db/name",
        REDIS_URL="redis://:hush@cache/0",
        GREENSERVE_SECRET_KEY="hush-and-long-enough",
        GREENSERVE_WORKER_TOKEN="hush-and-long-enough",
    )
    assert found.database_url is not None
    assert "hush" not in repr(found)


SECRETS = {
    *(
        "DATABASE_URL",
        "REDIS_URL",
        "PGPASSWORD",
        "GREENSERVE_SECRET_KEY",
        "GREENSERVE_WORKER_TOKEN",
        "GREENSERVE_TOKEN",
    ),
    *("GREENSERVE_OIDC_CLIENT_SECRET", "GREENSERVE_EMAIL_URL", "GREENSERVE_METRICS_TOKEN", "GREENSERVE_SECRETS_FILE"),
    *("GREENSERVE_ALERT_WEBHOOK_URL", "GREENSERVE_ALERT_WEBHOOK_SECRET", *VARIABLES),
}


def test_secrets_are_handed_on_only_to_who_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("GREENSERVE_WEB_PORT", "9000")
    assert env.for_child().items() >= dict.fromkeys(SECRETS, "hush").items()
    without = env.for_child(secrets=False, BROKER_URL="its own")
    assert {name for name in SECRETS if name in without} == {"GREENSERVE_SECRETS_FILE"}  # where, not what
    assert (without["GREENSERVE_WEB_PORT"], without["BROKER_URL"]) == ("9000", "its own")


def test_address_of_the_owner_is_handed_on_only_to_who_migrates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(env.OWNER_URL, "postgresql://owns:hush@db/name")
    assert env.OWNER_URL not in env.for_child()
    assert env.OWNER_URL not in env.for_child(secrets=False)
    assert env.for_child(owner=True)[env.OWNER_URL] == "postgresql://owns:hush@db/name"
    with pytest.raises(env.BadEnvironment, match="cannot be used alone: set DATABASE_URL") as caught:
        read(tmp_path, GREENSERVE_DATABASE_OWNER_URL="postgresql://owns:hush@db/name")
    assert "hush" not in str(caught.value)


def test_keys_of_providers_are_not_seen_when_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("GREENSERVE_PJM_KEY=hush-from-file\n")
    file.chmod(0o600)
    found = read(
        tmp_path,
        GREENSERVE_EIA_KEY="hush-from-environment",
        GREENSERVE_SECRETS_FILE=str(file),
        GREENSERVE_CARBON_HOSTS=" Mirror.example ,other.example",
    )
    assert set(found.carbon_secrets) == {"GREENSERVE_EIA_KEY", "GREENSERVE_PJM_KEY"}
    assert "hush" not in repr(found)
    assert found.carbon_hosts == {"mirror.example", "other.example"}
    file.chmod(0o644)
    with pytest.raises(env.BadEnvironment, match="chmod 600") as caught:
        read(tmp_path, GREENSERVE_SECRETS_FILE=str(file))
    assert "hush" not in str(caught.value)


def test_secret_key_is_kept_and_private_when_read_again(tmp_path: Path) -> None:
    first, second = read(tmp_path).secret_key, read(tmp_path).secret_key
    assert first == second
    assert len(first) >= 50
    path = tmp_path / "var" / "secret-key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["secret-key"]


def test_secret_key_is_made_anew_when_the_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "secret-key").touch()
    assert len(read(tmp_path).secret_key) >= 50


def test_one_line_is_said_when_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(env.BadEnvironment, match="GREENSERVE_VAR"):
        env.read({"GREENSERVE_VAR": str(tmp_path / "file" / "var")})


def test_no_other_module_reads_the_environment() -> None:
    readers = [
        str(path.relative_to(env.ROOT))
        for folder in ("greenserve", "pools", "telemetry", "scheduler", "frontend")
        for path in (env.ROOT / folder).rglob("*.py")
        if "os.environ[" in (text := path.read_text()) or "os.environ.get" in text or "os.getenv" in text
    ]
    # The plug-in is read by vLLM's process, where no other module of GreenServe is.
    assert sorted(readers) == [
        "greenserve/env.py",
        "pools/vllm_scheduler/key_guard.py",
        "pools/vllm_scheduler/scheduler.py",
    ]


@pytest.mark.parametrize(
    ("redis_url", "broker_url"),
    [
        ("unix:///tmp/r.sock?db=3", "redis+socket:///tmp/r.sock?virtual_host=3"),
        ("unix:///tmp/r.sock", "redis+socket:///tmp/r.sock"),
        ("redis://host:1/2", "redis://host:1/2"),
    ],
)
def test_broker_is_the_same_database_when_named_in_celerys_words(redis_url: str, broker_url: str) -> None:
    assert redis_address.broker_url(redis_url) == broker_url


def test_worker_token_is_not_repeated_when_it_is_bad(tmp_path: Path) -> None:
    with pytest.raises(env.BadEnvironment) as caught:
        read(tmp_path, GREENSERVE_WORKER_TOKEN="short one")
    assert "GREENSERVE_WORKER_TOKEN" in str(caught.value)
    assert "short one" not in str(caught.value)


def test_secret_is_private_when_it_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "var" / "worker-token"
    for secret in ("first-secret-of-all", "second-secret"):
        env.keep_secret(path, secret)
        assert path.read_text() == secret
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://a:26379,b:26379",
        "sentinel://a:26379/x?db=one",
        "sentinel://a:1/x?retry=1",
        "sentinel://,b/x",
        "http://a",
    ],
)
def test_address_of_redis_is_refused_when_clients_would_not_understand_it(tmp_path: Path, url: str) -> None:
    with pytest.raises(env.BadEnvironment, match="REDIS_URL cannot be used: write redis://"):
        read(tmp_path, REDIS_URL=url)


def test_passwords_of_servers_and_sentinels_are_secrets(tmp_path: Path) -> None:
    found = read(tmp_path, REDIS_URL="sentinel://:of-servers@a:26379,b:26379/main?db=2&sentinel_password=of-sentinels")
    assert {"of-servers", "of-sentinels"} <= set(found.secrets)


SHARED = {"DATABASE_URL": "postgresql://db/g", "REDIS_URL": "redis://cache", "GREENSERVE_SECRET_KEY": "the-same-one"}


@pytest.mark.parametrize("missing", SHARED)
def test_further_control_plane_is_refused_without_what_all_of_them_share(tmp_path: Path, missing: str) -> None:
    assert read(tmp_path, GREENSERVE_PLANE="b", GREENSERVE_DEMO="0", **SHARED).plane == "b"
    with pytest.raises(env.BadEnvironment, match=missing):
        read(tmp_path, GREENSERVE_PLANE="b", GREENSERVE_DEMO="0", **{**SHARED, missing: ""})


def test_further_control_plane_is_refused_with_the_demo(tmp_path: Path) -> None:
    with pytest.raises(env.BadEnvironment, match="GREENSERVE_DEMO=0"):
        read(tmp_path, GREENSERVE_PLANE="b", **SHARED)
