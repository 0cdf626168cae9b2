"""Calibration while serving: from samples to a row, to what processes know, to plans; and to an alert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from django.test import Client

from core.engine import measured
from core.engine.calibration import MEMORY_S
from core.engine.corrections import Configuration, configuration, factor
from core.engine.engine_model import closed_form, engine_model
from core.engine.iteration import Totals
from core.engine.step_tables import step_table
from core.observations.load_profiles import load_profile
from core.observations.mode_profile import Lengths
from core.ports import EngineLimits
from core.types import Limits, Mode
from pools import engine_measurements, wire
from pools.models import EngineResidual, Instance, InstanceGpu, Node, Profile, RequestClass, Service
from scheduler.control.snapshot import published_profiles
from telemetry import tasks
from telemetry.alerts import evaluation
from telemetry.calibration import residual_rows
from telemetry.models import Alert, DemandSketch, GpuSample, InstanceSample
from telemetry.storage import time_partitions
from tests.fakes.house import start_instance

pytestmark = pytest.mark.django_db
KEY = configuration("Llama3-70B", "A100-80GB", 4, "vllm-v1")
MODEL = closed_form(*KEY)
RUNNING, CONTEXT = 12.0, 12.0 * 700.0
TURN_S = 30


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    engine_measurements.forget()
    yield
    engine_measurements.forget()
    measured.publish(())
    measured.calibrate({})


@dataclass
class Engines:
    """Engines of one configuration whose truth the test sets. Time passes when the test says so."""

    instances: list[Instance]
    now: datetime
    slower: float = 1.0
    hungrier: float = 1.0
    mhz: tuple[float, ...] = (1410.0, 1310.0, 1210.0, 1110.0, 1010.0)  # as MIAD has them, by turns
    tokens: float = 0.0
    joules: float = 0.0
    seconds: int = 0

    def serve(self, seconds: int) -> None:
        """Serves and reports each second; a turn of the task is each half minute."""
        for _ in range(seconds // TURN_S):
            self._report(TURN_S)
            residual_rows.calibrate(self.now + timedelta(seconds=residual_rows.SETTLE_S), {})
            engine_measurements.refresh()

    def _report(self, seconds: int) -> None:
        engines, gpus = [], []
        for _ in range(seconds):
            self.now += timedelta(seconds=1)
            self.seconds += 1
            mhz = self.mhz[self.seconds % len(self.mhz)]
            work = MODEL.iteration_of(mhz, Totals(decodes=RUNNING, context_tokens=CONTEXT))
            self.tokens += RUNNING / (self.slower * work.t_s)
            self.joules += self.hungrier * work.gpu_watts
            for instance in self.instances:
                engines.append(
                    InstanceSample(
                        at=self.now,
                        instance=instance,
                        state="ready",
                        running=RUNNING,
                        waiting=0,
                        kv_usage=CONTEXT / MODEL.kv_capacity_tokens,
                        prompt_tokens_total=0.0,
                        generation_tokens_total=self.tokens,
                        sm_clock_mhz=mhz,
                    )
                )
                gpus += [
                    GpuSample(at=self.now, gpu_id=hold.gpu_id, energy_j=self.joules, instance=instance)
                    for hold in instance.gpu_holds.all()
                ]
        InstanceSample.objects.bulk_create(engines)
        GpuSample.objects.bulk_create(gpus)


@pytest.fixture
def engines(service: Service, now: datetime) -> Engines:
    now = now.replace(microsecond=0)
    time_partitions.ensure([now.date(), (now + timedelta(hours=2)).date()])
    cell = service.partition.classes.get(name="LL")
    pool = service.pools.get(site__name="location-3", request_class=cell)
    node = Node.objects.get(name="loc3-a100")
    return Engines([start_instance(pool, node, tp=4) for _ in range(2)], now)


def row() -> EngineResidual:
    return EngineResidual.objects.get()


def lowest_mhz() -> float:
    """The lowest clock that keeps a tight TPOT at a request a second: rules by profiles choose none below."""
    found = load_profile("Llama3-70B", "vllm-v1", Mode("A100-80GB", 4), Lengths(700.0, 300.0))
    assert found is not None
    return float(found.mhz[found.within(Limits(tpot_s=0.045)) >= 1.0][0])


def token_j() -> float:
    """Joules that routers count an iteration of twelve sequences with."""
    table = step_table("Llama3-70B", "A100-80GB", 4, "vllm-v1", 1210.0)
    assert table is not None
    return table.decode(12)[1]


def plan(service: Service) -> tuple[float, float]:
    """Rate and power by which fleets are planned, of the mode that is calibrated."""
    known = RequestClass.objects.get(partition=service.partition, name="LS")
    lengths = {known.pk: published_profiles.typical(service, known)}
    limits = {known.pk: Limits(2.0, 0.15, 60.0)}
    found = published_profiles.mode_profiles(service, {known.pk: known}, lengths, limits)
    profile = found[known.pk, Mode("A100-80GB", 4)]
    return profile.max_rps, profile.power_w


@pytest.mark.slow("engines serve for minutes")
def test_engines_that_do_as_predicted_stay_uncorrected(engines: Engines) -> None:
    engines.serve(300)
    found = row()
    assert found.configuration == KEY
    assert (found.time, found.power, found.drifted) == ([], [], False)
    assert found.windows > 20.0  # of two engines
    assert found.time_drift == pytest.approx(0.0, abs=0.01)
    assert found.power_drift == pytest.approx(0.0, abs=0.01)
    assert measured.residual_of(KEY) is None


def test_plans_follow_when_engines_become_slower_and_hungrier(engines: Engines, service: Service) -> None:
    Profile.objects.all().delete()  # else authors' figures count
    engines.serve(120)
    before_rps, before_w = plan(service)
    before_mhz, before_j = lowest_mhz(), token_j()
    engines.slower, engines.hungrier = 1.3, 1.2
    engines.serve(420)
    found = row()
    assert found.drifted
    residual = measured.residual_of(KEY)
    assert residual is not None
    gpu = MODEL.gpu_params
    for mhz in (1100.0, 1250.0, 1410.0):
        assert factor(residual.time, gpu, mhz) == pytest.approx(1.3, rel=0.05)
        assert factor(residual.power, gpu, mhz) == pytest.approx(1.2, rel=0.05)
    after_rps, after_w = plan(service)
    assert after_rps < 0.85 * before_rps
    assert after_w == pytest.approx(min(1.2 * before_w, 4.0 * gpu.tdp_w), rel=0.1)
    assert lowest_mhz() > before_mhz
    assert token_j() == pytest.approx(1.3 * 1.2 * before_j, rel=0.08)
    work = Totals(decodes=RUNNING, context_tokens=CONTEXT)
    assert engine_model(*KEY).iteration_of(1210.0, work).t_s == pytest.approx(
        1.3 * MODEL.iteration_of(1210.0, work).t_s, rel=0.05
    )
    engines.slower = engines.hungrier = 1.0  # they are repaired
    engines.serve(600)
    assert plan(service)[0] == pytest.approx(before_rps, rel=0.08)
    assert not row().drifted


def test_window_counts_once_when_the_task_runs_again(engines: Engines) -> None:
    engines.serve(60)
    before = row()
    assert residual_rows.calibrate(engines.now + timedelta(seconds=residual_rows.SETTLE_S), {}) == 0
    assert row().state == before.state
    assert set(before.state["used"]) == {str(instance.pk) for instance in engines.instances}


def test_calibration_begins_anew_when_another_profile_is_in_force(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.slower = 1.3
    engines.serve(240)
    assert row().time
    monkeypatch.setattr(measured, "version_of", lambda key: "another")
    residual_rows.calibrate(engines.now + timedelta(seconds=residual_rows.SETTLE_S + 120.0), {})  # nothing to read
    found = row()
    assert (found.time, found.windows, found.drifted, found.state["base"]) == ([], 0.0, False, "another")


@pytest.mark.parametrize("reason", ["asleep", "beside", "split", "alone"])
def test_engines_that_say_nothing_are_left_out(engines: Engines, service: Service, reason: str) -> None:
    first, second = engines.instances
    if reason == "asleep":
        Instance.objects.filter(pk__in=[first.pk, second.pk]).update(state="sleeping")
    elif reason == "beside":  # a shadow and the one it is to replace, on the same GPUs
        InstanceGpu.objects.filter(instance=second).delete()
        for hold in first.gpu_holds.all():
            InstanceGpu.objects.create(instance=second, gpu=hold.gpu, beside=True)
    elif reason == "split":
        Service.objects.filter(pk=service.pk).update(policy="dynaserve")
    else:
        Instance.objects.filter(pk__in=[first.pk, second.pk]).update(node=None)  # they registered themselves
    engines.serve(60)
    assert not EngineResidual.objects.exists()


def test_prompts_count_by_the_mean_of_late(engines: Engines, service: Service) -> None:
    sketch = {"request_class": "LL", "prompt_from": 512, "prompt_to": 1024, "output_from": 0, "output_to": 99}
    sketch |= {"output_tokens": 0, "context_tokens": 0.0, "ended": 0}
    at = engines.now - timedelta(seconds=20)
    DemandSketch.objects.create(service=service.name, start_at=at, requests=4, prompt_tokens=2_400, **sketch)
    found = residual_rows._prompt_means(engines.now)
    assert found == {(service.name, "LL"): 600.0, (service.name, ""): 600.0}


def test_few_engines_of_many_are_read_in_a_turn() -> None:
    many = [residual_rows._Engine(n, Configuration("m", "g", 1, "e"), "s", "c") for n in range(100)]
    read = [[one.pk for one in residual_rows._some(many, turn)] for turn in range(26)]
    assert {len(one) for one in read} == {residual_rows.MOST_ENGINES}
    assert read[0] == read[1] != read[2]
    assert {pk for one in read for pk in one} == set(range(100))


@pytest.mark.slow("engines serve for half an hour")
def test_alert_is_raised_and_ends_when_engines_differ_and_are_repaired(engines: Engines, settings: Any) -> None:
    sources = ("telemetry.alerts.engine_drift.ENGINE_DRIFT",)
    settings.GREENSERVE_ALERTS = {**settings.GREENSERVE_ALERTS, "sources": sources}

    def rounds(seconds: int) -> None:
        for _ in range(seconds // TURN_S):
            engines.serve(TURN_S)
            for second in (15, 30):
                evaluation.run(engines.now + timedelta(seconds=second - TURN_S))

    engines.slower, engines.hungrier = 1.3, 1.2
    rounds(240)
    assert not Alert.objects.filter(rule="engine_drift").exists()  # not yet long enough
    rounds(240)
    alert = Alert.objects.get(rule="engine_drift")
    assert alert.summary.startswith("Engines of Llama3-70B on 4 x A100-80GB (vllm-v1) take 1.30 times the predicted")
    assert "draw 1.20 times the predicted power; no profile is in force" in alert.summary
    assert "`greenserve node profile --model Llama3-70B --tp 4` on a node with A100-80GB" in alert.step
    assert alert.value == pytest.approx(0.3, abs=0.03)
    engines.slower = engines.hungrier = 1.0
    rounds(round(6 * MEMORY_S) + 360)
    alert.refresh_from_db()
    assert alert.state == "resolved"


def test_people_see_what_was_measured(engines: Engines, admin_client: Client) -> None:
    engines.slower, engines.hungrier = 1.3, 1.2
    engines.serve(300)
    (found,) = admin_client.get("/api/v1/engine-residuals/", {"drifted": "true"}).json()["results"]
    assert (found["gpu_type"], found["tp"], found["engine"]) == ("A100-80GB", 4, "vllm-v1")
    assert found["time_ratio"] == pytest.approx(1.3, abs=0.02)
    assert found["power_ratio"] == pytest.approx(1.2, abs=0.02)
    assert [one["sm_clock_mhz"] for one in found["factors"]][-1] == 1410.0
    assert found["factors"][-1]["time"] == pytest.approx(1.3, abs=0.03)
    assert admin_client.get("/api/v1/engine-residuals/", {"drifted": "false"}).json()["results"] == []
    assert admin_client.post("/api/v1/engine-residuals/", {}).status_code == 405
    page = admin_client.get(f"/models/{engines.instances[0].model_card_id}/")
    text = page.content.decode()
    assert "A100-80GB/TP4" in text
    assert "drifted: measure a new profile" in text


def test_task_goes_by_the_chunks_that_agents_report(
    engines: Engines, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (str(instance.uid) for instance in engines.instances)
    own = [
        wire.InstanceState(uid, 1, None, "ready", "m", "vllm-v1", "A100-80GB", 4, None, 210.0, 1410.0, engine_limits=it)
        for uid, it in ((first, EngineLimits(chunk_tokens=512)), (second, None))
    ]
    state = wire.AgentState("loc3-a100", "boot", engines.now.timestamp(), None, own)
    redis_client.set(wire.agent_key("loc3-a100"), wire.encode(state), ex=60)
    given: list[dict[str, EngineLimits]] = []
    monkeypatch.setattr(residual_rows, "calibrate", lambda now, limits: given.append(limits) or 0)
    tasks.calibrate_engines()
    assert given == [{first: EngineLimits(chunk_tokens=512)}]
    chunks = {
        one.pk: one.chunk_tokens for found in residual_rows._engines(engines.now, given[0]).values() for one in found
    }
    assert chunks == {engines.instances[0].pk: 512, engines.instances[1].pk: EngineLimits().max_num_batched_tokens}
