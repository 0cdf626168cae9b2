"""Offers a model to clients in one act: its card where there is none, the service, its objectives, and its pools.

The page *Offer a model* and `POST /api/v1/offers/` call it. Afterwards each row is changed for itself, as all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from core.engine import engine_params
from core.policy.knobs import WHOLE
from core.types import Limits
from pools.access.audit import Actor
from pools.models import ModelCard, Pool, Service, Site, Slo, SloMetric
from pools.writes import ensure_partition
from scheduler.operations.configure import changes

PERCENTILE = 99.0
LOAD = ("expected_rps", "expected_prompt_tokens", "expected_output_tokens")


@dataclass(frozen=True, slots=True)
class Offer:
    """The model that is offered, and how. `model`: a card's name, or one that the engine model knows; of the latter a
    card is made, with `max_model_len` in tokens.

    `objectives_s`: seconds by kind of latency, each for `percentile` of 100 requests. `sites`: where it may run; none:
    everywhere. `load`: rate and mean lengths to plan for until they are seen, by the names in LOAD.
    """

    name: str
    model: str
    policy: str
    objectives_s: Mapping[SloMetric, float]
    max_model_len: int | None = None
    percentile: float = PERCENTILE
    sites: Sequence[Site] = ()
    load: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def of_fields(cls, given: Mapping[str, Any]) -> Offer:
        """Reads the fields of a form or of a body: those of an offer, with objectives and load each by its name."""
        return cls(
            name=given["name"],
            model=given["model"],
            policy=given["policy"],
            objectives_s={kind: seconds for kind in SloMetric if (seconds := given[f"{kind}_s"]) is not None},
            max_model_len=given["max_model_len"],
            percentile=given["percentile"],
            sites=tuple(given["sites"]),
            load={name: given[name] for name in LOAD},
        )


@transaction.atomic
def make(actor: Actor, offer: Offer) -> Service:
    """Makes all that the service needs, or nothing.

    Raises:
        ValidationError: By the offer's fields (an objective's is its kind and `_s`), in words.
        PermissionDenied: The actor may not change what concerns all sites.
    """
    sites = list(offer.sites) or list(Site.objects.all())
    if not offer.objectives_s:
        raise ValidationError({"ttft_s": "Give at least one objective: ttft_s, tpot_s or e2e_s."})
    if not sites:
        raise ValidationError({"sites": "There is no site yet: enter one first."})
    service = _service(actor, offer, _card(actor, offer))
    for kind, seconds in offer.objectives_s.items():
        with _by_field({"percentile": "percentile"}, f"{kind}_s"):
            slo = Slo(service=service, kind=kind, objective_s=seconds, percentile=offer.percentile)
            changes.create(actor, slo)
    for site in sites:
        with _by_field({}, "sites"):
            changes.create(actor, Pool(service=service, site=site, request_class=service.partition.classes.get()))
    return service


def known_models() -> list[str]:
    """Returns the names that an offer's model may have."""
    return sorted({*ModelCard.objects.values_list("name", flat=True), *engine_params.MODELS})


def _card(actor: Actor, offer: Offer) -> ModelCard:
    found = ModelCard.objects.filter(name=offer.model).first()
    if found is not None:
        if offer.max_model_len not in (None, found.max_model_len):
            words = f"{found} has {found.max_model_len}: leave this empty, or change the model under Models."
            raise ValidationError({"max_model_len": words})
        return found
    if offer.model not in engine_params.MODELS:
        known = ", ".join(known_models())
        words = f"'{offer.model}' is no model: enter it with its config.json under Models first. Known are {known}."
        raise ValidationError({"model": words})
    if offer.max_model_len is None:
        raise ValidationError({"max_model_len": f"{offer.model} is new here: say how many tokens its context has."})
    with _by_field({"max_model_len": "max_model_len"}, "model"):
        return changes.create(actor, ModelCard(name=offer.model, max_model_len=offer.max_model_len))


def _service(actor: Actor, offer: Offer, card: ModelCard) -> Service:
    partition = ensure_partition(WHOLE)
    service = Service(name=offer.name, model_card=card, partition=partition, policy=offer.policy)
    for name, value in offer.load.items():
        setattr(service, name, value)
    with _by_field({name: name for name in ("name", "policy", *LOAD)}, "model"):
        made = changes.create(actor, service)
    objectives = offer.objectives_s
    limits = Limits(objectives.get(SloMetric.TTFT), objectives.get(SloMetric.TPOT), objectives.get(SloMetric.E2E))
    if words := made.lacks_pace(limits):
        raise ValidationError({"policy": words})
    return made


@contextmanager
def _by_field(names: Mapping[str, str], other: str) -> Iterator[None]:
    """Puts what is wrong with a row beside the offer's fields: those that have another name there, and else `other`."""
    try:
        yield
    except ValidationError as error:
        found: dict[str, list[str]] = {}
        for name, texts in error.update_error_dict({}).items():
            found.setdefault(names.get(name, other), []).extend(text for one in texts for text in one.messages)
        raise ValidationError({name: list(texts) for name, texts in found.items()}) from None
