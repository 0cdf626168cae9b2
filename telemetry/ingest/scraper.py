"""Measures engines that registered themselves, for which no agent speaks: a thread of the ingester's process.

Each second it reads the `/metrics` of those that are registered, and that are where workers may be. What it finds goes
the way of an agent's: to gateways as a state in Redis, to samples as a batch in the ingester's own stream. Rows of
`Instance` without a node stand for them, while their lease lasts. Their energy is not known: nobody meters it.

An engine that does not answer is asked again after 1, 2, 4 ... 30 s, and never twice at a time.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import msgspec
import redis
from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone
from msgspec.structs import replace

from core.engine import gpu_types
from core.ports import EngineReading, PermanentError, RetryableError
from pools import database_locks, wire
from pools.agent.vllm.engine_access import EngineAccess
from pools.agent.vllm.vllm_metrics import VllmMetrics
from pools.database_locks import Lock
from pools.engine_trust import trust_in
from pools.models import Instance, ModelCard, Pool
from pools.registration.registered_engines import instance_of
from pools.registration.worker_hosts import WorkerHosts

log = logging.getLogger(__name__)

PERIOD_S = 1.0
KEPT_S = 10  # how long Redis keeps what gateways read
AT_ONCE = 16  # engines asked at a time
TIMEOUT_S = 2.0  # they may be far; one that trickles is given up, too
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
_AGENT = "registered"  # of batches; numbered apart from all nodes by the boot


@dataclass(slots=True)
class _Engine:
    """A registered engine. `failures`: readings in a row that failed. `given_up`: it is asked, and late with it."""

    instance: wire.InstanceState
    metrics: VllmMetrics
    asked: Future[EngineReading] | None = None
    asked_s: float = 0.0
    given_up: bool = False
    failures: int = 0
    due_s: float = 0.0
    row: wire.InstanceSampleRow | None = None  # of the reading of this round

    def ask(self) -> EngineReading:
        assert self.instance.url is not None
        return self.metrics.scrape(self.instance.uid, self.instance.url)

    def close(self) -> None:
        """Closes the connection at once, or when its thread is done with it."""
        if self.asked is None:
            self.metrics.close()
        else:
            self.asked.add_done_callback(lambda _: self.metrics.close())


def metrics_with(authority: Path | None, key_file: Path | None) -> Callable[[], VllmMetrics]:
    """Returns what makes readers of engines: they show certificates by `authority` (None: whom the system trusts), and
    ask for the key in a file (None: for none). Raises ValueError and OSError, which name the file.
    """
    key = "" if key_file is None else key_file.read_text().strip()
    access = EngineAccess(key, None if authority is None else trust_in(authority))
    return lambda: VllmMetrics(timeout_s=TIMEOUT_S, access=lambda uid: access)


@dataclass(slots=True)
class RegisteredEngines:
    """Call `round` about once a second, from one thread."""

    client: redis.Redis
    hosts: WorkerHosts
    metrics: Callable[[], VllmMetrics] = lambda: VllmMetrics(timeout_s=TIMEOUT_S)
    _engines: dict[str, _Engine] = field(default_factory=dict)
    _boot: str = field(default_factory=lambda: secrets.token_hex(8))
    _seq: int = 0
    _full: bool = False  # there was no room for the last batch
    _swept: bool = False  # of what an earlier process left
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(AT_ONCE, thread_name_prefix="registered")
    )

    def run(self, stop: Event) -> None:
        """Reads engines until `stop` is set. PostgreSQL or Redis being away only delays; faults are logged."""
        failing = False
        while not stop.wait(PERIOD_S):
            try:
                self.round(time.time())
                failing = False
            except (DatabaseError, InterfaceError, redis.RedisError, msgspec.MsgspecError) as error:
                if not failing:
                    log.warning("registered engines are not measured until this passes: %s", str(error).strip())
                failing = True
                connection.close()
            except Exception:
                log.exception("a round of the registered engines failed")
        self.close()
        connection.close()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for engine in self._engines.values():
            engine.close()

    def round(self, now_s: float) -> None:
        """Asks those whose turn it is, and tells what has come in since the last round. `now_s`: Unix seconds.

        Of several control planes' one does.
        """
        if not database_locks.keep(Lock.REGISTERED_ENGINES):
            return
        self._take_over(self._registered())
        for engine in self._engines.values():
            engine.row = None
            if engine.asked is not None:
                self._hear(engine, engine.asked, now_s)
            if engine.asked is None and now_s >= engine.due_s:
                engine.asked, engine.asked_s, engine.given_up = self._threads.submit(engine.ask), now_s, False
        if self._engines:
            self._tell(now_s)

    # -- who there is ------------------------------------------------------------------------------

    def _registered(self) -> list[wire.InstanceState]:
        """Returns those whose lease lasts, that may be asked and that have a place in the fleet."""
        uids: Any = self.client.zrange(wire.WORKERS_KEY, 0, -1)
        if not uids:
            return []
        kept: Any = self.client.mget([wire.FLEET_INDEX_KEY, *(wire.worker_key(uid.decode()) for uid in uids)])
        index, *values = kept
        if index is not None:
            gpu_types.declare(wire.decode(index, wire.FleetIndex).gpu_types)
        known, found = self._services(index is not None), []
        for value in filter(None, values):
            try:
                worker = wire.decode(value, wire.WorkerRegistration)
            except msgspec.DecodeError:
                continue  # gateways say so
            instance = instance_of(worker, known) if self._may_ask(worker) else None
            if instance is not None:
                found.append(instance)
        return found

    def _services(self, in_parts: bool) -> list[wire.FleetService]:
        """Returns the fleet's services. A scheduler of 0.1.0 does not publish the fleet `in_parts`."""
        if in_parts:
            parts: Any = self.client.hvals(wire.FLEET_SERVICES_KEY)
            return [wire.decode(data, wire.FleetService) for data in parts]
        whole: Any = self.client.get(wire.FLEET_KEY)
        return [] if whole is None else wire.decode(whole, wire.Fleet).services

    def _may_ask(self, worker: wire.WorkerRegistration) -> bool:
        try:
            uuid.UUID(worker.uid)
        except ValueError:
            return False  # no gateway wrote that
        return self.hosts.allow(urlsplit(worker.url).hostname or "")

    def _take_over(self, instances: Iterable[wire.InstanceState]) -> None:
        listed = {instance.uid: instance for instance in instances}
        gone = set(self._engines) - set(listed)
        if gone or not self._swept:
            _end_all_but(listed)
            self._swept = True
        for uid in gone:
            self._engines.pop(uid).close()
        for uid, instance in listed.items():
            known = self._engines.get(uid)
            if known is None or _place(known.instance) != _place(instance):
                if not _begin(instance):
                    continue  # its pool has just been deleted
                if known is not None:
                    known.close()
                self._engines[uid] = _Engine(instance, self.metrics())

    # -- what they say -----------------------------------------------------------------------------

    def _hear(self, engine: _Engine, asked: Future[EngineReading], now_s: float) -> None:
        if not asked.done():
            if not engine.given_up and now_s - engine.asked_s > 2.0 * TIMEOUT_S:
                engine.given_up = True
                self._note(engine, now_s, None, "failed", "its /metrics do not come to an end")
            return
        engine.asked = None
        try:
            reading = asked.result()
        except PermanentError as error:  # it answers, though not with metrics
            self._wait(engine, now_s)
            self._note(engine, now_s, None, "ready", f"its /metrics cannot be read: {error}")
        except (RetryableError, ValueError) as error:
            self._wait(engine, now_s)
            self._note(engine, now_s, None, "failed", f"its /metrics cannot be read: {error}")
        else:
            engine.failures, engine.due_s = 0, 0.0
            missing = f"the engine lacks the metrics {', '.join(reading.missing)}" if reading.missing else ""
            self._note(engine, reading.at_s, reading, "ready", missing)

    def _wait(self, engine: _Engine, now_s: float) -> None:
        engine.due_s = now_s + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**engine.failures)
        engine.failures += 1

    def _note(self, engine: _Engine, at_s: float, reading: EngineReading | None, state: str, detail: str) -> None:
        seen = replace(
            engine.instance,
            state=state,
            detail=detail,
            running=reading.running if reading else None,
            waiting=reading.waiting if reading else None,
            kv_usage=reading.kv_usage if reading else None,
            ttft_s=reading.ttft_s if reading else None,
            tpot_s=reading.tpot_s if reading else None,
        )
        engine.instance = seen
        engine.row = wire.InstanceSampleRow(
            at_s=at_s,
            instance_uid=seen.uid,
            state=state,
            running=seen.running,
            waiting=seen.waiting,
            kv_usage=seen.kv_usage,
            prompt_tokens_total=reading.prompt_tokens_total if reading else None,
            generation_tokens_total=reading.generation_tokens_total if reading else None,
            ttft_s=seen.ttft_s,
            tpot_s=seen.tpot_s,
            sm_clock_mhz=None,
            url=seen.url,
            detail=detail,
        )

    def _tell(self, now_s: float) -> None:
        rows = [engine.row for engine in self._engines.values() if engine.row is not None]
        instances = [engine.instance for engine in self._engines.values()]
        state = wire.AgentState(_AGENT, self._boot, now_s, None, instances)
        with self.client.pipeline(transaction=False) as pipe:
            pipe.set(wire.MEASURED_WORKERS_KEY, wire.encode(state), ex=KEPT_S)
            if rows:
                self._seq += 1
                batch = wire.AgentBatch(_AGENT, self._boot, self._seq, now_s, instances=rows)
                pipe.eval(wire.ADD_WHILE_ROOM, 1, wire.BATCH_STREAM, str(wire.BATCH_STREAM_MOST), wire.encode(batch))
            *_, done = pipe.execute()
        if not rows:
            return  # nothing was to be kept: whether there is room is not known
        if not done and not self._full:
            log.warning("what registered engines say is not kept until the stream has room again")
        self._full = not done


def _place(instance: wire.InstanceState) -> tuple[object, ...]:
    return instance.url, instance.pool_id, instance.model, instance.gpu_type, instance.tp


def _begin(instance: wire.InstanceState) -> bool:
    """The row that stands for it, made or brought to life again. Says whether its pool is still there."""
    pool = Pool.objects.select_related("service__model_card").filter(pk=instance.pool_id).first()
    if pool is None:
        return False
    found = Instance.objects.filter(uid=instance.uid).exclude(state=Instance.State.STOPPED)
    card = ModelCard.objects.filter(name=instance.model).first() or pool.service.model_card
    place = {"pool": pool, "model_card": card, "gpu_type": instance.gpu_type, "tp": instance.tp, "url": instance.url}
    if not found.update(**place):
        anew = {"desired": Instance.Desired.RUNNING, "state": Instance.State.STARTING, "ready_at": None}
        Instance.objects.update_or_create(uid=instance.uid, defaults={**place, **anew, "stopped_at": None})
    return True


def _end_all_but(listed: Iterable[str]) -> None:
    over = Instance.objects.filter(node=None).exclude(state=Instance.State.STOPPED).exclude(uid__in=list(listed))
    stopped = Instance.State.STOPPED
    over.update(desired=Instance.Desired.STOPPED, state=stopped, stopped_at=timezone.now(), url="")
