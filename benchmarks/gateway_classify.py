"""Times the gateway's classification: `python -m benchmarks.gateway_classify [TRACE]`. Prints JSON.

All that a request costs before routing, from its parsed body on: features, digest, prompt tokens, output tokens, class.
Bodies are chats of 4.6 KB in four messages and of 300 bytes in one, each of them seen for the first time (boosted) or
again (cache), and what learning from a request that ended costs. Times are the thread's processor time, so that a busy
machine does not blur them much; reading that clock is in them. A shared machine still disturbs one call in a hundred
(`noise` shows it on a loop of fixed length), so percentiles of undisturbed calls stand beside. Budget: 60 us, p99.

TRACE is Azure's conversation trace of 2023 (CSV, gzip): then accuracy of history and boosting on its newest fifth is
printed beside, and how many land in the right class of FREESH's and DynamoLLM's output borders.
"""

from __future__ import annotations

import csv
import datetime
import gc
import gzip
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from core.ports import RequestFeatures
from core.predictors import length_training
from core.predictors.boosted_lengths import record_of
from pools import wire
from pools.gateway.classify.classified import Classified
from pools.gateway.classify.classifier import Classifier
from pools.gateway.requests import endpoint, features, validation

ROUNDS, WARM_UP, LEARNED = 4000, 500, 2000
OUTPUT_BORDERS = {"freesh_a": (444,), "freesh_b": (232,), "dynamollm": (100, 350)}
CLASSES = [
    wire.FleetClass(f"{i}{o}", rank, low, high, least, most)
    for rank, (i, o, low, high, least, most) in enumerate(
        (i, o, low, high, least, most)
        for i, low, high in (("S", 0, 256), ("M", 256, 1024), ("L", 1024, None))
        for o, least, most in (("S", 0, 100), ("M", 100, 350), ("L", 350, None))
    )
]


@dataclass
class View:
    name: str = "llama3-70b"
    max_model_len: int = 16384
    classes: Sequence[wire.FleetClass] = ()
    policy: wire.RequestPolicy = field(default_factory=wire.RequestPolicy)


SERVICE = View(classes=CLASSES)


def chat(rng: random.Random, messages: int, size: int, **fields: Any) -> bytes:
    """A body whose text is not like any other's."""
    words = [f"w{rng.randrange(10**6):x}" for _ in range(size // messages // 7)]
    roles = ("system", "user", "assistant", "user")[-messages:]
    said = [{"role": role, "content": " ".join(rng.sample(words, len(words))) + "?"} for role in roles]
    return json.dumps(
        {"model": SERVICE.name, "messages": said, "temperature": 0.7, "max_tokens": 800} | fields
    ).encode()


def prepare(raw: bytes) -> tuple[validation.ChatBody, validation.Prompt]:
    body = validation.decode(raw, endpoint.CHAT)
    assert isinstance(body, validation.ChatBody)
    return body, validation.measure_prompt(body)


def classified(classifier: Classifier, body: Any, prompt: validation.Prompt) -> tuple[RequestFeatures, Classified]:
    found = features.features_of(body, prompt, SERVICE.name, 1.7e9, 7, 800)
    return found, classifier.classify(SERVICE, found, prompt.tokens)


def row(found: RequestFeatures, guess: Classified, output: int) -> wire.RequestRow:
    return wire.RequestRow(
        "id", found.at_s, SERVICE.name, 7, 1, "chat", False, "ok", 200,
        prompt_tokens=guess.prompt_tokens, output_tokens=output, tokens_source="usage",
        request_class=guess.class_name, actual_class=guess.class_name,
    )  # fmt: skip


def timings_us(calls: Sequence[Callable[[], Any]], rounds: int = 1) -> dict[str, float]:
    """Percentiles over calls. `quiet_`: of the least of `rounds` times that each call took, if they may be repeated."""
    took = np.empty((rounds, len(calls)))
    gc.collect()
    for again in range(rounds):
        for number, call in enumerate(calls):
            began = time.thread_time_ns()
            call()
            took[again, number] = (time.thread_time_ns() - began) / 1e3
    took = took[:, WARM_UP:]
    found = {f"p{q}_us": round(float(np.percentile(took, q)), 1) for q in (50, 90, 99)}
    if rounds > 1:
        least = took.min(axis=0)
        found |= {f"quiet_p{q}_us": round(float(np.percentile(least, q)), 1) for q in (50, 99)}
    return found


def noise_us() -> dict[str, float]:
    """Of a loop that always takes the same: what the machine, not the code, adds at the high percentiles."""

    def loop() -> None:
        total = 0
        for number in range(900):
            total += number

    return timings_us([loop] * ROUNDS, rounds=4)


def taught(rng: random.Random) -> Classifier:
    """With trees in force, learned from requests like those that are timed."""
    classifier = Classifier()
    for _ in range(LEARNED):
        messages = rng.choice((1, 2, 4))
        found, guess = classified(classifier, *prepare(chat(rng, messages, rng.randrange(200, 6000))))
        output = max(1, int(rng.lognormvariate(4.5, 0.6) + 40 * messages + guess.prompt_tokens / 10))
        classifier.learn(row(found, guess, output), found, guess)
    records = length_training.records_from_bytes(classifier.boosted.records(SERVICE.name))
    learned = length_training.learn(records)
    assert learned.trees is not None
    classifier.boosted.install(SERVICE.name, learned.trees)
    return classifier


def time_classification() -> dict[str, Any]:
    rng = random.Random(1)
    classifier = taught(rng)
    found: dict[str, Any] = {}
    for name, messages, size in (("4.6KB_x4", 4, 4600), ("300B_x1", 1, 300)):
        bodies = [prepare(chat(rng, messages, size)) for _ in range(ROUNDS)]
        found[f"classify_{name}_new"] = timings_us([lambda b=b: classified(classifier, *b) for b in bodies], 4)
        found[f"features_{name}"] = timings_us(
            [lambda b=b: features.features_of(*b, SERVICE.name, 1.7e9, 7, 800) for b in bodies], 4
        )
        guessed = [classified(classifier, *b) for b in bodies]
        assert {guess.source for _, guess in guessed} <= {"boosted", "bound"}
        found[f"trees_{name}"] = timings_us(
            [lambda f=f: classifier.boosted.predict(SERVICE.name, 900, None, f) for f, _ in guessed], 4
        )
        rows = [(row(f, g, rng.randrange(1, 800)), f, g) for f, g in guessed]
        found[f"learn_{name}"] = timings_us([lambda r=r: classifier.learn(*r) for r in rows])
        found[f"classify_{name}_seen"] = timings_us([lambda b=b: classified(classifier, *b) for b in bodies], 4)
    return found


def records_of_trace(path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    with gzip.open(path, "rt") as lines:
        found = [
            [
                *record_of(
                    int(line["ContextTokens"]),
                    RequestFeatures(
                        True, datetime.datetime.fromisoformat(line["TIMESTAMP"][:26] + "+00:00").timestamp()
                    ),
                ),
                float(line["GeneratedTokens"]),
            ]
            for line in csv.DictReader(lines)
        ]
    return np.array(found)


def accuracy(path: Path) -> dict[str, Any]:
    """History learns as it goes; trees are of the records before the newest fifth."""
    records = records_of_trace(path)
    tested = round(length_training.HOLDOUT * len(records))
    outputs = records[-tested:, -1]
    began_s = time.perf_counter()
    trees = length_training.fit(records[:-tested])
    fit_s = time.perf_counter() - began_s
    guesses = {
        "history": length_training.replay_history(records)[-tested:],
        "boosted": length_training.predict(trees, records[-tested:]),
    }
    found: dict[str, Any] = {"fit_s": round(fit_s, 2), "nodes": len(trees.feature)}
    for name, guess in guesses.items():
        right = {
            borders: round(float((np.digitize(guess, at) == np.digitize(outputs, at)).mean()), 4)
            for borders, at in OUTPUT_BORDERS.items()
        }
        found[name] = asdict(length_training.score(guess, outputs)) | {"right_class": right}
    return found


def main() -> None:
    found: dict[str, Any] = {"budget_p99_us": 60, "noise": noise_us(), "timings": time_classification()}
    if len(sys.argv) > 1:
        found["azure_conversation_2023"] = accuracy(Path(sys.argv[1]))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
