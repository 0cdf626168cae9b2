"""Clocks through the node's actuator (`pools.actuator`), which alone may set them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from core.ports import PermanentError, RetryableError
from pools.actuator.actuator_protocol import MESSAGE_BYTES, ActuatorAnswer, Lock, Request, Reset, Status

TIMEOUT_S = 1.0


class SocketFrequencyActuator:
    """`ports.FrequencyActuator`. Not thread-safe. Leases last as long as its connection, so it keeps one.

    The agent renews each second.
    """

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def lock(self, gpu_uuids: Sequence[str], mhz: float, lease_s: float) -> None:
        self._do(Lock(list(gpu_uuids), mhz, lease_s))

    def reset(self, gpu_uuids: Sequence[str]) -> None:
        self._do(Reset(list(gpu_uuids)))

    def refusal(self) -> str:
        """Returns why no clock can be set on this node, in words; empty: the actuator knows of no reason."""
        try:
            return self._call(Status()).refusal
        except (PermanentError, RetryableError) as error:
            return str(error)

    def close(self) -> None:
        """Gives all clocks back: the leases end with the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _do(self, request: Request) -> None:
        answer = self._call(request)
        if answer.error:
            raise PermanentError(answer.error) if answer.permanent else RetryableError(answer.error)

    def _call(self, request: Request) -> ActuatorAnswer:
        kept = self._socket is not None
        try:
            return self._exchange(request)
        except OSError as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise RetryableError(f"the clock actuator did not answer within {self._timeout_s:g} s") from error
            if not kept:
                raise self._absent(error) from error
        try:  # the actuator was started again meanwhile; what is asked of it may be asked twice
            return self._exchange(request)
        except OSError as error:
            self.close()
            raise self._absent(error) from error

    def _exchange(self, request: Request) -> ActuatorAnswer:
        if self._socket is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(self._timeout_s)
            try:
                connection.connect(str(self._path))
            except OSError:
                connection.close()
                raise
            self._socket = connection
        with suppress(BrokenPipeError):  # a refusal's reason comes before the connection is closed
            self._socket.send(msgspec.json.encode(request))
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except ConnectionResetError:  # it is reported once, ahead of what was sent before
            data = self._socket.recv(MESSAGE_BYTES)
        if not data:
            raise ConnectionResetError("it closed the connection")
        try:
            return msgspec.json.decode(data, type=ActuatorAnswer)
        except msgspec.DecodeError as error:
            raise ConnectionError(f"it gave an answer that cannot be read: {error}") from error

    def _absent(self, error: OSError) -> RetryableError:
        return RetryableError(f"no clock actuator at {self._path}: {error.strerror or error}")
