"""How long it takes until a standby sends tasks in place of a leader that is gone: `python -m benchmarks.takeover`.

Two real `celery beat` processes of two control planes, on servers of their own. The leader is killed, or stopped in the
middle of what it does: its connections stay and nothing more comes over them, as when its machine is cut off. The time
runs until the other's first task lies in the queue.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from greenserve.process import leash
from tests import servers

QUEUE = "epochs"
POLL_S = 0.02
LONGEST_S = 60.0
WAYS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="of each way to go")
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory(prefix="greenserve-takeover-") as folder:
        var_dir = Path(folder)
        try:
            with servers.running(var_dir) as urls, redis.Redis.from_url(urls[1], socket_timeout=5) as client:
                measure(var_dir, urls, client, times)
        finally:
            servers.remove(var_dir)


def measure(var_dir: Path, urls: tuple[str, str], client: redis.Redis, times: int) -> None:
    beats = {name: beat(name, var_dir, urls) for name in ("a", "b")}
    try:
        for way, number in WAYS.items():
            found = []
            for _ in range(times):
                leader = first_sender(client, beats)
                time.sleep(3.0)  # the other stands by
                (other,) = beats.keys() - {leader}
                client.delete(QUEUE)
                began_s = time.monotonic()
                os.kill(beats[leader].pid, number)
                first_sender(client, {other: beats[other]})
                found.append(time.monotonic() - began_s)
                beats[leader].kill()
                beats[leader].wait()
                beats[leader] = beat(leader, var_dir, urls)
                time.sleep(8.0)  # it has started
                client.delete(QUEUE)
            words = ", ".join(f"{one:.1f}" for one in found)
            print(f"leader {way}: {words} s; median {statistics.median(found):.1f}, longest {max(found):.1f} s")
    finally:
        for process in beats.values():
            process.kill()
            process.wait()


def beat(name: str, var_dir: Path, urls: tuple[str, str]) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "GREENSERVE_VAR": str(var_dir),
        "GREENSERVE_DEMO": "0",
        "GREENSERVE_PLANE": name,
        "GREENSERVE_SECRET_KEY": "of-both-control-planes",
        "DATABASE_URL": urls[0],
        "REDIS_URL": urls[1],
    }
    with (var_dir / f"{name}.log").open("ab") as log:
        words = [sys.executable, "-m", "celery", "-A", "greenserve", "beat", "--pidfile", ""]
        return subprocess.Popen(words, env=environment, stdout=log, stderr=log, preexec_fn=leash())


def first_sender(client: redis.Redis, beats: dict[str, subprocess.Popen[bytes]]) -> str:
    """Waits for a task of one of these, and returns whose it is."""
    pids = {str(process.pid): name for name, process in beats.items()}
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        texts: Any = client.lrange(QUEUE, 0, -1)
        for text in texts:
            origin = json.loads(text)["headers"]["origin"]  # gen<pid>@<host>
            if name := pids.get(origin.removeprefix("gen").split("@")[0]):
                return name
        time.sleep(POLL_S)
    raise SystemExit(f"nobody has sent anything for {LONGEST_S:g} s")


if __name__ == "__main__":
    main()
