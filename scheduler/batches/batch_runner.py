"""Runs batches: plans, sends lines while they are to run, writes each result once.

One runner works at a time: a PostgreSQL advisory lock says who, and ends with its connection. A line is done when its
result is stored, in one transaction with its batch's counts; what was under way when a runner was killed is sent again.
Requests may so be made twice, results are never lost or doubled.

It yields: requests go to the gateway as service tier `flex`, and as few of them at a time as leaves nobody waiting
(AIMD), be it in the gateway's queues or in the engines' own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import redis
from django.db import transaction
from django.db.models import F

from core.algorithms.queue.aimd import AimdConfig, next_window
from pools import database_locks
from pools.database_locks import Lock
from pools.models import Node, Service
from scheduler import agents
from scheduler.batches import batch_keys, lifecycle, planning, tenant_files
from scheduler.batches.results import Fate, fate_of, result_line, retry_in_s, spent_budget, usage_of
from scheduler.batches.sending import LineOutcome, Request, Sender
from scheduler.models import Batch, BatchLine, BatchStatus

LOOK_S = 1.0  # between looks at who waits, and at what clients have asked for
COLLECT_S = 0.2
FIRST_IN_FLIGHT = 4.0

Waiting = Callable[[Service], int | None]


@dataclass
class Lane:
    """One service's lines: what may begin, what is under way, how much at a time."""

    service: Service
    rate: planning.RateMeter
    permit: planning.Permit = field(default_factory=planning.Permit)
    most_in_flight: float = FIRST_IN_FLIGHT
    flying: dict[int, BatchLine] = field(default_factory=dict)
    refused: bool = False  # since the last look
    was_full: bool = False
    dry_until_s: float = 0.0  # no line is ready to go before then


class Runner:
    """One run, from the first line to when nothing is to be sent for now, or `run_s` have passed."""

    def __init__(self, sender: Sender, waiting: Waiting | None = None, clock: Callable[[], float] = time.time) -> None:
        self._sender = sender
        self._waiting = waiting or engines_waiting
        self._clock = clock
        self._lanes: dict[int, Lane] = {}
        self._aimd = AimdConfig(most=tenant_files.limits()["most_in_flight"])

    def run(self, run_s: float) -> None:
        """Raises DatabaseError when the database goes: the next run goes on from there."""
        end_s, looked_s = self._clock() + run_s, 0.0
        while True:
            if self._clock() - looked_s >= LOOK_S:
                looked_s = self._clock()
                self._look(looked_s)
            ending = self._clock() >= end_s
            if not ending:
                for lane in self._lanes.values():
                    self._fill(lane)
            flying = any(lane.flying for lane in self._lanes.values())
            if not flying and (ending or not any(self._may_go_on(lane) for lane in self._lanes.values())):
                break
            self._take(self._sender.collect(COLLECT_S))
        self._end_what_is_stopped()
        lifecycle.advance(self._now())
        for lane in self._lanes.values():
            lane.rate.learn()
            planning.save_rate(lane.service, lane.rate)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _may_go_on(self, lane: Lane) -> bool:
        """Lines may begin, or it is to be decided anew whether they may."""
        return lane.permit.lines > 0 or lane.permit.until_s <= self._clock()

    # -- now and then ------------------------------------------------------------------------------

    def _look(self, now_s: float) -> None:
        now = self._now()
        lifecycle.advance(now)
        self._forget_what_is_over()
        self._end_what_is_stopped()
        for service in Service.objects.filter(batch__status=BatchStatus.IN_PROGRESS).distinct():
            if service.pk not in self._lanes:
                self._lanes[service.pk] = Lane(service, planning.load_rate(service))
        for lane in self._lanes.values():
            lane.dry_until_s = 0.0
            self._adjust(lane, now_s)
            if lane.permit.until_s <= now_s:
                lane.rate.learn(least_s=tenant_files.limits()["learn_s"])
                lane.permit = planning.decide(lane.service, lane.rate, now)

    def _forget_what_is_over(self) -> None:
        """Batches that were cancelled or have expired: what is under way of them is given up."""
        flying = {line.batch_id for lane in self._lanes.values() for line in lane.flying.values()}
        going = set(Batch.objects.filter(pk__in=flying, status=BatchStatus.IN_PROGRESS).values_list("pk", flat=True))
        for lane in self._lanes.values():
            over = [pk for pk, line in lane.flying.items() if line.batch_id not in going]
            self._sender.drop(over)
            for pk in over:
                del lane.flying[pk]

    def _end_what_is_stopped(self) -> None:
        """Ends batches of which nothing more is sent, once nothing of them is under way."""
        flying = {line.batch_id for lane in self._lanes.values() for line in lane.flying.values()}
        for batch in Batch.objects.filter(status=BatchStatus.IN_PROGRESS).exclude(errors=[]).exclude(pk__in=flying):
            lifecycle.finalize(batch, self._now())

    def _adjust(self, lane: Lane, now_s: float) -> None:
        lane.rate.ran(now_s, bool(lane.flying), 0)
        in_gateway, in_engines = self._sender.waiting(), self._waiting(lane.service)
        congested: bool | None = lane.refused or bool(in_gateway) or bool(in_engines)
        if not congested and None in (in_gateway, in_engines):
            congested = None
        lane.most_in_flight = next_window(lane.most_in_flight, congested, lane.was_full, self._aimd)
        lane.refused = lane.was_full = False

    # -- lines -------------------------------------------------------------------------------------

    def _fill(self, lane: Lane) -> None:
        free = min(int(lane.most_in_flight) - len(lane.flying), lane.permit.lines)
        if free <= 0:
            lane.was_full = lane.was_full or len(lane.flying) >= int(lane.most_in_flight)
            return
        if self._clock() < lane.dry_until_s:
            return
        lines = self._next(lane, free)
        if len(lines) < free:
            lane.dry_until_s = self._clock() + LOOK_S
        for line in lines:
            lane.flying[line.pk] = line
            assert line.batch.key_id is not None
            self._sender.send(
                Request(
                    line.pk,
                    line.batch.endpoint,
                    batch_keys.secret(line.batch.key_id),
                    lifecycle.request_id(line),
                    line.body.encode(),
                )
            )
        lane.permit = planning.Permit(lane.permit.lines - len(lines), lane.permit.until_s)
        if lane.permit.lines <= 0 and lines:
            lane.permit = planning.Permit()  # used up before its time: decide anew

    def _next(self, lane: Lane, count: int) -> list[BatchLine]:
        """Returns lines to send, of the batch that is due first, in their order."""
        now, found = self._now(), list[BatchLine]()
        batches = Batch.objects.filter(
            service=lane.service, status=BatchStatus.IN_PROGRESS, expires_at__gt=now, key__isnull=False, errors=[]
        )
        for batch in batches.order_by("expires_at", "pk"):
            open_ones = batch.lines.filter(result__isnull=True).exclude(pk__in=lane.flying).exclude(not_before__gt=now)
            rows = list(open_ones.order_by("number")[: count - len(found)])
            for row in rows:
                row.batch = batch
            found += rows
            if len(found) >= count:
                break
        return found

    def _take(self, outcomes: list[LineOutcome]) -> None:
        for lane in self._lanes.values():
            mine = [outcome for outcome in outcomes if outcome.line in lane.flying]
            ended = 0
            for outcome in mine:
                line = lane.flying.pop(outcome.line)
                ended += self._settle(lane, line, outcome)
            if mine:
                lane.rate.ran(self._clock(), True, ended)
                lane.dry_until_s = 0.0

    def _settle(self, lane: Lane, line: BatchLine, outcome: LineOutcome) -> bool:
        """Stores what came of one request. Returns whether the line is done."""
        fate = fate_of(outcome, line.attempts + 1, tenant_files.limits()["attempts"])
        if fate is Fate.DONE:
            if words := spent_budget(outcome):
                lifecycle.stop(line.batch_id, words)
            return store(line, outcome)
        lane.refused = lane.refused or outcome.status == 429
        counted = fate is Fate.AGAIN
        wait_s = retry_in_s(outcome, line.attempts if counted else 0)
        BatchLine.objects.filter(pk=line.pk, result__isnull=True).update(
            attempts=F("attempts") + int(counted), not_before=self._now() + timedelta(seconds=wait_s)
        )
        return False


def store(line: BatchLine, outcome: LineOutcome) -> bool:
    """Writes a line's result, once; False: it had one, or its batch is over."""
    ok = outcome.status is not None and outcome.status < 300
    prompt_tokens, output_tokens = usage_of(outcome.body) if ok else (0, 0)
    with transaction.atomic():
        # The batch first, as `lifecycle` does: it does not end while its counts change.
        batch = Batch.objects.select_for_update().filter(pk=line.batch_id).first()
        open_one = BatchLine.objects.filter(pk=line.pk, result__isnull=True)
        if batch is None or not open_one.update(result=result_line(line, outcome).decode(), ok=ok):
            return False
        Batch.objects.filter(pk=batch.pk).update(
            completed=F("completed") + int(ok),
            failed=F("failed") + int(not ok),
            prompt_tokens=F("prompt_tokens") + prompt_tokens,
            output_tokens=F("output_tokens") + output_tokens,
        )
    return True


def engines_waiting(service: Service) -> int | None:
    """Counts the requests that wait inside the service's engines, as agents report; None: Redis does not answer."""
    pools = set(service.pools.values_list("pk", flat=True))
    try:
        states = agents.states(agents.connect(), Node.objects.values_list("name", flat=True))
    except redis.RedisError:
        return None
    instances = (instance for state in states.values() for instance in state.instances)
    return sum(i.waiting or 0 for i in instances if i.pool_id in pools and i.state == "ready")


def work(make_sender: Callable[[], Sender]) -> bool:
    """Takes one turn of the batches' process. Returns False when another process is at it."""
    with database_locks.held(Lock.BATCHES) as mine:
        if not mine:
            return False
        now = datetime.now(UTC)
        tenant_files.prune(now)
        lifecycle.advance(now)
        if not Batch.objects.filter(status=BatchStatus.IN_PROGRESS).exists():
            return True
        sender = make_sender()
        try:
            Runner(sender).run(tenant_files.limits()["run_s"])
        finally:
            sender.close()
    return True
