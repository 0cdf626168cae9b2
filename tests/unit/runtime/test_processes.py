from __future__ import annotations

from pathlib import Path

from greenserve import env, processes

TOKEN = "a-token-for-workers"


def words(tmp_path: Path, **values: str) -> tuple[str, ...]:
    return processes.gateway(env.read({"GREENSERVE_VAR": str(tmp_path), **values})).argv


def test_gateway_is_told_where_the_worker_token_is_and_not_what(tmp_path: Path) -> None:
    argv = words(tmp_path, GREENSERVE_WORKER_TOKEN=TOKEN, GREENSERVE_WORKER_HOSTS="private,gpu-1")
    assert argv[argv.index("--worker-token-file") + 1] == str(tmp_path / "worker-token")
    assert argv[argv.index("--worker-hosts") + 1] == "private,gpu-1"
    assert not any(TOKEN in word for word in argv)


def test_gateway_has_no_worker_token_when_none_is_given(tmp_path: Path) -> None:
    assert "--worker-token-file" not in words(tmp_path)
