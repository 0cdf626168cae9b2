"""Renews the node's certificate in time: the request and the answer go through Redis, by keys of the node's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pools import redis_address, wire

from .node_identity import NodeIdentity, names_of_machine
from .redis_link import TIMEOUT_S

logger = logging.getLogger(__name__)

PERIOD_S = 60.0


class CertificateRenewal(threading.Thread):
    """Looks once a period, and asks anew until a third of the time is left no more. Outlives any absence of Redis.

    `names`: at which others reach the node, beside the machine's own. Engines look for the new certificate themselves.
    """

    def __init__(
        self,
        url: str,
        node: str,
        identity: NodeIdentity,
        names: Sequence[str] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        period_s: float = PERIOD_S,
    ) -> None:
        super().__init__(name="certificate renewal", daemon=True)
        self._redis = redis_address.connect(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
        )
        self._node = node
        self._identity = identity
        self._names = names
        self._now = now
        self._period_s = period_s
        self._asked = False
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                self.look()
            except (redis.RedisError, OSError, ValueError, msgspec.DecodeError) as error:
                logger.warning("the node's certificate is not renewed yet: %s", error)
            self._ending.wait(self._period_s)
        self._redis.close()

    def end(self, timeout_s: float) -> None:
        self._ending.set()
        self.join(timeout_s)

    def look(self) -> None:
        """Asks for a new certificate when it is time, and takes it over once it has come. Raises what `run` logs."""
        if not self._identity.third_left(self._now()):
            return
        if self._asked:
            answer = self._redis.get(wire.certificate_answer_key(self._node))
            self._asked = False
            if answer is not None:
                found = wire.decode(bytes(answer), wire.NodeCertificate)  # type: ignore[arg-type]  # stubs
                self._identity.keep(found.certificate, found.authority, found.redis_authority)
                logger.info("the node's certificate is renewed")
                return
        request = self._identity.request(self._node, [*self._names, *names_of_machine()])
        self._redis.set(wire.certificate_asked_key(self._node), request, ex=wire.CERTIFICATE_KEPT_S)
        self._asked = True
