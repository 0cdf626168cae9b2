"""Runs the commands of docs/production.md on the machines that they name.

A comment before a block says where: `on A, B` one after the other, `installs on A, B` with the package indexes, and
`copies`: its lines are `scp FROM... TO` between machines, by their roots here.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

from tests import documents
from tests.documents import Block
from tests.netns.machines import Machine, Network

PAGE = documents.ROOT / "docs" / "production.md"
TOKEN = "gsj_SECRET.FINGERPRINT"
INSTALLED = Path("opt/greenserve")  # an environment is copied to the further machines: what pip does is the same there
_LINE = re.compile(r"^ *greenserve node join (\S+) (gsj_\S+) --name (\S+)$", re.MULTILINE)


class PageRun:
    """Runs blocks, and keeps what a join token's line says until a later block needs it."""

    def __init__(self, network: Network, wheels: Path) -> None:
        self._network, self._wheels = network, wheels
        self.said: dict[str, str] = {}  # by the block's place and the machine: what it wrote
        self._tokens: dict[str, tuple[str, str]] = {}  # by node: the address and the token of the printed line

    def section(self, heading: str) -> None:
        """Runs the blocks under a heading, as it is written."""
        found = [block for block in documents.blocks(PAGE, heading) if block.where]
        assert found, f"{heading} has nothing to run"
        for block in found:
            self._block(block)

    def _block(self, block: Block) -> None:
        how, _, machines = (block.where or "").rpartition("on ")
        if block.where == "copies":
            for line in block.text.splitlines():
                copy(self._network, line)
            return
        for number, name in enumerate(machines.split(", ")):
            machine = self._network[name]
            if how == "installs ":
                said = self._install(machine, block.text, machines.split(", ")[0] if number else "")
            else:
                said = machine.shell(self.with_token(block.text, name))
            self.said[f"{block.place} {name}"] = said
            self.heard(said)

    def heard(self, said: str) -> None:
        """Keeps the tokens of lines that `greenserve node token` printed."""
        self._tokens |= {node: (url, token) for url, token, node in _LINE.findall(said)}

    def _install(self, machine: Machine, script: str, like: str) -> str:
        constraint = {}
        if "pip install" in script:
            folder = machine.root / "root" / "wheels"
            folder.mkdir(exist_ok=True)
            for wheel in self._wheels.glob("*.whl"):
                shutil.copy(wheel, folder)
            names = {path.name.split("-")[0].replace("_", "-"): path.name for path in folder.glob("*.whl")}
            lines = [f"{name} @ file:///root/wheels/{file}" for name, file in names.items()]
            (folder / "constraints.txt").write_text("\n".join([*lines, ""]))
            constraint = {"PIP_CONSTRAINT": "/root/wheels/constraints.txt"}
            if like:
                copied(self._network[like].root / INSTALLED, machine.root / INSTALLED)
        return machine.install(script, **constraint)

    def with_token(self, script: str, node: str) -> str:
        """Returns a node's script with the token that was printed for it."""
        if TOKEN not in script:
            return script
        url, token = self._tokens[node]
        assert f"{url} {TOKEN}" in script, f"the printed line joins {url}, and the page has another address"
        return script.replace(TOKEN, token)


def copy(network: Network, line: str) -> None:
    """Does what `scp` would do, as root of both machines."""
    words = [word for word in shlex.split(line)[1:] if word != "-r"]
    assert line.startswith("scp "), line
    *sources, target = [_path(network, word) for word in words]
    if words[-1].endswith("/"):
        target.mkdir(parents=True, exist_ok=True)
    for pattern in sources:
        found = sorted(pattern.parent.glob(pattern.name))
        assert found, f"{pattern} is not there"
        for source in found:
            copied(source, target / source.name if target.is_dir() else target)


def _path(network: Network, word: str) -> Path:
    name, _, path = word.partition(":")
    return network[name].root / path.lstrip("/")


def copied(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "-T", str(source), str(target)], check=True, timeout=300)
