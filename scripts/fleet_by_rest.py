#!/usr/bin/env python3
"""Sets up a whole fleet through the REST API, and nothing else: docs/fleet-by-rest.md goes through it.

    scripts/fleet_by_rest.py http://127.0.0.1:8000 --token-file token.txt

It works on an empty fleet, and beside one that is there, such as the demo's. It may be run again: what is there stays
as it is, and each POST carries a key of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

TIMEOUT_S = 30
SERVICE, TENANT, KEY = "llama3-8b", "ashburn-team", "first"


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")


class Problem(Exception):
    """What the API said was wrong (RFC 9457)."""

    def __init__(self, body: dict[str, Any]) -> None:
        lines = [f"{error['field']}: {error['detail']}" for error in body.get("errors", [])]
        super().__init__("; ".join(lines) or body.get("detail", "no reason given"))
        self.body = body


class GreenServe:
    """The API in one method: `call("POST", "sites/", {...})` gives the answer's JSON, or raises Problem."""

    def __init__(self, url: str, token: str) -> None:
        self.root, self.token = f"{url.rstrip('/')}/api/v1/", token

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        request = urllib.request.Request(
            self.root + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise Problem(_problem(error)) from None
        return json.loads(text) if text else None

    def rows(self, path: str, **filters: str) -> list[Any]:
        """All rows of a list, page by page."""
        found, query = [], urlencode({"limit": "500", **filters})
        url: str | None = f"{path}?{query}"
        while url:
            page = self.call("GET", url.removeprefix(self.root))
            found += page["results"]
            url = page["next"]
        return found

    def find(self, kind: str, body: dict[str, Any], known_by: tuple[str, ...]) -> Any:
        """The row that is known by these fields; None: it is not there."""
        filters = {name: str(body[name]).rpartition("/")[2] for name in known_by}
        found = (row for row in self.rows(f"{kind}/", **filters) if all(row[name] == body[name] for name in known_by))
        return next(found, None)

    def ensure(self, kind: str, body: dict[str, Any], known_by: tuple[str, ...]) -> Any:
        """The row that is known by these fields; made if it is not there."""
        if row := self.find(kind, body, known_by):
            return row
        key = quote("/".join([kind, *(str(body[name]) for name in known_by)]), safe="/.-_")
        say(f"making {kind} {', '.join(str(body[name]) for name in known_by)}")
        return self.call("POST", f"{kind}/", body, **{"Idempotency-Key": f"fleet-{key}"})


def _problem(error: urllib.error.HTTPError) -> dict[str, Any]:
    """What the answer says; where it is no problem document, somebody else answered, or the product is broken."""
    try:
        return dict(json.loads(error.read()))
    except ValueError:
        return {"detail": f"{error.url} answers {error.code} {error.reason}, and not as GreenServe's API does"}


def set_up(api: GreenServe) -> str | None:
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
    if any(row["label"] == KEY for row in api.rows("keys/", tenant=TENANT)):
        return None
    made = api.call("POST", "keys/", {"tenant": TENANT, "label": KEY})
    return str(made["secret"])


def ensure_slo(api: GreenServe, slo: dict[str, Any]) -> None:
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
        secret = set_up(GreenServe(options.url, options.token_file.read_text().strip()))
    except (Problem, OSError) as error:
        sys.stderr.write(f"stopped: {error}" + "\n")
        return 1
    if secret is None:
        say(f"All is there; the key of tenant {TENANT} was shown when it was made.")
    else:
        say(f"All is there. The service is {SERVICE}; its first answer takes about a minute, with the first plan.")
        say(f"The key of tenant {TENANT} for the gateway, shown this once: {secret}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
