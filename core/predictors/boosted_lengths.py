"""Output lengths by gradient-boosted trees over a request's features: the side that answers, in plain Python.

Trees are learned elsewhere (`length_training`, with scikit-learn) and come as flat lists. A row costs some 10 us here,
a thirtieth of what the library asks for a single row, and a gateway loads neither NumPy nor the library.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from core.ports import RequestFeatures

FEATURES = (
    "prompt_tokens",
    "text_bytes",
    "chat",
    "messages",
    "max_tokens",
    "last_role",
    "last_bytes",
    "has_system",
    "has_stop",
    "temperature",
    "wants_json",
    "tools_bytes",
    "has_question",
    "has_code",
    "digit_share",
    "lines",
    "hour",
    "tenant",
)
HOUR, TENANT = FEATURES.index("hour"), FEATURES.index("tenant")  # kept as Unix time and tenant id in records
COLUMNS = len(FEATURES) + 1  # of a record; the last is the output's tokens
UNKNOWN = -1.0
_UNLIMITED = 1e9  # larger than any limit, for trees to split on
_LARGEST_LIMIT = 1 << 24
_ROLES = {"user": 0.0, "assistant": 1.0, "system": 2.0, "developer": 2.0, "tool": 3.0, "function": 3.0}
_OTHER_ROLE = 4.0
_DAY_S = 86_400.0

RECORDS = 8192  # newest records kept of a service, 1.2 MB
RETRAIN_AFTER = 1024  # new records before trees are learned anew
MIN_RECORDS = 512


def record_of(prompt_tokens: int, features: RequestFeatures) -> list[float]:
    """Returns a row of features in the order of FEATURES, with Unix time and tenant id where `hour` and
    `tenant` stand."""
    f = features
    role = UNKNOWN if f.last_role is None else _ROLES.get(f.last_role, _OTHER_ROLE)
    # float(True) is 1.0: flags and sizes alike are -1 where they are not known.
    return [
        float(prompt_tokens),
        float(f.text_bytes),
        float(f.chat),
        float(f.messages),
        _UNLIMITED if f.max_tokens is None else float(min(f.max_tokens, _LARGEST_LIMIT)),
        role,
        UNKNOWN if f.last_bytes is None else float(f.last_bytes),
        UNKNOWN if f.has_system is None else float(f.has_system),
        UNKNOWN if f.has_stop is None else float(f.has_stop),
        UNKNOWN if f.temperature is None else f.temperature,
        UNKNOWN if f.wants_json is None else float(f.wants_json),
        UNKNOWN if f.tools_bytes is None else float(f.tools_bytes),
        UNKNOWN if f.has_question is None else float(f.has_question),
        UNKNOWN if f.has_code is None else float(f.has_code),
        UNKNOWN if f.digit_share is None else f.digit_share,
        UNKNOWN if f.lines is None else float(f.lines),
        f.at_s,
        UNKNOWN if f.tenant_id is None else float(f.tenant_id),
    ]


def hour_of(at_s: float) -> float:
    """Returns the hour of the day, UTC, 0 to 24."""
    return at_s % _DAY_S / 3600.0


@dataclass(frozen=True, slots=True)
class LengthTrees:
    """Boosted trees of one service: exp(baseline + a leaf of each tree) are the tokens to expect.

    Nodes of all trees lie in the same lists. `feature` is -1 at a leaf; a row whose feature is at most `threshold` goes
    to the next node in the list, others to `right`. `tenants` are the tenants' levels, the mean logarithm of their
    outputs drawn towards `typical_level`, which stands for tenants not seen in training.
    """

    baseline: float
    roots: tuple[int, ...]
    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]
    tenants: Mapping[int, float]
    typical_level: float
    trained_on: int

    def tokens(self, record: Sequence[float]) -> float:
        """Returns the output tokens to expect of a record as `record_of` gives it."""
        row = list(record[: len(FEATURES)])
        row[HOUR] = hour_of(row[HOUR])
        row[TENANT] = self.tenants.get(int(row[TENANT]), self.typical_level)
        return math.exp(self.log_tokens(row))

    def log_tokens(self, row: Sequence[float]) -> float:
        """Predicts the logarithm of the output tokens of a row whose hour and tenant level are in place."""
        feature, threshold, right, value = self.feature, self.threshold, self.right, self.value
        total = self.baseline
        for root in self.roots:
            node = root
            while (column := feature[node]) >= 0:
                node = node + 1 if row[column] <= threshold[node] else right[node]
            total += value[node]
        return total

    def to_json(self) -> dict[str, Any]:
        stored = asdict(self)
        stored["features"] = list(FEATURES)
        stored["tenants"] = [[tenant, level] for tenant, level in self.tenants.items()]
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> LengthTrees:
        """Reads what `to_json` wrote. Raises ValueError for trees over other features, or that are no trees."""
        if list(stored["features"]) != list(FEATURES):
            raise ValueError("these trees were learned over other features: learn them anew")
        trees = cls(
            baseline=float(stored["baseline"]),
            roots=tuple(int(v) for v in stored["roots"]),
            feature=tuple(int(v) for v in stored["feature"]),
            threshold=tuple(float(v) for v in stored["threshold"]),
            right=tuple(int(v) for v in stored["right"]),
            value=tuple(float(v) for v in stored["value"]),
            tenants={int(tenant): float(level) for tenant, level in stored["tenants"]},
            typical_level=float(stored["typical_level"]),
            trained_on=int(stored["trained_on"]),
        )
        trees.check()
        return trees

    def check(self) -> None:
        """Raises ValueError unless every walk from a root ends at a leaf."""
        size = len(self.feature)
        if not len(self.threshold) == len(self.right) == len(self.value) == size:
            raise ValueError("the lists of nodes differ in length")
        if any(not 0 <= root < size for root in self.roots):
            raise ValueError("a root lies outside the list of nodes")
        for node, (column, other) in enumerate(zip(self.feature, self.right, strict=True)):
            if column >= len(FEATURES) or (column >= 0 and not (node + 1 < size and node < other < size)):
                raise ValueError(f"node {node} leads nowhere")  # children lie behind their parent, so walks end


class LengthRecords:
    """The newest requests of one service as numbers, in a ring: what trees are learned from."""

    __slots__ = ("_at", "_rows", "seen")

    def __init__(self) -> None:
        self._rows = array("d")
        self._at = 0
        self.seen = 0  # in all

    def __len__(self) -> int:
        return len(self._rows) // COLUMNS

    def add(self, record: list[float], output_tokens: int) -> None:
        row = array("d", record)
        row.append(output_tokens)
        if len(self._rows) < RECORDS * COLUMNS:
            self._rows.extend(row)
        else:
            self._rows[self._at : self._at + COLUMNS] = row
            self._at = (self._at + COLUMNS) % len(self._rows)
        self.seen += 1

    def to_bytes(self) -> bytes:
        """Native doubles, `COLUMNS` a row, oldest row first. A copy: a millisecond."""
        return (self._rows[self._at :] + self._rows[: self._at]).tobytes()

    @classmethod
    def from_bytes(cls, rows: bytes) -> LengthRecords:
        """Reads what `to_bytes` wrote. Raises ValueError when these are no rows, or too many."""
        found = cls()
        found._rows.frombytes(rows)  # ValueError when it is no whole number of doubles
        if len(found._rows) % COLUMNS or len(found) > RECORDS:
            raise ValueError(f"{len(rows)} bytes are no records of {COLUMNS} columns")
        found.seen = len(found)
        return found


class BoostedLengthPredictor:
    """Predicts with trees for each service that has some; keeps records to learn from.

    Someone else learns (`due`, `records`, `install`): it takes a tenth of a second, and a second to load what it takes.
    """

    def __init__(self, retrain_after: int = RETRAIN_AFTER, min_records: int = MIN_RECORDS) -> None:
        self._retrain_after = retrain_after
        self._min_records = min_records
        self._trees: dict[str, LengthTrees] = {}
        self._records: dict[str, LengthRecords] = {}
        self._learned_at: dict[str, int] = {}  # records seen when learning began last

    def predict(
        self, service: str, prompt_tokens: int, max_tokens: int | None, features: RequestFeatures | None = None
    ) -> int | None:
        trees = self._trees.get(service)
        if trees is None or features is None:
            return None
        tokens = round(trees.tokens(record_of(prompt_tokens, features)))
        return max(1, tokens if max_tokens is None else min(tokens, max_tokens))

    def observe(
        self, service: str, prompt_tokens: int, output_tokens: int, features: RequestFeatures | None = None
    ) -> None:
        if features is None:
            return
        records = self._records.get(service)
        if records is None:
            records = self._records[service] = LengthRecords()
        records.add(record_of(prompt_tokens, features), output_tokens)

    def due(self, service: str) -> bool:
        """Says whether enough requests came since trees were learned last, or were tried to."""
        records = self._records.get(service)
        if records is None or records.seen < self._min_records:
            return False
        last = self._learned_at.get(service)
        return last is None or records.seen - last >= self._retrain_after

    def records(self, service: str) -> bytes:
        """Returns what to learn from, as LengthRecords.to_bytes; new records then count towards the next time."""
        records = self._records.setdefault(service, LengthRecords())
        self._learned_at[service] = records.seen
        return records.to_bytes()

    def install(self, service: str, trees: LengthTrees | None) -> None:
        """Puts trees in force; None: the service is better off without."""
        if trees is None:
            self._trees.pop(service, None)
        else:
            self._trees[service] = trees

    def trees(self, service: str) -> LengthTrees | None:
        return self._trees.get(service)

    def services(self) -> list[str]:
        """Lists the services with records."""
        return list(self._records)

    def kept(self, service: str) -> tuple[bytes, int | None]:
        """Returns a service's records as LengthRecords.to_bytes, and how many came since trees were learned; None:
        never."""
        records = self._records.get(service)
        if records is None:
            return b"", None
        last = self._learned_at.get(service)
        return records.to_bytes(), None if last is None else records.seen - last

    def restore(self, service: str, rows: bytes, since: int | None) -> None:
        """Takes in what `kept` gave. Raises ValueError when it is no such thing."""
        records = self._records[service] = LengthRecords.from_bytes(rows)
        if since is not None:
            self._learned_at[service] = records.seen - since
