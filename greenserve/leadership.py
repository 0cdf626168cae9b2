"""Decides which of several control planes on one database sends periodic tasks: the one whose beat holds a lock.

The lock lives as long as the session that took it. PostgreSQL ends the session when the leader's process dies, and
within `LEASE_S` when nothing is heard of the leader: its machine is cut off, or its process stands still
(`idle_session_timeout`, which the session sets for itself). The leader asks again each `LOOK_S`, and counts as leader
for less than `LEASE_S` from its last question that was answered: it has stopped before another can begin.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError
from django.db.backends.base.base import BaseDatabaseWrapper

from pools.database_locks import Lock
from pools.leader import APPLICATION

log = logging.getLogger(__name__)

LOOK_S = 1.0
LEASE_S = 8.0
MARGIN = 0.875  # of LEASE_S: so long the leader trusts an answer
SOCKET_OPTIONS = {  # of the client's side: a question that is lost on its way fails before the lease has ended
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
}


class Leadership:
    """Call `leads` often, from one thread. It blocks while PostgreSQL takes its time; who waits there leads nobody.

    Args:
        connection: Of its own: what else used it would keep the session from being idle.
        name: Of this control plane, for people.
    """

    def __init__(
        self,
        connection: BaseDatabaseWrapper,
        name: str,
        lease_s: float = LEASE_S,
        look_s: float = LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._name, self._clock = connection, name, clock
        self._lease_s, self._look_s = lease_s, look_s
        connection.settings_dict["OPTIONS"] |= SOCKET_OPTIONS | {"application_name": f"{APPLICATION}{name}"}
        self._until_mono_s = float("-inf")  # so long the last answer says that this one leads
        self._next_look_mono_s = float("-inf")
        self._led = False
        self._held = False  # this session has the lock
        self.fault = ""  # why PostgreSQL cannot be asked

    def leads(self) -> bool:
        """Says whether this control plane sends periodic tasks just now."""
        if self._clock() >= self._next_look_mono_s:
            self._look()
        leads = self._clock() < self._until_mono_s
        if leads != self._led:
            self._led = leads
            log.info("%s %s", self._name, "leads: it sends periodic tasks" if leads else "leads no more")
        return leads

    def close(self) -> None:
        """Ends the session, and with it the lock."""
        self._until_mono_s = float("-inf")
        self._connection.close()

    def _look(self) -> None:
        asked_mono_s = self._clock()
        try:
            mine, self.fault = self._ask(), ""
        except (DatabaseError, InterfaceError) as error:
            mine, fault = False, str(error).strip().splitlines()[0]
            if not self.fault:
                log.warning("who leads cannot be asked: %s", fault)
            self.fault = fault
            self.close()
        self._until_mono_s = asked_mono_s + self._lease_s * MARGIN if mine else float("-inf")
        self._next_look_mono_s = self._clock() + self._look_s

    def _ask(self) -> bool:
        """Takes the lock if it is free; what this session has, it has on."""
        fresh = self._connection.connection is None
        with self._connection.cursor() as cursor:
            if fresh:
                cursor.execute("SELECT set_config('idle_session_timeout', %s, false)", [f"{self._lease_s * 1e3:.0f}"])
                self._held = False
            if self._held:
                cursor.execute("SELECT 1")
            else:
                cursor.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [Lock.LEADER])
                self._held = bool(cursor.fetchone()[0])
        return self._held
