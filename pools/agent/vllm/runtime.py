"""The engines of one node: `ports.InstanceRuntime` and `ports.EngineControl` over vLLM processes."""

from __future__ import annotations

import errno
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence

from core.ports import EngineLimits, InstanceSpec, InstanceStatus, PermanentError, RetryableError

from .engine import Engine
from .engine_access import OPEN, EngineAccess, EngineCertificate, new_key
from .engine_records import EngineRecord, Records
from .launch import VllmOptions, command
from .vllm_program import VllmProgram

logger = logging.getLogger(__name__)


class VllmRuntime:
    """Every method returns at once: what it asks for is done by the engine's own thread, and `list` tells of it.

    Made anew, it takes over the engines that the folder's records tell of and that still run. `gpus`: those that the
    node has now; None: not known.
    """

    def __init__(self, options: VllmOptions, gpus: Callable[[], Collection[str] | None]) -> None:
        """Raises PermanentError: the options cannot work on this machine."""
        if not os.access(options.program, os.X_OK):
            raise PermanentError(
                f"--vllm {options.program}: no such program; give the path of `vllm` where it is installed"
            )
        if options.plugin and len(os.fsencode(options.socket("x" * 36))) > 107:
            raise PermanentError(f"--engines {options.folder}: too long for sockets; give a shorter folder")
        self._certificate = (
            None
            if options.tls is None
            else EngineCertificate(options.tls, options.certificate, options.advertised(options.host))
        )
        self._options = options
        self._gpus = gpus
        self.program = VllmProgram(options)
        self._records = Records(options.folder / "engines")
        self._engines: dict[str, Engine] = {}
        self._lock = threading.Lock()
        for record in self._records.all():
            self._add(record)

    # -- InstanceRuntime ---------------------------------------------------------------------------

    def list(self) -> tuple[InstanceStatus, ...]:
        with self._lock:
            return tuple(engine.status() for engine in self._engines.values())

    def start(self, spec: InstanceSpec) -> None:
        with self._lock:
            known = self._engines.get(spec.uid)
        if known is not None and known.status().state != "failed":
            if known.status().state == "draining":
                raise RetryableError(f"instance {spec.uid} still ends")
            return
        self._must_fit(spec)
        port = self._free_port()
        command(spec, self._options, port)  # what cannot be run is refused here, for good
        tls = self._options.tls is not None
        self._add(EngineRecord(spec, 0, 0, "", port, time.time(), host=self._options.host, key=new_key(), tls=tls))
        logger.info("instance %s starts: %s on %s, port %d", spec.uid, spec.model, ", ".join(spec.gpu_uuids), port)

    def drain(self, uid: str) -> None:
        self._order(uid, Engine.drain)

    def stop(self, uid: str) -> None:
        self._order(uid, Engine.stop)

    # -- EngineControl -----------------------------------------------------------------------------

    def tune(self, uid: str, limits: EngineLimits) -> None:
        """Sets limits through the scheduler plug-in.

        Raises PermanentError without it: limits are those of the start.
        """
        engine = self._serving(uid)
        if not self._options.plugin:
            why = "vLLM's limits are fixed when it starts; --vllm-scheduler greenserve can change them live"
            engine.explain(why)
            raise PermanentError(why)
        engine.tune(limits)

    def sleep(self, uid: str, level: int = 1) -> None:
        engine = self._serving(uid)
        if not self._options.sleep:
            raise PermanentError("engines of this node cannot sleep; its agent needs --vllm-sleep")
        if level != 1:
            raise PermanentError("vLLM does not load weights again by itself: only level 1 can be woken")
        engine.sleep(level)

    def wake(self, uid: str) -> None:
        engine = self._serving(uid)
        self._must_have_room(engine.spec)
        engine.wake()

    def reshard(self, uid: str, gpu_uuids: Sequence[str]) -> None:
        """Raises PermanentError: vLLM's processes keep their GPUs."""
        raise PermanentError("vLLM stays on the GPUs that it was started with; it ends and starts on others")

    # ----------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Returns at which names and addresses engines are reached."""
        return self._options.names

    def access(self, uid: str) -> EngineAccess:
        """Returns how an engine is spoken to; of one that is not there, as one that asks for nothing."""
        with self._lock:
            engine = self._engines.get(uid)
        return OPEN if engine is None else engine.access

    def versions(self) -> tuple[str, ...]:
        """Returns the versions of the engines that are up."""
        with self._lock:
            return tuple(sorted({engine.version for engine in self._engines.values() if engine.version}))

    def _add(self, record: EngineRecord) -> None:
        engine = Engine(record, self._options, self._records, self.program, self._forget, self._certificate)
        with self._lock:
            self._engines[record.spec.uid] = engine
        engine.begin()

    def _forget(self, uid: str) -> None:
        with self._lock:
            self._engines.pop(uid, None)

    def _order(self, uid: str, order: Callable[[Engine], None]) -> None:
        """To one that is not there, nothing is to be done; one that has failed is taken off the list."""
        with self._lock:
            engine = self._engines.get(uid)
            if engine is None:
                return
            if engine.status().state == "failed":
                del self._engines[uid]
                return
        order(engine)

    def _serving(self, uid: str) -> Engine:
        with self._lock:
            engine = self._engines.get(uid)
        if engine is None:
            raise PermanentError(f"this node runs no instance {uid}")
        if engine.status().state not in ("ready", "sleeping") and not engine.resting:
            raise RetryableError(f"instance {uid} is {engine.status().state}")
        return engine

    def _must_fit(self, spec: InstanceSpec) -> None:
        if not spec.uid or not spec.gpu_uuids or spec.max_model_len < 1:
            raise PermanentError("an instance needs a uid, a GPU, and a max_model_len of at least 1")
        present = self._gpus()
        if present is None:
            raise RetryableError("the node's GPUs are not known yet")
        if unknown := [uuid for uuid in spec.gpu_uuids if uuid not in present]:
            raise PermanentError(f"this node has no GPU {', '.join(unknown)}")
        self._must_have_room(spec)

    def _must_have_room(self, spec: InstanceSpec) -> None:
        """Raises RetryableError where others have the GPUs of an engine that is to start or to wake."""
        there: dict[str, list[str]] = {uuid: [] for uuid in spec.gpu_uuids}
        for status in self.list():
            if status.uid in (spec.uid, spec.shadow_of) or status.state in ("failed", "sleeping"):
                continue  # a shadow beside the one that it replaces was planned with the memory of both
            for uuid in set(status.gpu_uuids) & there.keys():
                there[uuid].append(status.uid)
        for uuid, others in sorted(there.items()):
            if len(others) >= spec.gpu_slices:
                raise RetryableError(f"{uuid} is allocated to instance {', '.join(others)}")

    def _free_port(self) -> int:
        """Any of them: vLLM listens with SO_REUSEPORT, so two that another agent and this one start at the same moment
        would share the first, and each would get requests of the other.
        """
        with self._lock:
            taken = {engine.port for engine in self._engines.values()}
        first, last = self._options.ports
        for port in random.sample(range(first, last + 1), last - first + 1):
            if port not in taken and _can_listen(self._options.host, port):
                return port
        raise RetryableError(f"no port from {first} to {last} is free at {self._options.host}")


def _can_listen(host: str, port: int) -> bool:
    """Raises PermanentError: no process of this machine can listen at `host`."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
                raise PermanentError(
                    f"engines cannot listen at {host}: no address of this machine; see --engine-host"
                ) from error
            return False
    return True
