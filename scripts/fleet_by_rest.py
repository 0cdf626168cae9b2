"""Sets up a whole fleet through the REST API, and nothing else: docs/fleet-by-rest.md goes through it.

    .venv/bin/python scripts/fleet_by_rest.py http://127.0.0.1:8000 --token-file token.txt

It works on an empty fleet, and beside one that is there, such as the demo's. It may be run again: what is there stays
as it is, and each POST carries a key of its own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from greenserve.client import Client, GreenServeError

SERVICE, TENANT, KEY = "llama3-8b", "ashburn-team", "first"


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")


class Fleet(Client):
    """The API's client, which makes what is not there yet."""

    def find(self, kind: str, body: dict[str, Any], known_by: tuple[str, ...]) -> Any:
        """Returns the row that is known by these fields; None: it is not there."""
        filters = {name: str(body[name]).rpartition("/")[2] for name in known_by}
        found = (row for row in self.rows(f"{kind}/", **filters) if all(row[name] == body[name] for name in known_by))
        return next(found, None)

    def ensure(self, kind: str, body: dict[str, Any], known_by: tuple[str, ...]) -> Any:
        """Returns the row that is known by these fields; makes it if it is not there."""
        if row := self.find(kind, body, known_by):
            return row
        key = quote("/".join([kind, *(str(body[name]) for name in known_by)]), safe="/.-_")
        say(f"making {kind} {', '.join(str(body[name]) for name in known_by)}")
        return self.call("POST", f"{kind}/", body, idempotency_key=f"fleet-{key}")


def set_up(api: Fleet) -> str | None:
    """The fleet, from the ground up. Returns the tenant's key, or None where one was made before."""
    api.ensure(
        "sites",
        {
            "name": "ashburn",
            "label": "Ashburn",
            "grid_zone": "US-MIDA-PJM",
            "time_zone": "America/New_York",
            "pue": 1.2,
            "currency": "USD",
            "power_cap_w": 50_000,
        },
        ("name",),
    )
    api.ensure("clusters", {"site": "ashburn", "name": "main"}, ("site", "name"))
    api.ensure("nodes", {"cluster": "ashburn/main", "name": "a1", "simulated": True}, ("name",))
    for index in range(4):
        gpu = {"gpu_type": "H100-SXM-80GB", "memory_gb": 80, "min_mhz": 210, "max_mhz": 1980, "tdp_w": 700}
        api.ensure("gpus", {"node": "a1", "index": index, "uuid": f"SIM-a1-{index}", **gpu}, ("node", "index"))
    feed = {
        "site": "ashburn",
        "signal": "average",
        "provider": "static_csv",
        "config": {"file": "pools.demo:carbon_day.csv", "zone": "US-PJM-DOM", "repeat": "day"},
        "source": "Synthetic solar day, not measured",
    }
    api.ensure("feeds", feed, ("site", "signal"))
    api.ensure("models", {"name": "Llama3-8B", "max_model_len": 8_192}, ("name",))
    api.ensure("partitions", {"name": "short-long", "source": "Two classes, by the length of the prompt"}, ("name",))
    cells = ({"name": "S", "rank": 0, "input_max": 1_024}, {"name": "L", "rank": 1, "input_min": 1_024})
    for cell in cells:
        api.ensure("classes", {"partition": "short-long", **cell}, ("partition", "name"))
    service = {
        "name": SERVICE,
        "model_card": "Llama3-8B",
        "partition": "short-long",
        "partitions": ["short-long"],
        "knobs": {"partition": "short-long"},  # else the default policy serves all requests as one class
        "expected_rps": 1.0,
        "expected_prompt_tokens": 500,
        "expected_output_tokens": 200,
    }
    api.ensure("services", service, ("name",))
    for kind, objective_s in (("ttft", 2.0), ("tpot", 0.15)):
        ensure_slo(api, {"service": SERVICE, "kind": kind, "objective_s": objective_s, "percentile": 99})
    pool = {"service": SERVICE, "site": "ashburn", "request_class": "short-long/S"}
    api.ensure("pools", pool, ("service", "site", "request_class"))
    api.ensure("tenants", {"name": TENANT, "label": "Ashburn team"}, ("name",))
    if any(key.label == KEY for key in api.keys.list(tenant=TENANT)):
        return None
    made = api.keys.create(tenant=TENANT, label=KEY)
    if made.secret is None:  # of an answer that was lost and came again
        raise GreenServeError(f"the connection broke when key {made.id} came: delete it, and run this again")
    return made.secret


def ensure_slo(api: Fleet, slo: dict[str, Any]) -> None:
    """Makes an objective if it is not there; says beforehand whether it can be met."""
    if not api.find("slos", slo, ("service", "kind")):
        for consequence in api.call("POST", "slos/validate/", slo)["consequences"]:
            say(f"  {consequence['level']}: {consequence['text']}")
        api.ensure("slos", slo, ("service", "kind"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Sets up a small fleet through GreenServe's REST API.")
    parser.add_argument("url", help="of the dashboard, such as http://127.0.0.1:8000")
    parser.add_argument("--token-file", type=Path, required=True, help="a file with an administrator's access token")
    options = parser.parse_args()
    try:
        with Fleet(options.url, options.token_file.read_text().strip()) as fleet:
            secret = set_up(fleet)
    except (GreenServeError, OSError, ValueError) as error:
        sys.stderr.write(f"stopped: {error}\n")
        return 1
    if secret is None:
        say(f"All is there; the key of tenant {TENANT} was shown when it was made.")
    else:
        say(f"All is there. The service is {SERVICE}; its first answer takes about a minute, with the first plan.")
        say(f"The key of tenant {TENANT} for the gateway, shown this once: {secret}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
