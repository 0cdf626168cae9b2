"""Machines of a run: bare Debians that boot systemd, each with a disk, a network and processes of its own.

They are containers of systemd-nspawn: services start by their units, with all that the units forbid, and nothing is
shared but the kernel and the wire between them. All of them end with the process that made them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.product import ROOT, wait_for

DELAY_MS, LOSS = 4.0, 0.002
BOOTS_WITHIN_S = 120.0
PACKAGES = (
    "systemd,systemd-sysv,dbus,python3,python3-venv,python3-pip,ca-certificates,iproute2,nftables,procps,openssl,curl"
)
BASE = ROOT / "build" / "netns" / "debian-12"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SPACES = ("--mount", "--uts", "--ipc", "--pid", "--cgroup", "--root")
# Settings of this computer for the package indexes: machines have them while something is installed there.
SETTINGS = (
    "/etc/apt/apt.conf.d",
    "/etc/pip.conf",
    "/etc/xdg/pip",
    "/etc/ssl/certs",
    "/etc/resolv.conf",
    "/root/.config/pip",
    "/root/.pip",
)


def lacking() -> list[str]:
    """Returns what this machine lacks for the run, each with how to supply it; empty: nothing."""
    found = []
    if os.geteuid() != 0:
        found.append("root: namespaces need it; run it as root, or in a container with all capabilities")
    programs = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "mmdebstrap": "mmdebstrap"}
    programs["systemd-nspawn"] = "systemd-container"
    for program, package in programs.items():
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            found.append(f"`{program}`: install the package {package}")
    if not Path("/dev/net/tun").exists():
        found.append("/dev/net/tun: load the module (modprobe tun), or give the container the device")
    if not list(_hierarchies()):
        found.append("a cgroup hierarchy that systemd can use: mount cgroup2 at /sys/fs/cgroup")
    return found


def in_namespaces(*words: str) -> tuple[str, ...]:
    """Returns the command under which all machines end with the process that made them, and mounts are its own."""
    return ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *words)


def _hierarchies() -> Iterator[Path]:
    """Yields where systemd's own groups can be made: of the old layout its own and the new one's, or the new one's."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(maxsplit=2)
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options):
            yield Path(before.split()[4])


def base() -> Path:
    """Returns the disk of a bare Debian 12, made once from the distribution's packages."""
    if not BASE.exists():
        draft = BASE.with_name("draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.parent.mkdir(parents=True, exist_ok=True)
        words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(draft)]
        subprocess.run(words, check=True, timeout=900)
        # systemd would hide what is shown below /tmp.
        (draft / "etc" / "systemd" / "system" / "tmp.mount").symlink_to("/dev/null")
        draft.rename(BASE)
    return BASE


@dataclass
class Machine:
    """A machine called `name` at `address`, whose disk is the folder `root`. `shown`: folders of ours, read-only."""

    name: str
    address: str
    root: Path
    hosts: str = ""
    shown: Sequence[Path] = ()
    init: int = 0  # its process 1, as it is called here
    _process: subprocess.Popen[bytes] | None = None

    @property
    def group(self) -> str:
        """Its group of processes, which no other run has."""
        return f"greenserve-{os.getpgrp()}-{self.name}"

    def boot(self) -> None:
        """Starts systemd on the disk that is there, or on a bare one."""
        if not self.root.exists():
            layers = {"lowerdir": base(), "upperdir": self._layer("written"), "workdir": self._layer("work")}
            self.root.mkdir()
            options = ",".join(f"{name}={folder}" for name, folder in layers.items())
            subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", self.root], check=True, timeout=30)
        (self.root / "etc" / "hosts").write_text(self.hosts)
        (self.root / "etc" / "hostname").write_text(f"{self.name}\n")
        groups = [folder / self.group for folder in _hierarchies()]
        script = [f"mkdir -p {group}; echo $$ > {group}/cgroup.procs" for group in groups]
        words = ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--private-network"]
        words += [f"--machine={self.name}", f"--directory={self.root}", "--link-journal=no"]
        words += [f"--bind-ro={folder}" for folder in self.shown]
        script.append(f"exec {' '.join(words)}")
        console = self.root.parent / f"{self.name}.console"
        with console.open("ab") as file:
            self._process = subprocess.Popen(
                ["sh", "-ec", "\n".join(script)], stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd="/"
            )
        self.init = wait_for(f"process 1 of {self.name}; see {console}", self._first, 30.0, every_s=0.05)
        wait_for(f"{self.name} to boot; see {console}", self._booted, BOOTS_WITHIN_S, every_s=0.2)

    def _layer(self, what: str) -> Path:
        """Returns a folder of its disk: what it has written lies on top of the bare one, which none can change."""
        folder = self.root.with_name(f"{self.name}.{what}")
        folder.mkdir(parents=True)
        return folder

    def _first(self) -> int:
        assert self._process is not None
        assert self._process.poll() is None, f"machine {self.name} did not start"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        with contextlib.suppress(OSError):  # there are others before it, which end soon
            return next((int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "systemd\n"), 0)
        return 0

    def _booted(self) -> bool:
        said = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return said in ("running", "degraded")

    @property
    def running(self) -> bool:
        return self._process is not None

    def off(self) -> None:
        """Cuts its power: all its processes end at once, its disk stays."""
        if self._process is not None:
            os.kill(self.init, 9)
            self._process.wait(30)
            self._process = None

    def _within(self, words: Sequence[str], network: bool = True) -> list[str]:
        spaces = [*SPACES, *(["--net"] if network else [])]
        return ["nsenter", "--target", str(self.init), *spaces, "--wdns=/root", *words]

    def _env(self, more: Mapping[str, str]) -> dict[str, str]:
        return {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **more}

    def run(
        self, *words: str, timeout_s: float = 120.0, check: bool = True, given: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program there. Raises AssertionError with what it wrote when it fails."""
        done = subprocess.run(
            self._within(words), env=self._env(more), input=given, text=True, capture_output=True, timeout=timeout_s
        )
        if check and done.returncode:
            said = done.stdout + done.stderr
            raise AssertionError(f"{self.name}: {' '.join(words)[:300]} ended {done.returncode}:\n{said[-6000:]}")
        return done

    def shell(self, script: str, timeout_s: float = 300.0, **more: str) -> str:
        """Runs a script of bash there, which ends at the first command that fails; returns all that it wrote."""
        return self.run("bash", "-c", f"exec 2>&1; set -euo pipefail\n{script}", timeout_s=timeout_s, **more).stdout

    def install(self, script: str, timeout_s: float = 1200.0, **more: str) -> str:
        """Runs a script that installs something, through this computer's network and with its settings for indexes.

        The settings are taken away again: the machine reaches its neighbours alone.
        """
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
        kept |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        with self._settings():
            done = subprocess.run(
                self._within(["bash", "-c", f"exec 2>&1; set -euo pipefail\n{script}"], network=False),
                env=self._env({**kept, "DEBIAN_FRONTEND": "noninteractive", **more}),
                stdin=subprocess.DEVNULL,
                text=True,
                capture_output=True,
                timeout=timeout_s,
            )
        if done.returncode:
            raise AssertionError(f"{self.name}: ended {done.returncode}:\n{script}\n{done.stdout[-6000:]}")
        return done.stdout

    @contextmanager
    def _settings(self) -> Iterator[None]:
        saved = self.root / "var" / "saved-settings"
        saved.mkdir()
        for path in map(Path, SETTINGS):
            there = self.root / path.relative_to("/")
            if path.exists():
                if there.exists():
                    shutil.move(there, saved / str(path).replace("/", "_"))
                there.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-aL", str(path), str(there)], check=True, timeout=60)
        try:
            yield
        finally:
            for path in map(Path, SETTINGS):
                there = self.root / path.relative_to("/")
                before = saved / str(path).replace("/", "_")
                if path.exists():
                    shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
                if before.exists():
                    shutil.move(before, there)
            saved.rmdir()


@dataclass
class Network:
    """The machines of a run, and the wire between them."""

    folder: Path
    machines: dict[str, Machine] = field(default_factory=dict)
    _wire: subprocess.Popen[str] | None = None

    def boot(
        self,
        names: Sequence[str],
        aliases: Mapping[str, Sequence[str]],
        shown: Mapping[str, Sequence[Path]],
        delay_ms: float = DELAY_MS,
        loss: float = LOSS,
    ) -> None:
        """Starts machines called so, 10.77.0.1 and on, with this delay each way and this share of packets lost.

        `aliases`: further names of a machine. `shown`: folders of ours that a machine has, read-only.
        """
        addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        lines = [f"{address} {' '.join([name, *aliases.get(name, ())])}" for name, address in addresses.items()]
        hosts = "\n".join(["127.0.0.1 localhost", "::1 localhost", *lines, ""])
        self.machines = {
            name: Machine(name, address, self.folder / name, hosts, shown.get(name, ()))
            for name, address in addresses.items()
        }
        for machine in self.machines.values():
            machine.boot()
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
        """Cuts the power of all, and removes their groups of processes."""
        for machine in self.machines.values():
            machine.off()
            subprocess.run(["umount", "--lazy", machine.root], check=False, timeout=30)
        if self._wire is not None:
            self._wire.kill()
            self._wire.wait(20)
        time.sleep(0.5)  # the kernel empties groups a moment later
        for folder in _hierarchies():
            for machine in self.machines.values():
                top = folder / machine.group
                for group in sorted([*top.rglob("*/"), top], key=lambda path: -len(path.parts)):
                    group.rmdir() if group.is_dir() else None
