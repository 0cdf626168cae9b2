"""One engine's life, in a thread of its own: it starts, answers, serves, drains, ends. Nobody waits for it."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from core.ports import AdapterError, EngineLimits, InstanceStatus
from pools.own_address import here, in_url

from .engine_access import EngineAccess, EngineCertificate
from .engine_processes import EngineProcess, boot_id, last_lines, rotate
from .engine_records import EngineRecord, Records
from .launch import VllmOptions, command, environment, started_with
from .probe import Probe
from .vllm_control import VllmScheduler
from .vllm_program import VllmProgram
from .weights import weights_are_here

logger = logging.getLogger(__name__)

_HEALTH_S = 10.0
_HANGS_AFTER_S = 60.0
_HOUSEKEEPING_S = 60.0
_DETAIL_LONGEST = 280  # characters of an instance's detail


class _End(Exception):
    """The engine is to end now, by order."""


class _Failed(Exception):
    """The engine ended by itself, or never came up."""


class Engine:
    """States as `ports.InstanceStatus` has them; `gone` is called once, by the engine's thread, when it has ended.

    Orders are noted at once and carried out by the thread. `record` names a process that already runs, or is to.
    """

    def __init__(
        self,
        record: EngineRecord,
        options: VllmOptions,
        records: Records,
        program: VllmProgram,
        gone: Callable[[str], None],
        certificate: EngineCertificate | None = None,
    ) -> None:
        """Begins nothing yet. `certificate`: what engines with TLS show; None: there are none."""
        self._certificate = certificate
        self.spec = record.spec
        self._options = options
        self._records = records
        self._program = program
        self._recorded = True  # the disk has taken the newest record
        self._gone = gone
        self._record = record
        self._url = f"{'https' if record.tls else 'http'}://{in_url(here(record.host))}:{record.port}"
        self.access = EngineAccess(record.key, certificate.trust if certificate and record.tls else None)
        self._probe = Probe(self._url, self.spec.model, self.spec.max_model_len, self.access)
        self._orders: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._leaving = record.state == "draining"
        self._stopping = False
        self._resting = 0  # orders to sleep or wake that are not carried out yet
        self._process: EngineProcess | None = None
        self._status = InstanceStatus(
            uid=self.spec.uid,
            state="starting",
            url=None,
            gpu_uuids=self.spec.gpu_uuids,
            started_at_s=record.started_at_s,
            limits=started_with(self.spec, options),
            shadow_of=self.spec.shadow_of,
            laxity=options.plugin,
            kv_connector=options.kv_connector,
            start=record.start,
            advertised=f"{'https' if record.tls else 'http'}://{in_url(options.advertised(record.host))}:{record.port}",
            key=record.key,
            kv_address=options.kv_address(record.host, record.port),
        )
        self._thread = threading.Thread(target=self._run, name=f"engine {self.spec.uid[:8]}", daemon=True)

    # -- for any thread ----------------------------------------------------------------------------

    @property
    def port(self) -> int:
        return self._record.port

    @property
    def version(self) -> str:
        return self._record.version

    def status(self) -> InstanceStatus:
        return self._status

    def begin(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        self._orders.put(("drain", 0))

    def stop(self) -> None:
        self._stopping = True
        self._orders.put(("stop", 0))

    @property
    def resting(self) -> bool:
        """Whether it falls asleep or wakes just now: it is so from the order to its end."""
        return self._resting > 0

    def sleep(self, level: int) -> None:
        self._resting += 1
        self._orders.put(("sleep", level))

    def wake(self) -> None:
        self._resting += 1
        self._orders.put(("wake", 0))

    def tune(self, limits: EngineLimits) -> None:
        """Sets the limits at once, in the caller's thread. Raises AdapterError.

        None goes above what the engine was started with: the status says what is in force, and the detail why.
        """
        found = VllmScheduler(self._options.socket(self.spec.uid)).tune(limits)
        most = f"{found.max_num_batched_tokens} tokens, {found.max_num_seqs} sequences"
        limited = "" if found == limits else f"limits stay within those of its start: {most}"
        self._status = replace(self._status, limits=found, detail=limited)

    def explain(self, detail: str) -> None:
        """Says with its status why it does not work as was asked."""
        self._status = replace(self._status, detail=detail)

    # -- its own thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._live()
        except _End:
            self._end()
        except _Failed as error:
            self._fail(str(error))
            return
        except Exception as error:  # ours, but the operator has to know
            logger.exception("instance %s is given up", self.spec.uid)
            self._fail(f"the agent gave it up: {error!r}")
            return
        self._records.forget(self.spec.uid)
        self._gone(self.spec.uid)

    def _live(self) -> None:
        self._process = self._find() if self._record.pid else self._start()
        self._become_ready()
        while not self._leaving:
            self._serve()
        self._drain()

    def _find(self) -> EngineProcess:
        """Returns a process that a former agent started."""
        record = self._record
        found = EngineProcess.known_again(record.pid, record.began_ticks) if record.boot_id == boot_id() else None
        if found is None:
            if record.boot_id == boot_id():
                EngineProcess(record.pid, record.began_ticks).kill()  # its workers may have outlived it
            raise _Failed(f"it ended while no agent ran: {self._last_words()}")
        logger.info("instance %s still runs as process %d: it is taken over", self.spec.uid, record.pid)
        return found

    def _start(self) -> EngineProcess:
        self._must_be_able_to_serve()
        options, log = self._options, self._options.log(self.spec.uid)
        for folder in (options.folder / "weights", options.socket(self.spec.uid).parent):
            folder.mkdir(parents=True, exist_ok=True)
        words = command(self.spec, options, self._record.port)
        own = environment(self.spec, options, os.environ, self._record.key)
        start = "warm" if weights_are_here(self.spec.launch, own) else "cold"
        self._status = replace(self._status, start=start)
        try:
            process = EngineProcess.start(words, own, options.folder, log)
        except OSError as error:
            raise _Failed(f"{options.program} cannot be run: {error}") from error
        self._note(pid=process.pid, began_ticks=process.began, boot_id=boot_id(), start=start)
        return process

    def _must_be_able_to_serve(self) -> None:
        while (program := self._program.found()) is None:
            self._show("starting", "vLLM is asked for its version and options")
            self._look_for_orders(self._options.look_s)
        self._show("starting")
        if program.fault:
            raise _Failed(program.fault)

    def _become_ready(self) -> None:
        began_s, taken_over = time.monotonic(), self._record.state != "starting"
        while not self._probe.healthy():
            self._look_for_orders(self._options.look_s)
            self._must_live()
            if time.monotonic() - began_s > self._options.start_within_s:
                raise _Failed(f"it was not up within {self._options.start_within_s:g} s: {self._last_words()}")
        try:
            self._note(version=self._probe.version())
            paths = self._probe.paths()
            self._status = replace(self._status, paths=paths, adapters=self._probe.adapters())
            if taken_over and self._options.sleep and self._probe.asleep():
                self._show("sleeping")
                return
            self._show("starting", "answers its first request")
            self._probe.answer(paths)
            if not taken_over:
                self._probe.warm_up(paths)
        except AdapterError as error:
            self._must_live()
            raise _Failed(f"it came up and does not answer: {error}") from error
        took_s = time.time() - self._record.started_at_s
        logger.info("instance %s is ready at %s, after %.1f s", self.spec.uid, self._url, took_s)
        self._show("ready")

    def _serve(self) -> None:
        """Looks after the engine until something is to be done."""
        answered_s = looked_s = housekept_s = time.monotonic()
        while not self._leaving:
            self._look_for_orders(self._options.watch_s)
            self._must_live()
            now_s = time.monotonic()
            if now_s - housekept_s > _HOUSEKEEPING_S:
                housekept_s = now_s
                rotate(self._options.log(self.spec.uid))
                self._renew_certificate()
                if not self._recorded:
                    self._keep_record()
            if now_s - looked_s < _HEALTH_S:
                continue
            looked_s = now_s
            if self._probe.healthy():
                answered_s = time.monotonic()
                self._look_for_adapters()
            elif now_s - answered_s > _HANGS_AFTER_S:
                raise _Failed(f"it has not answered for {now_s - answered_s:.0f} s: {self._last_words()}")

    def _look_for_adapters(self) -> None:
        """An operator may have loaded some. An engine that does not say has those that it had."""
        try:
            self._status = replace(self._status, adapters=self._probe.adapters())
        except AdapterError as error:
            logger.warning("instance %s does not say which adapters it has: %s", self.spec.uid, error)

    def _renew_certificate(self) -> None:
        """Without another one engines go on with theirs; the next look tries again."""
        if self._certificate is not None:
            try:
                self._certificate.renew()
            except (AdapterError, OSError) as error:
                logger.error("engines do not get the node's certificate: %s", error)

    def _drain(self) -> None:
        """Waits for the last request: gateways send none any more, since they heard of it before the order came."""
        self._show("draining")
        deadline_s, idle = time.monotonic() + self._options.drain_within_s, 0
        while idle < 2:  # a request that was on its way is seen by the second look
            if time.monotonic() > deadline_s:
                logger.warning(
                    "instance %s is cut off, %g s after it was to end", self.spec.uid, self._options.drain_within_s
                )
                break
            self._look_for_orders(self._options.look_s)
            if self._process is None or not self._process.alive:
                break
            try:
                left = self._probe.left()
            except AdapterError as error:
                logger.info("instance %s drains and does not say how much is left: %s", self.spec.uid, error)
                continue
            idle = 0 if left else idle + 1
            self._show("draining", f"requests left: {left}" if left else "")
        raise _End

    def _look_for_orders(self, wait_s: float) -> None:
        """Carries out the next one, if one comes in time. Raises _End."""
        try:
            order, level = self._orders.get(timeout=wait_s)
        except queue.Empty:
            return
        if order == "stop" or (order == "drain" and self._status.state in ("starting", "sleeping")):
            raise _End
        if order == "drain":
            self._leaving = True
            self._note(state="draining")
        else:
            if self._status.state in ("ready", "sleeping"):
                self._rest(order == "sleep", level)
            self._resting -= 1

    def _rest(self, to_sleep: bool, level: int) -> None:
        if to_sleep == (self._status.state == "sleeping"):
            return
        self._status = replace(self._status, state="starting", detail="falls asleep" if to_sleep else "wakes")
        try:
            if to_sleep:
                self._probe.sleep(level)
            else:
                self._probe.wake()
                self._probe.answer(self._status.paths)
        except AdapterError as error:
            raise _Failed(f"it does not {'fall asleep' if to_sleep else 'wake'}: {error}") from error
        self._show("sleeping" if to_sleep else "ready")

    # -- endings -----------------------------------------------------------------------------------

    def _must_live(self) -> None:
        assert self._process is not None
        if not self._process.alive:
            code = self._process.exit_code()
            how = "it has ended" if code is None else f"it ended with {code}"
            raise _Failed(f"{how}: {self._last_words()}")

    def _end(self) -> None:
        """Ends the process in order where it can, by force where it must."""
        self._status = replace(
            self._status, state="draining", url=None, detail="ends"
        )  # nothing is to be read any more
        if (process := self._process) is None:
            return
        process.ask_to_end()
        deadline_s = time.monotonic() + self._options.stop_within_s
        while process.alive and time.monotonic() < deadline_s:
            time.sleep(0.05)
        if process.alive:
            logger.warning("instance %s did not end within %g s", self.spec.uid, self._options.stop_within_s)
        process.kill()

    def _fail(self, why: str) -> None:
        """It stays in the list, with what it said last, until it is stopped."""
        logger.warning("instance %s failed: %s", self.spec.uid, why)
        if self._process is not None:
            self._process.kill()
        self._records.forget(self.spec.uid)
        self._status = replace(self._status, state="failed", url=None, detail=why[:_DETAIL_LONGEST])
        if self._stopping:
            self._gone(self.spec.uid)

    def _last_words(self) -> str:
        return last_lines(self._options.log(self.spec.uid)) or "it said nothing"

    def _show(self, state: str, detail: str = "") -> None:
        url = None if state == "starting" else self._url
        self._status = replace(self._status, state=state, url=url, detail=detail)
        if state != self._record.state:
            self._note(state=state)

    def _note(self, **changes: object) -> None:
        values = {name: getattr(self._record, name) for name in self._record.__struct_fields__}
        self._record = EngineRecord(**{**values, **changes})
        self._keep_record()

    def _keep_record(self) -> None:
        """Writes the record; a disk that takes nothing does not end an engine that serves. It is tried again later."""
        try:
            self._records.write(self._record)
        except OSError as error:
            if self._recorded:
                logger.error("instance %s: an agent that starts anew would not know it: %s", self.spec.uid, error)
            self._recorded = False
        else:
            self._recorded = True
