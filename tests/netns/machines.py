"""Machines of a run: each has network, mount, process and host-name namespaces of its own, and a disk.

They share the kernel, the distribution's programs and the network between them, and nothing else: the checkout and other
machines' disks are out of sight. Nothing is seen outside: the run itself is in namespaces (`python -m tests.netns`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.product import ROOT

DISK = Path("/srv")  # where each machine sees its own
DELAY_MS, LOSS = 4.0, 0.002
PATH = f"{DISK}/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PYTHON = Path(os.path.realpath(sys.executable))


def lacking() -> list[str]:
    """Returns what this machine lacks for the run, each with how to supply it; empty: nothing."""
    found = []
    if os.geteuid() != 0:
        found.append("root: namespaces need it; run it as root, or in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN")
    for program, package in (("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2")):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            found.append(f"`{program}`: install the package {package}")
    if not Path("/dev/net/tun").exists():
        found.append("/dev/net/tun: load the module (modprobe tun), or give the container the device")
    return found


@dataclass
class Machine:
    """A machine called `name` at `address`, whose disk is `folder`."""

    name: str
    address: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    init: int = 0  # process 1 of the machine, as it is called here

    def boot(self, hosts: str) -> None:
        """Starts it without processes; `hosts` is its /etc/hosts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "hosts").write_text(hosts)
        hide = [path for path in (ROOT, Path("/tmp"), Path("/home"), Path("/mnt")) if path.exists()]
        script = [f"mount --bind {self.folder} {DISK}", f"mount --bind {DISK}/hosts /etc/hosts"]
        script += [f"mount -t tmpfs -o mode=1777 tmpfs {path}" for path in hide]
        script += [f"hostname {self.name}", "echo up", "exec sleep infinity"]
        spaces = ("--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
        self.process = subprocess.Popen(
            ["unshare", *spaces, "sh", "-ec", "\n".join(script)], stdout=subprocess.PIPE, cwd="/"
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"up\n":
            raise RuntimeError(f"machine {self.name} did not start")
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.init = int(children[0])

    def off(self) -> None:
        """Cuts its power: all its processes end at once, its disk stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
            self.process = None

    def _within(self, words: Sequence[str], network: bool = True) -> list[str]:
        spaces = ["--mount", "--uts", "--pid", *(["--net"] if network else [])]
        return ["nsenter", "--target", str(self.init), *spaces, f"--wd={DISK}", *words]

    def _env(self, more: Mapping[str, str]) -> dict[str, str]:
        return {"PATH": PATH, "HOME": str(DISK), "LANG": "C.UTF-8", **more}

    def run(
        self, *words: str, timeout_s: float = 120.0, check: bool = True, given: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program there. Raises AssertionError with what it wrote when it fails."""
        done = subprocess.run(
            self._within(words), env=self._env(more), input=given, text=True, capture_output=True, timeout=timeout_s
        )
        if check and done.returncode:
            raise AssertionError(f"{self.name}: {' '.join(words)} ended {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def start(self, *words: str, log: str, **more: str) -> subprocess.Popen[bytes]:
        """Starts a program there that goes on; it writes to DISK/`log`."""
        with (self.folder / log).open("ab") as file:
            return subprocess.Popen(
                self._within(words), env=self._env(more), stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def install(self, *packages: str, timeout_s: float = 900.0) -> None:
        """Installs packages into DISK/venv. This alone goes through this computer's network: the index is there."""
        if not (self.folder / "venv").exists():
            self.run(str(PYTHON), "-m", "venv", f"{DISK}/venv")
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP", "http"))}
        words = (f"{DISK}/venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
        subprocess.run(
            self._within(words, network=False), env=self._env({**kept, "HOME": "/root"}), check=True, timeout=timeout_s
        )


@dataclass
class Network:
    """The machines of a run, and the wire between them."""

    folder: Path
    machines: dict[str, Machine] = field(default_factory=dict)
    _wire: subprocess.Popen[str] | None = None

    def boot(self, *names: str, delay_ms: float = DELAY_MS, loss: float = LOSS) -> None:
        """Starts machines called so, 10.77.0.1 and on, with this delay each way and this share of packets lost."""
        self.machines = {
            name: Machine(name, f"10.77.0.{number}", self.folder / name) for number, name in enumerate(names, 1)
        }
        hosts = "".join(f"{one.address} {one.name}\n" for one in self.machines.values())
        for machine in self.machines.values():
            machine.boot(f"127.0.0.1 localhost\n::1 localhost\n{hosts}")
        ends = [f"{one.name}={one.init}={one.address}" for one in self.machines.values()]
        self._wire = subprocess.Popen(
            [sys.executable, "-m", "tests.netns.wire", str(delay_ms), str(loss), *ends],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._heard()

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def cut(self, name: str) -> None:
        """Loses every packet from and to a machine, until `mend`."""
        self._say(f"cut {name}")

    def mend(self, name: str) -> None:
        self._say(f"mend {name}")

    def _say(self, words: str) -> None:
        assert self._wire is not None
        assert self._wire.stdin is not None
        self._wire.stdin.write(f"{words}\n")
        self._wire.stdin.flush()
        self._heard()

    def _heard(self) -> None:
        assert self._wire is not None
        assert self._wire.stdout is not None
        if self._wire.stdout.readline() != "done\n":
            raise RuntimeError("the network between the machines has ended")

    def off(self) -> None:
        for machine in self.machines.values():
            machine.off()
        if self._wire is not None:
            self._wire.kill()
            self._wire.wait(20)
