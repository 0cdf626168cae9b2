from __future__ import annotations

from pathlib import Path

import pytest

from pools.gateway.__main__ import _config

URL = "rediss://:hush@cache:6379/0"


def test_redis_with_a_password_is_named_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "redis-url"
    file.write_text(f"{URL}\n")
    assert _config(["--redis-url-file", str(file), "--spool", str(tmp_path)]).redis_url == URL


@pytest.mark.parametrize("url", [URL, "unix:///run/redis.sock?password=hush"])
def test_redis_password_is_refused_and_not_repeated_on_the_command_line(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _config(["--redis-url", url, "--spool", str(tmp_path)])
    said = capsys.readouterr().err
    assert "--redis-url-file" in said.rpartition("error:")[2]
    assert "hush" not in said


def test_redis_is_named_in_one_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "redis-url"
    file.write_text(URL)
    for given in ([], ["--redis-url", "redis://cache/0", "--redis-url-file", str(file)]):
        with pytest.raises(SystemExit):
            _config([*given, "--spool", str(tmp_path)])
    assert "not allowed with argument --redis-url" in capsys.readouterr().err
