"""What a run of faults may do to its machine, in network and mount namespaces of its own: cut, fill, turn the clock.

Nothing of it is seen outside: the namespaces end with the run (`python -m tests.chaos` makes them).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
UNIFIED = (CGROUPS, CGROUPS / "unified")
OWN = Path("/mnt")  # in the run's mount namespace a disk of its own, with the wall clock's library
TABLE = "chaos"
GATEWAY = "pools.gateway"  # of the command line of gateways


def lacking() -> list[str]:
    """Returns what this machine lacks for the faults, each with how to supply it; empty: nothing."""
    found = []
    if os.geteuid() != 0:
        found.append("root: namespaces and tmpfs need it; run it as root, or in a container with CAP_SYS_ADMIN")
    for program, package in (("unshare", "util-linux"), ("nft", "nftables"), ("ip", "iproute2"), ("cc", "gcc")):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            found.append(f"`{program}`: install the package {package}")
    if not any((path / "cgroup.procs").exists() for path in UNIFIED):
        found.append("control groups of version 2: mount them at /sys/fs/cgroup (mount -t cgroup2 none /sys/fs/cgroup)")
    return found


def in_namespaces(*words: str) -> tuple[str, ...]:
    """Returns the command with network, mount and process namespaces of its own, which end with it and all in them."""
    spaces = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    return ("unshare", *spaces, "sh", "-c", '"$0" "$@"', *words)


def enter() -> None:
    """Prepares this process's namespaces: the loopback interface, control groups where nft looks, a table for cuts."""
    _run("ip", "link", "set", "lo", "up")
    if not (CGROUPS / "cgroup.procs").exists():
        _run("mount", "--bind", str(CGROUPS / "unified"), str(CGROUPS))
    _run("nft", "add", "table", "inet", TABLE)
    _run("nft", "add", "chain", "inet", TABLE, "out", "{ type filter hook output priority 0; policy accept; }")


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


# -- networks ------------------------------------------------------------------------------------------------------


def cut(pids: Iterable[int], ports: Sequence[int]) -> None:
    """Drops, without a word, what these processes and the listeners of these ports send each other, until `mend`.

    Connections from now on are known by the control group in which the processes are; those that there are, by their
    own ports.
    """
    group = CGROUPS / f"{TABLE}.{os.getpid()}"
    group.mkdir(exist_ok=True)
    wanted = "{ " + ", ".join(map(str, ports)) + " }"
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))
        for own in _local_ports(pid, set(ports)):
            _rule(f"tcp sport {own} tcp dport {wanted} drop")
            _rule(f"tcp sport {wanted} tcp dport {own} drop")
    _rule(f'socket cgroupv2 level 1 "{group.name}" tcp dport {wanted} drop')


def mend() -> None:
    """Ends all cuts."""
    _run("nft", "flush", "chain", "inet", TABLE, "out")
    group = CGROUPS / f"{TABLE}.{os.getpid()}"
    if group.exists():
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (CGROUPS / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):  # a process that ends is still in it
            group.rmdir()


def _rule(text: str) -> None:
    _run("nft", "add", "rule", "inet", TABLE, "out", *text.split())


def _local_ports(pid: int, peers: set[int]) -> Iterator[int]:
    """Yields the ports of a process's own connections to these ports."""
    mine = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                mine.add(os.readlink(descriptor))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (int(fields[n].rpartition(":")[2], 16) for n in (1, 2))
        if remote in peers and f"socket:[{fields[9]}]" in mine:
            yield local


def listening(pids: Iterable[int]) -> list[int]:
    """Returns the TCP ports on which these processes listen."""
    inodes = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            inodes[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(inodes.get(os.readlink(descriptor)))
    return sorted(port for port in found if port is not None)


# -- disks ---------------------------------------------------------------------------------------------------------


def small_disk(folder: Path, mib: int) -> None:
    """Puts a disk of its own, that holds `mib`, under a folder that is still empty."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "tmpfs", str(folder))


def take_away(folder: Path) -> None:
    """Takes a small disk off its folder, whoever still has a file of it open."""
    _run("umount", "--lazy", str(folder))


def fill(folder: Path) -> None:
    """Fills the disk of a folder to the last byte."""
    with (folder / ".ballast").open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
        for size in (2**20, 2**12, 1):
            with contextlib.suppress(OSError):
                while ballast.write(b"\0" * size):
                    pass


def free(folder: Path) -> None:
    (folder / ".ballast").unlink(missing_ok=True)


# -- clocks --------------------------------------------------------------------------------------------------------


def own_clock() -> None:
    """Gives every process that starts from now on, PostgreSQL's and Redis' too, a wall clock that `turn_clock` turns.

    libfaketime 0.9.10, which Debian has, breaks `time.sleep` of Python 3.11: it takes sleeps until a moment of the
    monotonic clock for sleeps by the wall clock. So a small library does it, named in an `/etc/ld.so.preload` that this
    mount namespace alone has.
    """
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(OWN))
    turn_clock(0)
    library, etc = OWN / "wall_clock.so", OWN / "etc"
    source = Path(__file__).with_name("wall_clock.c")
    names = (f'-DOFFSET_FILE="{OWN / "offset"}"', f'-DGATEWAY="{GATEWAY}"')
    _run("cc", "-shared", "-fPIC", "-O2", *names, "-o", str(library), str(source))
    _run("cp", "-a", "/etc", str(etc))
    (etc / "ld.so.preload").write_text(f"{library}\n")
    _run("mount", "--bind", str(etc), "/etc")


def turn_clock(by_s: int, of_gateways_s: int | None = None) -> None:
    """Sets the wall clock at once so far before (below 0) or after the right time; that of gateways, as of a host of
    their own, `of_gateways_s` from it."""
    descriptor = os.open(OWN / "offset", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, struct.pack("=qq", by_s, by_s if of_gateways_s is None else of_gateways_s), 0)
    finally:
        os.close(descriptor)
