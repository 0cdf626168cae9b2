"""Makes the messages that say what gateways know of the fleet. Reads rows only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from msgspec.structs import replace

from core.engine import gpu_types
from core.engine.image_rule import image_rule_of
from core.observations.limits import class_limits
from core.policy.dynamo_classes import PUBLISHED_FACTOR
from core.policy.knobs import Knobs
from core.types import Limits, Loop
from pools import wire
from pools.models import Instance, Node, NodeIdentity, Pool, RequestClass, Service, Site
from scheduler.batches import batch_keys
from scheduler.control import service_policy
from scheduler.control.apply import budget_messages, measured_messages
from scheduler.models import ControllerState
from telemetry.carbon.site_signals import intensity_at, marginal_at


def objectives(service: Service) -> wire.LatencyLimits:
    own = service.limits()
    return wire.LatencyLimits(own.ttft_s, own.tpot_s, own.e2e_s)


def fleet_snapshot(now: datetime, version: int) -> wire.Fleet:
    intensity = {site.pk: intensity_at(site, now) for site in Site.objects.all()}
    marginal, measured = marginal_at(now), measured_messages.measured_engines()
    services = Service.objects.select_related("model_card", "partition").prefetch_related("slos", "adapters")
    return wire.Fleet(
        version=version,
        at_s=now.timestamp(),
        services=[_service(service, intensity, marginal) for service in services],
        keys=_keys(now),
        nodes=list(_trusted_nodes().values_list("name", flat=True)),
        gpu_types=list(gpu_types.declared()),
        measured=measured,
        profiles=measured_messages.contents(measured),
    )


def _trusted_nodes() -> QuerySet[Node]:
    """Returns all nodes but those that are revoked: gateways send their engines nothing more, though they run on."""
    identities = NodeIdentity.objects.filter(node=OuterRef("pk"))
    return Node.objects.exclude(Exists(identities) & ~Exists(identities.filter(revoked_at=None)))


def _keys(now: datetime) -> list[wire.FleetKey]:
    budgets = budget_messages.by_tenant(now)
    keys = batch_keys.messages(batch_keys.live_keys(now)) + batch_keys.fleet_keys(now)
    return [replace(key, budget=budgets[key.tenant_id]) if key.tenant_id in budgets else key for key in keys]


def _service(
    service: Service, intensity: dict[int, float | None], marginal: dict[int, float | None]
) -> wire.FleetService:
    """Makes the message of one service.

    `intensity` (average) and `marginal` are by site; a service has the latter where all of its sites do.
    """
    in_force = Q(request_class__partition=service.partition_id)
    # An instance of the partition before may still be serving until its replacement is ready.
    still_serving = Q(instances__state=Instance.State.READY)
    pools = Pool.objects.filter(in_force | still_serving, service=service).distinct()
    pools = pools.select_related("site", "request_class")
    compared = all(marginal.get(pool.site_id) is not None for pool in pools)
    shares = {(row["site"], row["request_class"]): row["share"] for row in carbon_state(service).get("shares", ())}
    partition, knobs, slo = service.partition_id, service_policy.of(service), objectives(service)
    hands_on, weights = service_policy.hands_on(service, knobs), service_policy.weights(service, knobs)
    return wire.FleetService(
        name=service.name,
        model=service.model_card.name,
        engine=service.model_card.engine,
        max_model_len=service.model_card.max_model_len,
        images=image_rule_of(service.model_card.config),
        objectives=slo,
        partition=service.partition.name,
        classes=[_class(own, slo, knobs, hands_on.get(own.name, 0.0)) for own in service.partition.classes.all()],
        pools=[
            wire.FleetPool(
                id=pool.pk,
                site=pool.site.name,
                request_class=pool.request_class.name,
                pue=pool.site.pue,
                intensity_g_per_kwh=intensity.get(pool.site_id),
                share=shares.get((pool.site.name, pool.request_class.name))
                if pool.request_class.partition_id == partition
                else None,
                marginal_g_per_kwh=max(0.0, marginal[pool.site_id] or 0.0) if compared else None,
                weights=dict(weights.get(f"{pool.site.name}/{pool.request_class.name}", {})),
            )
            for pool in pools
        ],
        policy=service_policy.request_policy(knobs, service.own_policy().tuning),
        expected_prompt_tokens=service.expected_prompt_tokens,
        expected_output_tokens=service.expected_output_tokens,
        hugging_face_id=service.model_card.hugging_face_id,
        tokenizer=service.model_card.tokenizer,
        shape=service.model_card.shape,
        adapters=[wire.FleetAdapter(own.name, own.source) for own in service.adapters.all()],
        max_loras=service.max_loras,
    )


def carbon_state(service: Service) -> dict[str, Any]:
    state = ControllerState.objects.filter(kind=Loop.CARBON, service=service).first()
    return {} if state is None else dict(state.value)


def _class(request_class: RequestClass, slo: wire.LatencyLimits, knobs: Knobs, hands_on: float) -> wire.FleetClass:
    own_limits = knobs.class_limits or knobs.slo_factor != PUBLISHED_FACTOR
    limits = class_limits(Limits(slo.ttft_s, slo.tpot_s, slo.e2e_s), request_class.thresholds, knobs)
    return wire.FleetClass(
        request_class.name,
        request_class.rank,
        request_class.input_min,
        request_class.input_max,
        request_class.output_min,
        request_class.output_max,
        wire.LatencyLimits(limits.ttft_s, limits.tpot_s, limits.e2e_s) if own_limits else None,
        hands_on,
    )
