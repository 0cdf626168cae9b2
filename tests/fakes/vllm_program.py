"""A program that takes vLLM's command line and answers as it does, within a tenth of a second.

`program(folder)` makes it; what it does follows from the weights it is given: `fake/crash` ends with an error,
`fake/mute` never comes up, `fake/stubborn` does not heed SIGTERM, `fake/embeds` embeds and
generates nothing. `POST /crash` ends any of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

TOKEN_S = 0.002


def program(folder: Path, version: str = "0.32.0", help_text: str = "") -> Path:
    """An executable in the folder, as `vllm` of a virtual environment is. `help_text`: what `serve --help=all` prints.

    Without one it knows no `--help=all`.
    """
    path = folder / "vllm"
    page = folder / "help.txt"
    page.write_text(help_text)
    asked = f'if [ "$1" = --version ]; then echo "INFO it begins"; echo {version}; exit; fi\n'
    asked += f'if [ "$2" = --help=all ]; then [ -s {page} ] && exec cat {page}; echo "no such topic" >&2; exit 2; fi\n'
    asked += 'if [ "$2" = --help ]; then echo "usage: vllm serve [--host HOST]"; exit; fi\n'
    path.write_text(f'#!/bin/sh\n{asked}exec {sys.executable} -I -S {Path(__file__)} "$@"\n')
    path.chmod(0o755)
    return path


class _Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    running: ClassVar[int] = 0
    sleeping: ClassVar[bool] = False
    served: ClassVar[str] = ""
    embeds: ClassVar[bool] = False
    adapters: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        if self.path == "/version":
            self._answer({"version": "9.9.9"})
        elif self.path == "/is_sleeping":
            self._answer({"is_sleeping": _Engine.sleeping})
        elif self.path == "/environment":
            self._answer(dict(os.environ))
        elif self.path == "/arguments":
            self._answer(sys.argv[1:])
        elif self.path == "/openapi.json" and "--disable-fastapi-docs" in sys.argv:
            self._send(404, b"{}")
        elif self.path == "/openapi.json":
            paths = ["/v1/embeddings", "/score"] if _Engine.embeds else ["/v1/completions", "/v1/chat/completions"]
            self._answer({"openapi": "3.1.0", "paths": {path: {} for path in ["/health", *paths]}})
        elif self.path == "/v1/models":
            loaded = [{"id": name, "parent": _Engine.served} for name in sorted(_Engine.adapters)]
            self._answer({"object": "list", "data": [{"id": _Engine.served, "parent": None}, *loaded]})
        elif self.path == "/metrics":
            page = f"vllm:num_requests_running {_Engine.running}\nvllm:num_requests_waiting 0\n"
            self._send(200, page.encode())
        else:
            self._send(200, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        if path == "/crash":
            sys.stderr.write("RuntimeError: the engine core has died\n")
            sys.stderr.flush()
            os._exit(1)
        if path in ("/sleep", "/wake_up"):
            _Engine.sleeping = path == "/sleep"
            self._send(200, b"{}")
            return
        key = os.environ.get("VLLM_API_KEY")
        if key and path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {key}":
            self._send(401, b'{"error": "Unauthorized"}')
            return
        asked = json.loads(body)
        if path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            (_Engine.adapters.add if "/load" in path else _Engine.adapters.discard)(asked["lora_name"])
            self._send(200, b"Success")
            return
        if asked["model"] != _Engine.served or self.headers.get("Content-Type") != "application/json":
            self._send(404, b"{}")
            return
        if _Engine.embeds:
            found = {"data": [{"embedding": [0.5]}]} if path == "/v1/embeddings" else {}
            self._send(200 if found else 404, json.dumps(found).encode())
            return
        with _Engine.lock:
            _Engine.running += 1
        time.sleep(TOKEN_S * asked["max_tokens"])
        with _Engine.lock:
            _Engine.running -= 1
        self._answer({"usage": {"completion_tokens": asked["max_tokens"]}})

    def log_message(self, format: str, *args: object) -> None:
        sys.stdout.write(format % args + "\n")
        sys.stdout.flush()

    def _answer(self, found: object) -> None:
        self._send(200, json.dumps(found).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        self.socket.bind(self.server_address)  # without asking for the host's name
        self.server_name, self.server_port = self.server_address[:2]


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("weights")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    parser.add_argument("--ssl-certfile")
    parser.add_argument("--ssl-keyfile")
    known, _ = parser.parse_known_args()
    if known.weights == "fake/crash":
        sys.stderr.write("INFO it begins\nValueError: no room for the KV cache\n")
        sys.exit(3)
    if known.weights == "fake/stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = subprocess.Popen(["sleep", "600"])  # engines have workers, which must not outlive them
    if known.weights != "fake/stubborn":
        signal.signal(signal.SIGTERM, lambda *_: (worker.kill(), os._exit(0)))
    if known.weights == "fake/mute":
        time.sleep(600)
    _Engine.embeds = known.weights == "fake/embeds"
    _Engine.served = known.served_model_name
    _Server.address_family = socket.AF_INET6 if ":" in known.host else socket.AF_INET
    server = _Server((known.host, known.port), _Engine)
    if known.ssl_certfile:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(known.ssl_certfile, known.ssl_keyfile)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    _main()
