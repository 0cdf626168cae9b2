"""The machines of the run, what is on them before it begins, and what `office` asks of the product."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import wheels
from tests.e2e.product import ROOT
from tests.netns.machines import Machine, Network
from tests.netns.page import INSTALLED, PageRun, copied

VLLM = ROOT / ".venv-vllm"
NAMES = ("store", "control", "standby", "gpu-1", "gpu-2", "office", "spare", "old")
ALIASES = {"control": ("greenserve.example", "llm.example")}
MODEL = Path("srv/models/chat")
BODY = {"model": "chat", "stream": True, "max_tokens": 16, "messages": [{"role": "user", "content": "Name a river."}]}


class Stage:
    """`folder`: for the machines' disks, which go with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Network(folder / "machines")
        self.page = PageRun(self.network, folder / "wheels")

    def set(self) -> None:
        """Builds the wheels, boots the machines, gives nodes weights and a vLLM: a real one, a simulated one."""
        (self.folder / "wheels").mkdir()
        wheels.build(self.folder / "wheels")
        python = Path(os.path.realpath(VLLM / "bin" / "python")).parents[1]
        self.network.boot(NAMES, ALIASES, {"gpu-1": [VLLM, *([] if python == Path("/usr") else [python])]})
        for name in ("gpu-1", "gpu-2"):
            (self[name].root / "opt" / "vllm" / "bin").mkdir(parents=True)
        real, simulated = (self[name].root / "opt" / "vllm" / "bin" / "vllm" for name in ("gpu-1", "gpu-2"))
        real.symlink_to(VLLM / "bin" / "vllm")
        ways = [str(folder) for folder in (*VLLM.parents, *python.parents)]
        self["gpu-1"].run("chmod", "go+x", *ways)  # so that the agent's account gets there
        program = simulated.with_name("simulated_vllm.py")
        program.write_text((ROOT / "tests" / "netns" / program.name).read_text())
        simulated.write_text(f'#!/bin/sh\nexec /{INSTALLED}/bin/python -I /opt/vllm/bin/{program.name} "$@"\n')
        simulated.chmod(0o755)
        weights = self.folder / "chat"
        command = [str(VLLM / "bin" / "python"), str(ROOT / "tests" / "vllm" / "tiny_model.py"), str(weights)]
        subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in ("gpu-1", "gpu-2"):
            copied(weights, self[name].root / MODEL)
            self[name].run("chmod", "-R", "a+rX", "/srv/models")  # the agent has an account of its own

    def keep(self, folder: Path) -> None:
        """Copies what the machines and the page's commands wrote, for who looks for a fault."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, said in self.page.said.items():
            (folder / f"{name.replace('/', '-')}.txt").write_text(said)
        logs = ("var/lib/greenserve/log", "var/lib/greenserve/engines/logs", "var/log/postgresql", "var/log/nginx")
        for machine in self.network.machines.values():
            if machine.running:
                journal = machine.run("journalctl", "--no-pager", check=False).stdout
                (folder / f"{machine.name}-journal.txt").write_text(journal)
            for path in logs:
                if (machine.root / path).exists():
                    copied(machine.root / path, folder / machine.name / Path(path).parent.name)

    def __getitem__(self, name: str) -> Machine:
        return self.network[name]

    # -- what `office` asks --------------------------------------------------------------------------

    def rest(self, path: str) -> Any:
        """GET of REST, by the token of the page."""
        said = self["office"].shell(
            f'curl -fsS --max-time 30 --cacert /root/authority.pem -H "Authorization: Bearer $(cat /root/token)" '
            f"'https://greenserve.example/api/v1/{path}'"
        )
        return json.loads(said)

    def rows(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.rest(path)["results"]
        return found

    def ask(self) -> str:
        """Streams a completion; returns why it did not come whole, or nothing."""
        done = self["office"].run(
            *("curl", "-sSN", "--max-time", "60", "--cacert", "/root/authority.pem", "-w", "\n%{http_code}"),
            *("-H", f"Authorization: Bearer {self.key}", "-H", "Content-Type: application/json"),
            *("-d", json.dumps(BODY), "https://llm.example/v1/chat/completions"),
            check=False,
        )
        words = re.findall(r'"delta":\{[^}]*"content":"[^"]+', done.stdout)
        whole = "data: [DONE]" in done.stdout and done.stdout.endswith("\n200")
        return "" if whole and words else f"{done.stdout[-500:]}{done.stderr}"

    @property
    def key(self) -> str:
        return (self["office"].root / "root" / "key").read_text().strip()

    def status(self, url: str) -> str:
        done = self["office"].run(
            *("curl", "-s", "-o", "/dev/null", "--max-time", "10", "--cacert", "/root/authority.pem"),
            *("-w", "%{http_code}", url),
            check=False,
        )
        return done.stdout

    def sites_that_served(self, since: str) -> set[str]:
        return {str(row["site"]) for row in self.rows(f"requests/?status=ok&started_after={since}")}

    def lead_to(self, name: str) -> None:
        """Lets the names of the service lead to another control plane, as DNS does."""
        for machine in self.network.machines.values():
            hosts = machine.root / "etc" / "hosts"
            lines = [line for line in hosts.read_text().splitlines() if "greenserve.example" not in line]
            hosts.write_text("\n".join([*lines, f"{self[name].address} {' '.join(ALIASES['control'])}", ""]))

    def sql(self, statement: str, database: str = "greenserve") -> str:
        """Asks PostgreSQL on `store`, as its superuser."""
        words = ("env", "-C", "/tmp", "runuser", "-u", "postgres", "--", "psql", "-qAtX", "-d", database, "-c")
        return self["store"].run(*words, statement).stdout.strip()


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()
