"""Rate limits: so many requests a minute for each person or token, counted in Redis for all web processes."""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from typing import Any

import redis
from django.conf import settings
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from pools import redis_address

log = logging.getLogger(__name__)

WINDOW_S = 60
TIMEOUT_S = 0.5


class ActorThrottle(BaseThrottle):
    """Windows of a minute from its first request on. Where Redis does not answer nobody is kept waiting."""

    def allow_request(self, request: Request, view: Any) -> bool:
        kind = "reads" if request.method in SAFE_METHODS else "writes"
        most = int(settings.GREENSERVE_API_LIMITS[kind])
        window, self.reset_s = divmod(int(time.time()), WINDOW_S)
        self.reset_s = WINDOW_S - self.reset_s
        key = f"greenserve:rate:{kind}:{actor_key(request)}:{window}"
        try:
            with _client(settings.REDIS_URL).pipeline() as pipe:
                pipe.incr(key)
                pipe.expire(key, 2 * WINDOW_S)
                used = int(pipe.execute()[0])
        except redis.RedisError as error:
            log.warning("requests are not counted: %s", error)
            return True
        request.rate_headers = {
            "RateLimit-Policy": f'"{kind}";q={most};w={WINDOW_S}',
            "RateLimit": f'"{kind}";r={max(0, most - used)};t={self.reset_s}',
        }
        return used <= most

    def wait(self) -> float:
        return float(self.reset_s)


def actor_key(request: Request) -> str:
    """Returns the key that requests are counted by: of the token, else of the person, else of the address."""
    if request.auth is not None and getattr(request.auth, "pk", None) is not None:
        return f"token-{request.auth.pk}"
    if request.user is not None and request.user.is_authenticated:
        return f"user-{request.user.pk}"
    return f"address-{request.META.get('REMOTE_ADDR', '')}"


@lru_cache(maxsize=2)
def _client(url: str) -> redis.Redis:
    return redis_address.connect(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
