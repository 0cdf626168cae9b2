"""The socket through which a running engine's scheduler is asked and set: JSON lines over a unix socket.

    {"op": "get"}                      -> {"ok": true, "vllm": "0.32.0", "settings": {...}, "most": {...}}
    {"op": "set", "order": "llf", ...} -> the same, as it will be from the next step on
    {"op": "stats"}                    -> {"ok": true, "stats": {...}}
    anything else                      -> {"ok": false, "error": "..."}

A thread of its own serves it, one client at a time and none for longer than two seconds. It shares nothing with the
engine but two references: the settings, replaced whole, which the engine looks at when it begins a step, and the
figures, which the engine replaces. So no client, however slow or mistaken, can hold a step up. Only its own user may
connect.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import threading
import time
from typing import Any

from . import SUPPORTED_VLLM
from .scheduler_settings import Most, Settings, changed

log = logging.getLogger(__name__)

CLIENT_S = 2.0
PAUSE_S = 0.5  # after a failure to accept
LONGEST_LINE = 65_536
LONGEST_PATH = 107  # bytes of a unix socket's address in Linux


class SchedulerControl:
    """The state that the socket's thread and the engine share."""

    def __init__(self, settings: Settings, most: Most) -> None:
        self.settings = settings
        self.most = most
        self.stats: dict[str, Any] = {}

    def answer(self, line: bytes) -> dict[str, Any]:
        """Answers a message; never raises on what was sent."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            return _refused(f"the message is no JSON: {error}")
        if not isinstance(message, dict):
            return _refused("the message is no JSON object")
        op = message.pop("op", None)
        if op == "stats":
            return {"ok": True, "stats": self.stats}
        if op == "set":
            try:
                self.settings = changed(self.settings, message, self.most)
            except ValueError as error:
                return _refused(str(error))
        elif op != "get":
            return _refused(f"op is one of get, set, stats, not {op!r}")
        most = {name: getattr(self.most, name) for name in ("max_num_batched_tokens", "max_num_seqs")}
        return {"ok": True, "vllm": SUPPORTED_VLLM, "settings": self.settings.to_json(), "most": most}


def _refused(why: str) -> dict[str, Any]:
    return {"ok": False, "error": why}


class ControlSocket:
    """Listens from its making until `close`."""

    def __init__(self, path: str, control: SchedulerControl) -> None:
        """Raises ValueError where the path cannot be an address, OSError where it cannot be listened at."""
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise ValueError(f"the socket's path has more than {LONGEST_PATH} bytes, use a shorter folder: {path}")
        self._path, self._control = path, control
        self._closing = threading.Event()
        _clear(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(self._socket.fileno(), 0o600)  # of the file that bind makes: there is no moment when others may
            self._socket.bind(path)
            os.chmod(path, 0o600)
            self._socket.listen(8)
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="greenserve-scheduler-socket", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the thread's wait for clients
        self._thread.join(timeout=CLIENT_S + PAUSE_S)
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._socket.accept()
            except OSError as error:
                if not self._closing.wait(PAUSE_S):  # out of file descriptors, say: it may pass
                    log.warning("the scheduler's socket cannot accept: %s", error)
                continue
            with client:
                try:
                    self._talk(client)
                except OSError as error:
                    log.info("a client of the scheduler's socket has gone: %s", error)
                except Exception:
                    log.exception("a client of the scheduler's socket could not be answered")

    def _talk(self, client: socket.socket) -> None:
        until_s = time.monotonic() + CLIENT_S
        data = b""
        while not self._closing.is_set() and (left_s := until_s - time.monotonic()) > 0.0:
            client.settimeout(left_s)
            received = client.recv(4096)
            if not received:
                return
            *lines, data = (data + received).split(b"\n")
            for line in lines:
                client.settimeout(max(0.001, until_s - time.monotonic()))
                client.sendall(json.dumps(self._control.answer(line)).encode() + b"\n")
            if len(data) > LONGEST_LINE:
                client.sendall(json.dumps(_refused(f"a message has at most {LONGEST_LINE} bytes")).encode() + b"\n")
                return


def _clear(path: str) -> None:
    """Removes what an engine that was killed has left. Raises OSError where another one listens, or it is no socket."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is no socket: remove it, or name another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CLIENT_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        else:
            raise FileExistsError(f"another engine listens at {path}: give each instance a folder of its own")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
