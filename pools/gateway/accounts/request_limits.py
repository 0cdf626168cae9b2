"""Keeps tenants and keys within their limits: requests and tokens a minute, and requests at a time.

A request is charged its prompt's tokens and the most that it may generate when it is admitted, and what it took when it
has ended. It is admitted while a bucket holds what it asks for, or is full; what it takes beyond that is a debt.
Everything is O(1), and in memory: each of several gateways allows its part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pools import wire

from ..errors import over_rate, too_many_at_once
from ..requests.call import Call
from ..token_bucket import TokenBucket

MINUTE_S = 60.0
RUNNING_RETRY_S = 1  # nobody knows when a request ends


class _Rate:
    """Allows so many a minute: of the whole limit this gateway's part."""

    __slots__ = ("_bucket", "_gateways", "limit", "most")

    def __init__(self, limit: int, gateways: int, left_share: float = 1.0) -> None:
        """Args: left_share: What of it is left, of the limit that was in force before."""
        self.limit, self._gateways = limit, gateways
        self.most = max(1.0, limit / gateways)
        self._bucket = TokenBucket(limit / gateways / MINUTE_S, self.most)
        self._bucket.give((left_share - 1.0) * self.most)

    def admits(self, amount: float, now_s: float) -> bool:
        return self._bucket.left(now_s) >= min(amount, self.most)

    def spend(self, amount: float, now_s: float) -> None:
        self._bucket.spend(amount, now_s)

    def share(self, now_s: float) -> float:
        return self._bucket.left(now_s) / self.most

    def remaining(self, now_s: float) -> int:
        """Returns what is left of the whole limit, as if each gateway had taken as much as this one."""
        return max(0, min(self.limit, math.floor(self._bucket.left(now_s) * self._gateways)))

    def wait_s(self, amount: float, now_s: float) -> float:
        return self._bucket.wait_s(amount, now_s)

    def reset_s(self, now_s: float) -> float:
        return self._bucket.wait_s(self.most, now_s)


class _Meter:
    """Counts what a tenant or a key has under way, and what is left of its minute."""

    __slots__ = ("concurrent", "gateways", "limits", "requests", "running", "tokens", "whose")

    def __init__(self, whose: str) -> None:
        self.whose = whose
        self.running = 0
        self.limits = wire.RequestLimits()
        self.gateways = 1
        self.requests: _Rate | None = None
        self.tokens: _Rate | None = None
        self.concurrent: int | None = None

    def keep(self, limits: wire.RequestLimits, gateways: int, now_s: float) -> None:
        """Puts limits in force; what is used of the minute stays used."""
        if limits is self.limits and gateways == self.gateways:
            return
        if limits != self.limits or gateways != self.gateways:
            self.requests = _renewed(self.requests, limits.requests_per_minute, gateways, now_s)
            self.tokens = _renewed(self.tokens, limits.tokens_per_minute, gateways, now_s)
            most = limits.concurrent_requests
            self.concurrent = None if most is None else max(1, most // gateways)
            self.gateways = gateways
        self.limits = limits


def _renewed(rate: _Rate | None, limit: int | None, gateways: int, now_s: float) -> _Rate | None:
    if limit is None:
        return None
    return _Rate(limit, gateways, 1.0 if rate is None else rate.share(now_s))


@dataclass(slots=True)
class Charge:
    """Counts a request that was admitted until it has ended."""

    meters: tuple[_Meter, ...]
    tokens: int

    def settle(self, tokens: int, now_s: float) -> None:
        """Counts what the request took in place of what it might have."""
        for meter in self.meters:
            meter.running -= 1
            if meter.tokens is not None:
                meter.tokens.spend(tokens - self.tokens, now_s)


class LimitKeeper:
    """Admits requests within the limits of their tenant and key. Times are monotonic."""

    def __init__(self) -> None:
        self._tenants: dict[int, _Meter] = {}
        self._keys: dict[int, _Meter] = {}

    def admit(self, call: Call, gateways: int) -> None:
        """Charges a call, and writes the headers that tell its client what is left. A refused one takes nothing.

        Raises:
            ApiError: 429, with the headers.
        """
        key, now_s = call.key, call.request.received_s
        meters = []
        if key.tenant_limits is not None:
            meter = self._tenants.get(key.tenant_id) or self._tenants.setdefault(key.tenant_id, _Meter("tenant"))
            meter.keep(key.tenant_limits, gateways, now_s)
            meters.append(meter)
        if key.limits is not None:
            meter = self._keys.get(key.key_id) or self._keys.setdefault(key.key_id, _Meter("key"))
            meter.keep(key.limits, gateways, now_s)
            meters.append(meter)
        if not meters:
            return
        tokens = _most_tokens(call)
        for meter in meters:
            self._check(meter, meters, tokens, now_s)
        for meter in meters:
            meter.running += 1
            if meter.requests is not None:
                meter.requests.spend(1, now_s)
            if meter.tokens is not None:
                meter.tokens.spend(tokens, now_s)
        call.charge = Charge(tuple(meters), tokens)
        call.limit_headers = b"".join([b"%b: %b\r\n" % line for line in _headers(meters, now_s).items()])

    @staticmethod
    def _check(meter: _Meter, meters: list[_Meter], tokens: int, now_s: float) -> None:
        if meter.concurrent is not None and meter.running >= meter.concurrent:
            most = meter.limits.concurrent_requests or 0
            raise too_many_at_once(meter.whose, most, RUNNING_RETRY_S, _headers(meters, now_s))
        if meter.tokens is not None and tokens > meter.tokens.limit:
            headers = _headers(meters, now_s) | {b"x-should-retry": b"false"}
            raise over_rate(meter.whose, "tokens", meter.tokens.limit, 0, tokens, None, headers)
        for what, rate, amount in (("requests", meter.requests, 1), ("tokens", meter.tokens, tokens)):
            if rate is not None and not rate.admits(amount, now_s):
                wait_s = rate.wait_s(amount, now_s)
                left, headers = rate.remaining(now_s), _headers(meters, now_s)
                raise over_rate(meter.whose, what, rate.limit, left, amount, wait_s, headers)


def _most_tokens(call: Call) -> int:
    """Returns the tokens of the prompt, and the most of all answers: the client's bound, else what is predicted."""
    answer = call.predicted_tokens if call.max_tokens is None else call.max_tokens
    sequences = 1 if call.features is None else call.features.sequences
    return (call.prompt_tokens or 0) + (answer or 0) * sequences


def _headers(meters: list[_Meter], now_s: float) -> dict[bytes, bytes]:
    """Returns OpenAI's headers; of tenant and key those of the one with less left."""
    found: dict[bytes, bytes] = {}
    for what in ("requests", "tokens"):
        rates = [rate for meter in meters if (rate := getattr(meter, what)) is not None]
        if rates:
            rate, name = min(rates, key=lambda one: one.remaining(now_s)), what.encode()
            found[b"x-ratelimit-limit-" + name] = b"%d" % rate.limit
            found[b"x-ratelimit-remaining-" + name] = b"%d" % rate.remaining(now_s)
            found[b"x-ratelimit-reset-" + name] = duration(rate.reset_s(now_s))
    return found


def duration(seconds: float) -> bytes:
    """Returns a duration as OpenAI writes it, rounded up: 0s, 120ms, 1.5s, 6m0s."""
    if seconds <= 0.0:
        return b"0s"
    if seconds < 1.0:
        return b"%dms" % math.ceil(seconds * 1000)
    minutes, rest_s = divmod(math.ceil(seconds * 10) / 10, 60)
    return (f"{minutes:.0f}m" if minutes else "").encode() + f"{rest_s:g}s".encode()
