"""The laboratory's runs on the workers of a GreenServe that is up: what comes back through Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from core.simulator.lab.store import Store
from core.simulator.runs.simulation_jobs import SimulationJob
from greenserve import distributed, lab_runs
from pools import wire

FIGURES = {"energy_wh": 5.0, "wall_s": 1.0, "partial": False}
Update = wire.SimulationUpdate


class FakeRedis:
    """Has these updates for each run, one a look."""

    def __init__(self, updates: dict[str, list[Update]]) -> None:
        self.updates = {wire.simulation_key(run): list(own) for run, own in updates.items()}
        self.stopped: list[str] = []

    def lpop(self, key: str) -> bytes | None:
        return wire.encode(self.updates[key].pop(0)) if self.updates[key] else None

    def set(self, key: str, value: str, ex: int) -> None:
        self.stopped.append(key)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeRedis, list[str]], Iterator[tuple[str, Update]]]:
    monkeypatch.setattr(distributed, "_POLL_S", 0.0)
    return lambda client, runs: distributed._ended(client, runs)  # type: ignore[arg-type]


def test_each_run_is_handed_on_when_it_ends_in_whatever_order(ended) -> None:
    half, whole = Update(5.0, 0.5), Update(10.0, 1.0, FIGURES)
    client = FakeRedis({"slow": [half, half, whole], "fast": [whole], "bad": [Update(error="no room")]})
    found = dict(ended(client, ["slow", "fast", "bad"]))
    assert {run: (update.figures, update.error) for run, update in found.items()} == {
        "slow": (FIGURES, ""),
        "fast": (FIGURES, ""),
        "bad": (None, "no room"),
    }


def test_runs_are_asked_to_stop_when_a_person_interrupts(ended, monkeypatch) -> None:
    client = FakeRedis({"one": [Update(10.0, 1.0, FIGURES)], "two": [Update(4.0, None, FIGURES | {"partial": True})]})
    taken, whole = [], client.lpop

    def interrupted(key: str) -> bytes | None:
        taken.append(key)
        if len(taken) == 1:
            raise KeyboardInterrupt
        return whole(key)

    monkeypatch.setattr(client, "lpop", interrupted)
    assert set(dict(ended(client, ["one", "two"]))) == {"one", "two"}
    assert set(client.stopped) == {wire.simulation_stop_key("one"), wire.simulation_stop_key("two")}


def test_figures_of_workers_are_kept_and_those_of_a_run_that_was_stopped_are_not(tmp_path, monkeypatch) -> None:
    scenario = tmp_path / "one.yaml"
    scenario.write_text("name: one\n")
    jobs = [SimulationJob(str(scenario), (f"seed={seed}",), "single_pool") for seed in range(3)]
    updates: list[dict[str, Any] | str] = [FIGURES, "no room", FIGURES | {"partial": True}]

    def each(asked: Any) -> Iterator[tuple[SimulationJob, Update]]:
        for job, own in zip(asked, updates, strict=True):
            yield job, Update(error=own) if isinstance(own, str) else Update(9.0, 1.0, own)

    monkeypatch.setattr(distributed, "each_on_workers", each)
    store = Store(tmp_path / "lab")
    with pytest.raises(SystemExit) as caught:
        lab_runs.done(jobs, store, False, lab_runs.on_workers)
    assert caught.value.code == 130
    assert [store.find(job) for job in jobs] == [FIGURES, None, None]
