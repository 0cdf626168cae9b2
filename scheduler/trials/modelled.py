"""The modelled baseline of a trial: what single_pool would have used for the same requests, block by block.

It replays requests in the simulator, which takes minutes for a large trial: a worker does it as a job. The result is
kept on the job, by block, and never mixed with what was metered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from core.units import UJ_PER_J
from pools.models import Job, JobState, Service, Site
from scheduler.models import Trial, TrialBlock
from telemetry.report_values.errors import BadReport
from telemetry.report_values.period import Period
from telemetry.reports import ledger_source
from telemetry.reports.ledger_source import Scope

from . import outcome
from .block_figures import UG_PER_G, BlockFigures, counted_from
from .outcome import Outcome

log = logging.getLogger(__name__)

JOB_KIND = "trial baseline"
POLICY = "single_pool"
OPEN = (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class ModelledBlock:
    """A block's requests under `POLICY`. None: not known, and `why`."""

    index: int
    energy_j: float | None
    carbon_g: float | None
    requests: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Saving:
    """An arm's blocks that count, metered and modelled. `blocks`: how many have both; `of`: how many count.

    The shares are of the baseline, above zero where the arm takes less. None: not known.
    """

    arm: str
    blocks: int
    of: int
    metered_j: float | None
    modelled_j: float | None
    saved_energy: float | None
    metered_g: float | None
    modelled_g: float | None
    saved_carbon: float | None


@dataclass(frozen=True, slots=True)
class Modelled:
    """A trial's baseline. `job` None: nobody has asked for it. `missing`: how many blocks count that are not in it."""

    job: Job | None
    blocks: tuple[ModelledBlock, ...]
    savings: tuple[Saving, ...]
    missing: int

    @property
    def open(self) -> bool:
        return self.job is not None and self.job.state in OPEN

    @property
    def unknown(self) -> tuple[ModelledBlock, ...]:
        return tuple(block for block in self.blocks if block.energy_j is None)

    def of_block(self, index: int) -> ModelledBlock | None:
        return next((block for block in self.blocks if block.index == index), None)


def ask(trial: Trial, user: User | None) -> Job:
    """Returns the job that models the trial's baseline: the one that is under way, or a new one for a worker."""
    with transaction.atomic():
        Trial.objects.select_for_update(of=("self",)).get(pk=trial.pk)
        found = _jobs(trial).filter(state__in=OPEN).first()
        return found or Job.objects.create(kind=JOB_KIND, parameters={"trial": trial.pk}, created_by=user)


def _jobs(trial: Trial) -> Any:
    return Job.objects.filter(kind=JOB_KIND, parameters__trial=trial.pk).order_by("-pk")


def modelled(trial: Trial, found: Outcome) -> Modelled:
    """Returns the newest baseline that was modelled, and the newest job if that is another. Two queries."""
    newest = _jobs(trial).defer("log").first()
    done = newest
    if newest is not None and newest.state != JobState.DONE:
        done = _jobs(trial).filter(state=JobState.DONE).first()
    stored = () if done is None else done.result["blocks"]
    blocks = tuple(msgspec.convert(one, ModelledBlock) for one in stored)
    asked = {block.index for block in blocks}
    missing = sum(1 for block in found.blocks if not block.left_out and block.index not in asked)
    return Modelled(newest, blocks, savings(found.blocks, blocks), missing)


def savings(metered: Sequence[BlockFigures], found: Iterable[ModelledBlock]) -> tuple[Saving, ...]:
    """Compares each arm's blocks that count with their baseline, over the blocks of which both are known."""
    by_index = {block.index: block for block in found}
    counted = [block for block in metered if not block.left_out]
    return tuple(_saving(arm, [block for block in counted if block.arm == arm], by_index) for arm in ("A", "B"))


def _saving(arm: str, own: Sequence[BlockFigures], by_index: dict[int, ModelledBlock]) -> Saving:
    energy, carbon = [], []
    for block in own:
        model = by_index.get(block.index)
        if model is None or model.energy_j is None:
            continue
        energy.append((block.energy_j, model.energy_j))
        carbon.append((block.carbon_g, model.carbon_g))
    metered_j, modelled_j = _sum(one for one, _ in energy), _sum(one for _, one in energy)
    metered_g, modelled_g = _sum(one for one, _ in carbon), _sum(one for _, one in carbon)
    saved = (_saved(metered_j, modelled_j), _saved(metered_g, modelled_g))
    return Saving(arm, len(energy), len(own), metered_j, modelled_j, saved[0], metered_g, modelled_g, saved[1])


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    return None if not found or None in found else sum(value for value in found if value is not None)


def _saved(metered: float | None, model: float | None) -> float | None:
    return None if metered is None or not model else 1.0 - metered / model


# -- in the worker -------------------------------------------------------------------------------------


def run(job_id: int) -> bool:
    """Computes the baseline of a queued job's trial. What goes wrong stands on the job. Returns whether it is done."""
    if not Job.objects.filter(pk=job_id, state=JobState.QUEUED).update(
        state=JobState.RUNNING, started_at=timezone.now()
    ):
        log.info("job %s is not queued: another worker has it, or it was cancelled", job_id)
        return False
    state, error, result = JobState.DONE, "", None
    try:
        result = _run(job_id)
        state = JobState.CANCELLED if result is None else JobState.DONE
    except Trial.DoesNotExist:
        state, error = JobState.FAILED, "the trial is gone"
    except Exception as failure:
        log.exception("the baseline of job %s failed", job_id)
        state, error = JobState.FAILED, f"the baseline failed: {failure}; see the log of the worker"
    done = {"progress": 1.0} if state == JobState.DONE else {}
    Job.objects.filter(pk=job_id).update(state=state, error=error, result=result, finished_at=timezone.now(), **done)
    return state == JobState.DONE


def _run(job_id: int) -> dict[str, Any] | None:
    """Returns the result; None: somebody asked for the job to be stopped."""
    job = Job.objects.get(pk=job_id)
    trial = Trial.objects.select_related("service", "other").get(pk=job.parameters["trial"])
    blocks = {block.index: block for block in trial.blocks.select_related("service")}
    counted = [block for block in outcome.of(trial).blocks if not block.left_out]
    found = []
    for n, block in enumerate(counted):
        if Job.objects.filter(pk=job_id, cancel_requested=True).exists():
            return None
        found.append(_block(trial, blocks[block.index]))
        Job.objects.filter(pk=job_id).update(progress=(n + 1) / (len(counted) + 1))
    return {"policy": POLICY, "blocks": [asdict(block) for block in found]}


def _block(trial: Trial, block: TrialBlock) -> ModelledBlock:
    """Replays what the block's service served after the warm-up, on its sites' GPUs."""
    from telemetry.reports import baseline  # brings the simulator, which pages do without

    service = block.service
    site_ids = _site_ids(service)
    start_s, end_s = int(counted_from(trial, block).timestamp()), int(block.ends_at.timestamp())
    version = ledger_source.newest_version() or 0
    scope = Scope(Period("", "UTC", start_s, end_s), version, site_ids)
    try:
        made = baseline.replayed(site_ids, start_s, end_s, ledger_source.intensities_ug_per_uj(scope), service.name)
    except BadReport as error:
        return ModelledBlock(block.index, None, None, None, error.message)
    carbon_g = None if made.location_ug is None else made.location_ug / UG_PER_G
    return ModelledBlock(block.index, made.energy_uj / UJ_PER_J, carbon_g, made.requests)


def _site_ids(service: Service) -> tuple[int, ...]:
    return tuple(Site.objects.filter(pools__service=service).distinct().order_by("pk").values_list("pk", flat=True))
