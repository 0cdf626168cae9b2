"""Machines of a run: bare Debian, each with a file system and namespaces of its own.

They share the kernel and the network between them, and nothing else. Nothing is seen outside: the run itself is in
namespaces (`python -m tests.netns`).
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

DELAY_MS, LOSS = 4.0, 0.002
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates,iproute2,procps,openssl,curl"
BASE = ROOT / "build" / "netns" / "debian-12.tar"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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
        found.append("root: namespaces need it; run it as root, or in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN")
    programs = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "mmdebstrap": "mmdebstrap"}
    for program, package in programs.items():
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            found.append(f"`{program}`: install the package {package}")
    if not Path("/dev/net/tun").exists():
        found.append("/dev/net/tun: load the module (modprobe tun), or give the container the device")
    return found


def base() -> Path:
    """Returns the archive of a bare Debian 12, made once from the distribution's packages."""
    if not BASE.exists():
        BASE.parent.mkdir(parents=True, exist_ok=True)
        draft = BASE.with_name("draft.tar")
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(draft)],
            check=True,
            timeout=900,
        )
        draft.rename(BASE)
    return BASE


@dataclass
class Machine:
    """A machine called `name` at `address`, whose file system is `root`."""

    name: str
    address: str
    root: Path
    process: subprocess.Popen[bytes] | None = None
    init: int = 0  # process 1 of the machine, as it is called here

    def boot(self, hosts: str) -> None:
        """Starts it without processes, on the file system that is there or on a bare one; `hosts` is its /etc/hosts."""
        if not self.root.exists():
            self.root.mkdir(parents=True)
            subprocess.run(["tar", "-xf", str(base()), "-C", str(self.root)], check=True, timeout=300)
        (self.root / "etc" / "hosts").write_text(hosts)
        (self.root / "etc" / "hostname").write_text(f"{self.name}\n")
        script = [f"cd {self.root}", "mount -t proc proc proc", "mount --rbind /sys sys", "mount --rbind /dev dev"]
        script += ["mount -t tmpfs -o mode=1777 tmpfs tmp", "mount -t tmpfs tmpfs run", "mkdir -p run/lock"]
        script += [f"hostname {self.name}", "echo up", "exec chroot . sleep infinity"]
        spaces = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
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
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--root", *(["--net"] if network else [])]
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
            raise AssertionError(f"{self.name}: {' '.join(words)} ended {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def start(self, *words: str, log: str, **more: str) -> subprocess.Popen[bytes]:
        """Starts a program there that goes on; it writes to /var/log/`log`."""
        with (self.root / "var" / "log" / log).open("ab") as file:
            return subprocess.Popen(
                self._within(words), env=self._env(more), stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def install(self, *words: str, timeout_s: float = 900.0) -> None:
        """Runs an installer there, through this computer's network and with its settings: the index is there.

        The settings are taken away again.
        """
        saved = self.root / "var" / "saved-settings"
        saved.mkdir()
        for path in map(Path, SETTINGS):
            there = self.root / path.relative_to("/")
            if path.exists():
                if there.exists():
                    there.rename(saved / str(path).replace("/", "_"))
                there.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-aL", str(path), str(there)], check=True, timeout=60)
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
        kept |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        try:
            done = subprocess.run(
                self._within(words, network=False),
                env=self._env({**kept, "DEBIAN_FRONTEND": "noninteractive"}),
                text=True,
                capture_output=True,
                timeout=timeout_s,
            )
            if done.returncode:
                raise AssertionError(f"{self.name}: {' '.join(words)}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        finally:
            for path in map(Path, SETTINGS):
                there = self.root / path.relative_to("/")
                before = saved / str(path).replace("/", "_")
                if path.exists():
                    shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
                if before.exists():
                    before.rename(there)
            saved.rmdir()


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
