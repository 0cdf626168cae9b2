"""Predicts how many tokens a request will generate, from what like requests of its service generated before."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping

from core.ports import RequestFeatures

# Median output of the Azure conversation trace of 2023 (AzurePublicDataset, AzureLLMInferenceTrace_conv, CC-BY; see
# Splitwise, ISCA 2024): the answer until the service has a history of its own.
PRIOR_OUTPUT_TOKENS = 129
RESERVOIR = 512  # newest outputs kept for each bucket
MIN_HISTORY = 8  # outputs a bucket needs before it is trusted over the whole service
MIN_TENANT_HISTORY = 32  # outputs a tenant's bucket needs before it is trusted over the service's
TENANT_BUCKETS = 2048
# Outputs a service needs before its history is trusted over the prior: the short answers of the first requests end
# before the long ones, so that a younger history would predict too little.
WARM_UP = 64
LONG_SHARE = 0.99  # of answers that are shorter than a long one

# Whose outputs a bucket holds: service, tenant (None: all) and octave of the prompt's length (None: all).
Bucket = tuple[str, int | None, int | None]


class Reservoir:
    """The newest `RESERVOIR` values, kept in order so that a quantile is one look-up."""

    __slots__ = ("_arrival", "_ordered")

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._arrival = deque(values)
        self._ordered = sorted(self._arrival)

    def __len__(self) -> int:
        return len(self._ordered)

    def add(self, value: int) -> None:
        if len(self._arrival) == RESERVOIR:
            oldest = self._arrival.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
        self._arrival.append(value)
        insort(self._ordered, value)

    def by_arrival(self) -> list[int]:
        return list(self._arrival)

    def exceeds(self, tokens: float) -> float:
        """Returns the share of values that are larger."""
        return 1.0 - bisect_right(self._ordered, tokens) / len(self._ordered)

    def quantile(self, share: float) -> int:
        return self._ordered[min(len(self._ordered) - 1, int(share * len(self._ordered)))]


class HistoryQuantilePredictor:
    """A quantile of the outputs seen for prompts of the same octave of length: the tenant's, else the service's.

    Deterministic and bounded in memory: at most `RESERVOIR` values per bucket, and at most `TENANT_BUCKETS` buckets of
    tenants, of which the one longest unseen goes first. A tenant's octave with less than `MIN_TENANT_HISTORY` outputs
    uses the service's, one with less than `MIN_HISTORY` the service's whole history, and a service with less than
    `WARM_UP` the prior.

    Answers cut off at `max_tokens` count as they are: they are what ran, and what the engine's time went into.

    Args:
        quantile: 0.5 predicts the median, which puts most requests into their class; higher values err on the long
            side.
        prior_tokens: What to say of a service without history; None: nothing.
        quantiles: Of single services, in place of `quantile`.
    """

    def __init__(
        self,
        quantile: float = 0.5,
        prior_tokens: int | None = PRIOR_OUTPUT_TOKENS,
        quantiles: Mapping[str, float] | None = None,
    ) -> None:
        self._quantiles = dict(quantiles or {})
        for share in (quantile, *self._quantiles.values()):
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"a quantile lies between 0 and 1, not at {share}")
        self._quantile = quantile
        self._prior = prior_tokens
        self._history: dict[tuple[str, int | None], Reservoir] = {}
        self._tenants: OrderedDict[tuple[str, int, int], Reservoir] = OrderedDict()
        # Since the last observation: predictions, and the lengths that few exceed.
        self._said: dict[tuple[str, int, int | None], int] = {}
        self._long: dict[tuple[str, int, int | None], int] = {}

    def quantile(self, service: str) -> float:
        """Returns the quantile that is predicted for a service."""
        return self._quantiles.get(service, self._quantile)

    def predict(
        self, service: str, prompt_tokens: int, max_tokens: int | None, features: RequestFeatures | None = None
    ) -> int | None:
        """Returns the output tokens to expect, at least 1 and at most `max_tokens`; None without history and prior."""
        key = service, prompt_tokens.bit_length(), None if features is None else features.tenant_id
        predicted = self._said.get(key)
        if predicted is None:
            predicted = self._quantile_like(service, key[1], features)
            if predicted is None:
                return None
            self._said[key] = predicted
        return predicted if max_tokens is None else max(1, min(predicted, max_tokens))

    def long(self, service: str, prompt_tokens: int, features: RequestFeatures | None = None) -> int | None:
        """Returns the output tokens that one of a hundred requests like this one exceeds; None: there is no history."""
        key = service, prompt_tokens.bit_length(), None if features is None else features.tenant_id
        long = self._long.get(key)
        if long is None:
            like = self.like(service, prompt_tokens, features)
            if like is None:
                return None
            long = self._long[key] = max(1, like.quantile(LONG_SHARE))
        return long

    def like(self, service: str, prompt_tokens: int, features: RequestFeatures | None = None) -> Reservoir | None:
        """Returns the outputs of requests like this one; None: there is no history."""
        whole = self._history.get((service, None))
        if whole is None or len(whole) < WARM_UP:
            return None
        return self._like(service, prompt_tokens.bit_length(), features, whole)

    def _quantile_like(self, service: str, octave: int, features: RequestFeatures | None) -> int | None:
        whole = self._history.get((service, None))
        if whole is None or len(whole) < WARM_UP:
            return None if self._prior is None else max(1, self._prior)
        like = self._like(service, octave, features, whole)
        return max(1, like.quantile(self._quantiles.get(service, self._quantile)))

    def _like(self, service: str, octave: int, features: RequestFeatures | None, whole: Reservoir) -> Reservoir:
        if features is not None and features.tenant_id is not None:
            own = self._tenants.get((service, features.tenant_id, octave))
            if own is not None and len(own) >= MIN_TENANT_HISTORY:
                return own
        like = self._history.get((service, octave))
        return whole if like is None or len(like) < MIN_HISTORY else like

    def observe(
        self, service: str, prompt_tokens: int, output_tokens: int, features: RequestFeatures | None = None
    ) -> None:
        """Learn from a request that ended well with `output_tokens`."""
        self._said.clear()
        self._long.clear()
        octave = prompt_tokens.bit_length()
        for bucket in (octave, None):
            self._history.setdefault((service, bucket), Reservoir()).add(output_tokens)
        if features is None or features.tenant_id is None:
            return
        key = (service, features.tenant_id, octave)
        self._tenants.setdefault(key, Reservoir()).add(output_tokens)
        self._tenants.move_to_end(key)
        if len(self._tenants) > TENANT_BUCKETS:
            self._tenants.popitem(last=False)

    def buckets(self) -> list[Bucket]:
        """Lists the buckets that hold outputs; of tenants the one longest unseen first."""
        services: list[Bucket] = [(service, None, octave) for service, octave in self._history]
        return services + [(service, tenant, octave) for service, tenant, octave in self._tenants]

    def outputs(self, bucket: Bucket) -> list[int]:
        """Returns the outputs of a bucket, oldest first; none: it has been forgotten meanwhile."""
        found = self._reservoir(bucket)
        return [] if found is None else found.by_arrival()

    def restore(self, bucket: Bucket, outputs: Iterable[int]) -> None:
        """Takes in outputs that `outputs` gave, in place of what the bucket holds.

        Raises ValueError for what cannot be a bucket's.
        """
        service, tenant, octave = bucket
        kept = list(outputs)[-RESERVOIR:]
        if min(kept, default=1) < 1 or (tenant is not None and octave is None):
            raise ValueError(f"no outputs of requests: {bucket}")
        self._said.clear()
        fresh = Reservoir(kept)
        if tenant is None or octave is None:
            self._history[service, octave] = fresh
            return
        self._tenants[service, tenant, octave] = fresh
        if len(self._tenants) > TENANT_BUCKETS:
            self._tenants.popitem(last=False)

    def _reservoir(self, bucket: Bucket) -> Reservoir | None:
        service, tenant, octave = bucket
        if tenant is None or octave is None:
            return self._history.get((service, octave))
        return self._tenants.get((service, tenant, octave))
