"""What happens on the machines, step by step: docs/production.md, and faults that an operator meets.

Each step is a function; together they are the `STEPS`, in their order.
"""

from __future__ import annotations

import gzip
import json
import re
import time
from datetime import UTC, datetime

from tests.e2e.product import ROOT, wait_for
from tests.netns.page import INSTALLED, copied
from tests.netns.stage import Stage, say

LEADS_WITHIN_S = 15.0
SETTLES_WITHIN_S = 1500.0  # a window of five minutes, sixteen minutes for late samples, and beat
LEFT_OUT_WITHIN_S = 12.0  # the next fleet snapshot, and a gateway's next look at it
STATE = "nodes/gpu-1/state/"
ENVIRONMENT = "/var/lib/greenserve/node-gpu-2.env"
NOT_OF_OLD = ("REDIS_URL", "GREENSERVE_HTTPS", "GREENSERVE_PROXIES", "GREENSERVE_WEB_NAMES", "GREENSERVE_PATCHED")
FIRST_ENTRIES = (
    "SELECT coalesce(sum(energy_uj), 0) FROM (SELECT energy_uj FROM {table} ORDER BY id LIMIT {count}) AS kept"
)
LEDGER = "SELECT kind, sum(energy_uj) FROM telemetry_energyentry GROUP BY kind ORDER BY kind"


def servers_and_control_planes(stage: Stage) -> None:
    stage.page.section("## 1. Store")
    stage.page.section("## 2. Control planes")
    wait_for("a leader", lambda: leader(stage) == "the control plane without a name", 60.0)


def fleet_and_nodes(stage: Stage) -> None:
    stage.page.section("## 3. Fleet")
    stage.page.section("## 4. Nodes")


def first_request(stage: Stage) -> None:
    """Streams through a real vLLM on one node, and a simulated engine on the other."""
    since = now()
    stage.page.section("## 5. First request")
    wait_for("answers of both sites", lambda: served_by_both(stage, since), 180.0)


def firewall_and_trust(stage: Stage) -> None:
    """Engines are open to control planes alone, and nobody reads a node's engine without its key."""
    for node in ("gpu-1", "gpu-2"):
        ports = re.findall(r":(184\d\d)\s", stage[node].run("ss", "-Hltn").stdout)
        assert ports, f"no engine listens on {node}"
        url = f"https://{stage[node].address}:{ports[0]}"
        reached = ("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "4")
        assert stage["office"].run(*reached, f"{url}/health", check=False).stdout == "000"
        assert stage["control"].run(*reached, f"{url}/health", check=False).stdout == "200"
        assert stage["control"].run(*reached, f"{url}/v1/models", check=False).stdout == "401"
    open_ports = ("bash", "-c", "timeout 4 bash -c '</dev/tcp/store/5432' 2>&1")
    assert stage["gpu-1"].run(*open_ports, check=False).returncode != 0, "a node reaches the database"


def node_cut_off_and_back(stage: Stage) -> None:
    """Requests are served by the other node meanwhile, and by both afterwards; no joule of its GPUs is lost."""
    stage.network.cut("gpu-1")
    began = time.monotonic()
    faults = [fault for fault in (stage.ask() for _ in range(15)) if fault]
    assert not faults, faults
    say(f"  15 requests in {time.monotonic() - began:.1f} s while gpu-1 is cut off, none failed")
    wait_for("gpu-1 to be known as silent", lambda: stage.rest(STATE)["state"] != "reporting", 90.0)
    assert stage.status("https://llm.example/ready") == "200"
    stage.network.mend("gpu-1")
    wait_for("gpu-1 to be heard", lambda: stage.rest(STATE)["state"] == "reporting", 90.0)
    since = now()
    wait_for("answers of both sites", lambda: served_by_both(stage, since), 180.0)


def node_revoked(stage: Stage) -> None:
    """Redis refuses it at once, and gateways send its engine nothing more; the other node serves."""
    assert redis_says(stage, "gpu-2", ENVIRONMENT) == "True"
    began = time.monotonic()
    stage["control"].shell("greenserve node revoke gpu-2")
    wait_for("Redis to refuse gpu-2", lambda: "AuthenticationError" in redis_says(stage, "gpu-2", ENVIRONMENT), 30.0)
    say(f"  Redis refuses gpu-2 after {time.monotonic() - began:.1f} s, the command's start included")
    time.sleep(LEFT_OUT_WITHIN_S)
    since = now()
    faults = [fault for fault in (stage.ask() for _ in range(10)) if fault]
    assert not faults, faults
    wait_for("the records", lambda: stage.sites_that_served(since) == {"north"}, 60.0)


def release_upgraded(stage: Stage) -> None:
    """A database that 0.1.0 left, with the embedded Redis and its relay: a node joins it, and is revoked there."""
    store, old = stage["store"], stage["old"]
    (store.root / "root" / "old.sql").write_text(f"SET ROLE greenserve_owner;\n{dump()}")
    store.shell(
        'cd /tmp; psql() { runuser -u postgres -- psql -qX -v ON_ERROR_STOP=1 "$@"; }\n'
        "psql -c 'CREATE DATABASE old OWNER greenserve_owner'\n"
        "psql -d old -c 'GRANT CREATE ON SCHEMA public TO greenserve_owner'\n"
        "psql -d old < /root/old.sql\n"
        "echo 'hostssl old greenserve_owner,greenserve_run all scram-sha-256' >> /etc/postgresql/15/main/pg_hba.conf\n"
        f"systemctl reload postgresql; nft insert rule inet filter input ip saddr {old.address} accept"
    )
    before = stage.sql(LEDGER, "old")
    assert before, "the release left no energy"
    copied(stage["control"].root / INSTALLED, old.root / INSTALLED)
    for name in ("etc/greenserve/authority.pem", "usr/local/sbin/greenserve"):
        copied(stage["control"].root / name, old.root / name)
    kept = (stage["control"].root / "etc/greenserve/greenserve.env").read_text().splitlines()
    lines = [line.replace("@store/greenserve?", "@store/old?") for line in kept if not line.startswith(NOT_OF_OLD)]
    lines += ['GREENSERVE_WEB_NAMES="old"', 'GREENSERVE_RELAY_PORT="6390"']
    (old.root / "etc/greenserve/greenserve.env").write_text("\n".join([*lines, ""]))
    old.shell(
        "useradd --system --home-dir /var/lib/greenserve greenserve\n"
        "chown root:greenserve /etc/greenserve/greenserve.env; chmod 640 /etc/greenserve/greenserve.env\n"
        "/opt/greenserve/bin/greenserve units control-plane > /etc/systemd/system/greenserve.service\n"
        "systemctl daemon-reload; systemctl start greenserve\n"
        "until curl -fs http://127.0.0.1:8000/healthz; do sleep 2; done",
        timeout_s=600.0,
    )
    assert stage.sql(LEDGER, "old") == before
    token = old.shell("greenserve node token --cluster location-1/main --name gpu-2 2>/dev/null").strip()
    stage["gpu-2"].shell(
        "cd /var/lib/greenserve; HOME=/var/lib/greenserve runuser -u greenserve -- /opt/greenserve/bin/greenserve "
        f"node join https://old:8443 {token} --name gpu-2 --keep /var/lib/greenserve/old --cpu A100-80GB:1"
    )
    there = "/var/lib/greenserve/old/node-gpu-2.env"
    assert redis_says(stage, "gpu-2", there) == "True"
    began = time.monotonic()
    old.shell("greenserve node revoke gpu-2")
    wait_for("the relay to refuse gpu-2", lambda: redis_says(stage, "gpu-2", there) != "True", 30.0)
    said = redis_says(stage, "gpu-2", there)
    assert "ConnectionError" in said, f"the relay lets the certificate in: {said}"
    say(f"  the relay refuses gpu-2's certificate after {time.monotonic() - began:.1f} s, the command's start included")
    old.off()


def report_and_backup(stage: Stage) -> None:
    """The month's report; and the backup on an empty machine, which makes the same report from an equal ledger."""
    settled = "SELECT 1 FROM telemetry_settlement LIMIT 1"
    wait_for("a settled window", lambda: stage.sql(settled), SETTLES_WITHIN_S, every_s=10.0)
    stage.page.section("## 6. The month's report")
    copied(stage["control"].root / INSTALLED, stage["spare"].root / INSTALLED)
    stage.page.section("## 7. Backups")
    spare = stage["spare"]
    kept = json.loads(spare.shell("tar -xOf /root/backup.tar manifest.json"))["ledger"]
    sums = [FIRST_ENTRIES.format(table=table, count=count) for table, count in kept["entries"].items()]
    ours = [stage.sql(each) for each in sums]
    assert int(ours[0]) > 0
    script = (
        "import sys\nfrom pathlib import Path\nimport psycopg\nfrom greenserve.servers import embedded\n"
        "with psycopg.connect(embedded.owner_url(Path('/srv/greenserve'))) as there:\n"
        "    for each in sys.argv[1:]: print(there.execute(each).fetchone()[0])\n"
    )
    here = {"GREENSERVE_VAR": "/srv/greenserve", "GREENSERVE_DEMO": "0"}
    said = spare.shell("cd /srv; /opt/greenserve/bin/greenserve up --detach", timeout_s=600.0, **here)
    theirs = spare.run("/opt/greenserve/bin/python", "-P", "-", *sums, given=script, **here).stdout.split()
    assert theirs == ours, said
    spare.shell("cd /srv; /opt/greenserve/bin/greenserve report verify 1", **here)
    spare.shell("cd /srv; /opt/greenserve/bin/greenserve down", **here)
    say(f"  {ours[0]} uJ of GPUs in both, and the same report")


def second_control_plane_takes_over(stage: Stage) -> None:
    """The first one loses its power."""
    assert leader(stage) == "the control plane without a name", leader(stage)
    stage["control"].off()
    began = time.monotonic()
    wait_for("standby to lead", lambda: leader(stage) == "standby", 60.0, every_s=0.2)
    took_s = time.monotonic() - began
    say(f"  standby leads {took_s:.1f} s after the first one lost its power")
    assert took_s <= LEADS_WITHIN_S
    stage.lead_to("standby")
    assert stage.status("https://llm.example/ready") == "200"
    faults = [fault for fault in (stage.ask() for _ in range(10)) if fault]
    assert not faults, faults
    entered = "SELECT coalesce(max(end_at), 'epoch') FROM telemetry_energyentry"
    before = stage.sql(entered)
    wait_for("the ledger to go on", lambda: stage.sql(entered) > before, 120.0)


STEPS = (
    servers_and_control_planes,
    fleet_and_nodes,
    first_request,
    firewall_and_trust,
    node_cut_off_and_back,
    node_revoked,
    release_upgraded,
    report_and_backup,
    second_control_plane_takes_over,
)


def redis_says(stage: Stage, node: str, environment: str) -> str:
    """Returns what comes of asking Redis as the node does, with what its join wrote."""
    script = (
        "import os, sys, redis\n"
        "from pools.agent.redis_link import redis_url\n"
        "kept = dict(line.rstrip().split('=', 1) for line in open(sys.argv[1]))\n"
        "try: print(redis.Redis.from_url(redis_url(kept['BROKER_URL']), socket_timeout=5).ping())\n"
        "except redis.RedisError as error: print(type(error).__name__, error)\n"
    )
    return stage[node].run("/opt/greenserve/bin/python", "-P", "-", environment, given=script).stdout.strip()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def served_by_both(stage: Stage, since: str) -> bool:
    fault = stage.ask()
    assert not fault, fault
    return stage.sites_that_served(since) == {"north", "south"}


def leader(stage: Stage) -> str:
    """Returns which control plane leads, as PostgreSQL knows it; empty: none does."""
    return stage.sql(
        "SELECT substr(application_name, 20) FROM pg_stat_activity JOIN pg_locks USING (pid)"
        " WHERE locktype = 'advisory' AND granted AND application_name LIKE 'greenserve beat of %' LIMIT 1"
    )


def dump() -> str:
    return gzip.decompress((ROOT / "tests/fixtures/release_0_1_0/dump.sql.gz").read_bytes()).decode()
