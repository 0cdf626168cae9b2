"""The database is set up by its owner, who is no superuser, for a role of its users."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from greenserve import env
from greenserve.servers import embedded
from tests import servers


def python(var_dir: Path, database_url: str, *words: str) -> str:
    variables = {
        **{"GREENSERVE_VAR": str(var_dir), "DATABASE_URL": database_url, "REDIS_URL": embedded.redis_url(var_dir)},
        **{"GREENSERVE_DEMO": "0", "GREENSERVE_WEB_PORT": "1", "GREENSERVE_GATEWAY_PORT": "2"},
    }
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env=env.for_child(**variables),
        cwd=env.ROOT,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow("a database is made and migrated")
def test_owner_of_ones_own_server_migrates_and_the_product_works_under_another_role(tmp_path: Path) -> None:
    var_dir = tmp_path / "var"
    var_dir.mkdir()
    with servers.running(var_dir, durable=False) as (superuser_url, _):
        server = superuser_url.rsplit("/", 1)[0].split("@", 1)[1]
        with psycopg.connect(superuser_url, connect_timeout=5, autocommit=True) as connection:
            for statement in ("CREATE ROLE owns LOGIN", "CREATE ROLE works LOGIN", "CREATE DATABASE fleet OWNER owns"):
                connection.execute(statement)
        owns, works = (f"postgresql://{role}@{server}/fleet" for role in ("owns", "works"))
        for _ in range(2):  # as each start does
            said = python(var_dir, owns, "greenserve.supervision.database_setup", "works")
            assert json.loads(said)["simulated_nodes"] == {}, said
        with psycopg.connect(works, connect_timeout=5, autocommit=True) as connection:
            connection.execute("INSERT INTO pools_site (name) SELECT '' WHERE false")
            for statement in ("TRUNCATE pools_auditentry", "CREATE TABLE mine (x int)", "CREATE TEMPORARY TABLE t ()"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement)  # type: ignore[call-overload]
        for url, ok, words in ((works, True, "owns nothing"), (owns, False, "owns the tables")):
            found = {row["check"]: row for row in json.loads(python(var_dir, url, "greenserve", "doctor", "--json"))}
            assert (found["database roles"]["ok"], found["database roles"]["must"]) == (ok, False)
            assert words in found["database roles"]["detail"]
    servers.remove(var_dir)
