"""Says what would follow if a row were stored as it is. It is shown beside the form, before anything is stored.

An error keeps it from being stored; a warning is for the operator to judge; an info is only shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from django.conf import settings
from django.db.models import CASCADE, PROTECT, ForeignObjectRel, Model, Q, QuerySet

from core.accounting import tariffs
from core.algorithms.fleet.fleet_problem import mode_failure
from core.engine import engine_params, gpu_types
from core.engine.engine_model import UnknownConfiguration, engine_model
from core.engine.gpu_slices import sliced
from core.engine.model_config import BadConfig
from core.observations.request.request_configs import TBT_S
from core.policy.setting_texts import without_effect
from core.ports import AdapterError
from core.types import Limits, Mode, ModeProfile
from pools.model_files import shape_figures
from pools.models import (
    Adapter,
    Cluster,
    Gpu,
    GpuType,
    Instance,
    ModelCard,
    Node,
    Partition,
    Pool,
    PowerCycle,
    Profile,
    ProfileSource,
    RequestClass,
    Service,
    Site,
    Slo,
    SloMetric,
)
from scheduler.control import active_operations
from scheduler.control.snapshot import published_profiles
from scheduler.models import ControlMode
from scheduler.power import power_choice
from telemetry.carbon import feeds
from telemetry.models import CarbonFeed, GpuRate, Pue, Tariff, WeatherFeed
from telemetry.models.rates import Version
from telemetry.weather import weather_feeds

Level = Literal["error", "warning", "info"]
NAMED = 5


@dataclass(frozen=True, slots=True)
class Consequence:
    """`field` empty: it is about the row as a whole."""

    level: Level
    field: str
    text: str


def of(instance: Model) -> tuple[Consequence, ...]:
    """Returns the consequences, in the order of the checks; also of rows that are not valid yet, where it can."""
    look = _OF.get(type(instance))
    return tuple(look(instance)) if look else ()


def of_deletion(instance: Model) -> tuple[Consequence, ...]:
    """Returns the rows that keep it from being deleted, and those that would be deleted with it."""
    found = []
    if users := users_of(instance):
        found.append(Consequence("error", "", f"{instance} is in use by {users}: delete or change that first."))
    for name, count in _going_with(instance):
        found.append(Consequence("warning", "", f"{count} {name} would be deleted with it."))
    return tuple(found)


def users_of(instance: Model) -> str:
    """Names the rows that must go first; empty: none uses it."""
    if isinstance(instance, GpuType):
        return _users_of_gpu_type(instance.name)
    found: list[str] = []
    count = 0
    for relation, rows in _pointing(instance):
        if relation.on_delete is PROTECT:
            count += rows.count()
            found += [f"{rows.model._meta.verbose_name} {row}" for row in rows[: max(0, NAMED - len(found))]]
    more = f" and {count - len(found)} more" if count > len(found) else ""
    return ", ".join(found) + more


def _users_of_gpu_type(name: str) -> str:
    """Counts rows that name a GPU type: by a text, since shipped types have no row."""
    nodes = list(Node.objects.filter(gpus__gpu_type=name).distinct().values_list("name", flat=True))
    profiles = Profile.objects.filter(gpu_type=name).count()
    more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    found = [f"GPUs of {'node' if len(nodes) == 1 else 'nodes'} {_list(nodes[:NAMED])}{more}"] if nodes else []
    found += [f"{profiles} {'profile' if profiles == 1 else 'profiles'}"] if profiles else []
    return " and ".join(found)


def _going_with(instance: Model) -> Iterator[tuple[str, int]]:
    for relation, rows in _pointing(instance):
        if relation.on_delete is CASCADE and (count := rows.count()):
            meta = rows.model._meta
            yield str(meta.verbose_name if count == 1 else meta.verbose_name_plural), count


def _pointing(instance: Model) -> Iterator[tuple[ForeignObjectRel, QuerySet[Model]]]:
    for relation in instance._meta.related_objects:
        if relation.on_delete in (PROTECT, CASCADE) and instance.pk is not None:
            yield relation, relation.related_model._default_manager.filter(**{relation.field.name: instance})


# -- places ----------------------------------------------------------------------------------------


def _site(site: Site) -> Iterator[Consequence]:
    try:
        tariffs.check_zone(site.time_zone)
    except ValueError as error:
        yield Consequence("error", "time_zone", f"{error}.")
    before = Site.objects.filter(pk=site.pk).first() if site.pk else None
    if before and before.currency != site.currency:
        priced = Tariff.objects.filter(site=site).count() + GpuRate.objects.filter(site=site).count()
        if priced:
            text = f"{priced} tariffs and rates of this site are in {before.currency}: sums need one currency."
            yield Consequence("error", "currency", text)
    if before and before.pue != site.pue and Pue.objects.filter(site=site).exists():
        text = "This site has PUEs over time, which count instead for settled figures; plans take this one."
        yield Consequence("info", "pue", text)
    if before and before.grid_zone != site.grid_zone:
        feeds = CarbonFeed.objects.filter(site=site, zone="").count()
        if feeds:
            yield Consequence("warning", "grid_zone", f"{feeds} feeds of this site will ask for the new zone.")
    moved = before and (before.latitude, before.longitude) != (site.latitude, site.longitude)
    if moved and WeatherFeed.objects.filter(site=site).exists():
        text = (
            "The weather that was stored is of the old place. Remove the weather feed and make another to start anew."
        )
        yield Consequence("warning", "latitude", text)
    if site.power_cap_w is not None and site.pk:
        yield from _cap(site, site.power_cap_w)


def _cap(site: Site, cap_w: float) -> Iterator[Consequence]:
    gpus = Gpu.objects.filter(node__cluster__site=site).values_list("gpu_type", "tdp_w")
    idle_w = math.fsum(engine_params.GPUS[kind].idle_w for kind, _ in gpus if kind in engine_params.GPUS)
    most_w = math.fsum(tdp_w for _, tdp_w in gpus)
    if cap_w < idle_w:
        text = f"Its {len(gpus)} GPUs draw {idle_w / 1e3:.1f} kW when idle, more than this cap of {cap_w / 1e3:.1f} kW."
        yield Consequence("warning", "power_cap_w", text)
    elif gpus and cap_w < most_w:
        text = f"All GPUs at full load draw {most_w / 1e3:.1f} kW: the cap of {cap_w / 1e3:.1f} kW can be reached."
        yield Consequence("info", "power_cap_w", text)


def _node(node: Node) -> Iterator[Consequence]:
    before = Node.objects.filter(pk=node.pk).select_related("cluster").first() if node.pk else None
    live = Instance.objects.filter(node=node).exclude(state=Instance.State.STOPPED).count() if node.pk else 0
    if before and before.name != node.name:
        text = f"Its agent must be started as '{node.name}'; until then the node is silent."
        yield Consequence("warning", "name", text)
    if before and before.cluster_id != node.cluster_id and live:
        text = f"{live} instances run on it and count for their pools' site; drain it before it is moved."
        yield Consequence("error", "cluster", text)
    if before and (before.gpu_slices, before.slicing) != (node.gpu_slices, node.slicing) and live:
        text = f"{live} instances live on it. Take it out of planning (schedulable: off), and wait until they are gone."
        yield Consequence("error", "gpu_slices" if before.gpu_slices != node.gpu_slices else "slicing", text)
    if before and before.schedulable and not node.schedulable and live:
        text = f"{live} instances run on it: they are left alone, and no new ones are placed here."
        yield Consequence("info", "schedulable", text)
    yield from (Consequence("error", name, text) for name, text in power_choice.faults(node))
    if text := power_choice.needs_file(node):
        yield Consequence("warning", "power_port", f"It cannot be switched yet: {text}.")
    if before and before.power_port != node.power_port and PowerCycle.objects.filter(node=node, ready_at=None).exists():
        text = "It is off by plan, and what it is switched on by stays until it has booted: switch it on first."
        yield Consequence("error", "power_port", text)


def _gpu(gpu: Gpu) -> Iterator[Consequence]:
    known = engine_params.GPUS.get(gpu.gpu_type)
    if known is None:
        text = f"{_not_modelled(gpu.gpu_type, engine_params.GPUS)} Enter its data sheet under GPU types."
        yield Consequence("warning", "gpu_type", text)
        return
    if gpu.gpu_type not in engine_params.FITTED:
        yield Consequence("info", "gpu_type", f"{known.name} is known by its data sheet: plans keep wide margins.")
    if gpu.max_mhz and gpu.max_mhz > 1.05 * known.f_max:
        text = f"{known.name} is modelled up to {known.f_max:.0f} MHz."
        yield Consequence("info", "max_mhz", text)
    if gpu.memory_gb and abs(gpu.memory_gb - known.mem_gb) > 0.1 * known.mem_gb:
        yield Consequence("warning", "memory_gb", f"{known.name} has {known.mem_gb:g} GB in the engine model.")


def _gpu_type(kind: GpuType) -> Iterator[Consequence]:
    before = GpuType.objects.filter(pk=kind.pk).first() if kind.pk else None
    if before and before.name != kind.name and (users := _users_of_gpu_type(before.name)):
        yield Consequence("error", "name", f"{before} is in use by {users}: change that first.")
    for other in (*gpu_types.SHIPPED.values(), *(row.sheet() for row in GpuType.objects.exclude(pk=kind.pk))):
        if shared := {other.name, *other.nvml}.intersection(kind.driver_names or ()):
            yield Consequence("warning", "driver_names", f"{_list(sorted(shared))} is {other.name}'s as well.")
    gpus = Gpu.objects.filter(gpu_type=kind.name)
    if users := _users_of_gpu_type(kind.name):
        yield Consequence("info", "", f"In use by {users}: plans go by these figures from the next epoch on.")
    if kind.memory_gb and (odd := gpus.exclude(memory_gb__range=(0.9 * kind.memory_gb, 1.1 * kind.memory_gb)).first()):
        yield Consequence("warning", "memory_gb", f"The GPU {odd} has {odd.memory_gb:g} GB.")
    if kind.like in engine_params.FITTED:
        text = f"Until a node with it was profiled, plans take {kind.like}'s efficiencies and keep wide margins."
        yield Consequence("info", "like", text)


# -- what is served --------------------------------------------------------------------------------


def _model_card(card: ModelCard) -> Iterator[Consequence]:
    if card.engine not in engine_params.ENGINES:
        yield Consequence("warning", "engine", _not_modelled(card.engine, engine_params.ENGINES))
    try:
        card.take_shape()
    except BadConfig as error:
        yield Consequence("error", "config", str(error))
        return
    if not engine_params.knows_model(card.engine_model_name):
        text = f"{_not_modelled(card.name, engine_params.MODELS)} Of any other it needs the config."
        yield Consequence("warning", "name", text)
        return
    if card.shape:
        shape = engine_params.model(card.shape)
        yield Consequence("info", "config", f"Computed from config.json: {shape_figures.words(shape)}.")
    if card.engine in engine_params.ENGINES:
        fitting, nodes, need = _fitting(card, Node.objects.filter(gpus__isnull=False).distinct())
        if nodes and not fitting:
            yield Consequence("warning", "name", f"{card.name} fits on none of the {nodes} nodes: {need}.")
        elif nodes:
            yield Consequence("info", "name", f"{card.name} fits on {fitting} of {nodes} nodes.")


def _fitting(card: ModelCard, nodes: QuerySet[Node]) -> tuple[int, int, str]:
    """Counts the nodes that an instance fits on, and all nodes, by the largest TP degree that a node has GPUs for.

    Also returns why it does not fit on the largest of those that it does not fit on.
    """
    kinds: dict[int, dict[str, int]] = {}
    keys = ("node_id", "gpu_type", "node__gpu_slices")
    for node_id, gpu_type, slices in Gpu.objects.filter(node__in=nodes).values_list(*keys):
        own, kind = kinds.setdefault(node_id, {}), sliced(gpu_type, slices)
        own[kind] = own.get(kind, 0) + slices
    fits: dict[tuple[str, int], bool] = {}
    fitting = 0
    for own in kinds.values():
        for kind, count in own.items():
            tp = _largest(card, kind, count)
            if (kind, tp) not in fits:
                fits[kind, tp] = _fits(card, kind, tp)
        fitting += any(fits[kind, _largest(card, kind, n)] for kind, n in own.items())
    return fitting, len(kinds), _need(card, [mode for mode, there in fits.items() if not there])


def _largest(card: ModelCard, kind: str, gpus: int) -> int:
    """Returns the largest TP degree on so many GPUs of a kind that the model can be cut by."""
    return max(published_profiles.degrees_within(card.engine_model_name, kind, gpus), default=0)


def _fits(card: ModelCard, kind: str, tp: int) -> bool:
    """What the engine model does not know is not ruled out."""
    if not tp:
        return False
    try:
        return engine_model(card.engine_model_name, kind, tp, card.engine).fits
    except UnknownConfiguration:
        return Profile.objects.filter(model_card=card, gpu_type=kind, max_rps__gt=0).exists() or not card.pk


def _need(card: ModelCard, modes: Iterable[tuple[str, int]]) -> str:
    known = [(kind, tp) for kind, tp in modes if tp and kind in engine_params.GPUS]
    found = [shape_figures.fit(card.engine_model_name, kind, tp, card.engine) for kind, tp in known]
    if not found:
        weights = engine_params.model(card.engine_model_name).weight_bytes
        return f"its weights alone are {weights / 1e9:.0f} GB"
    return max(found, key=lambda one: one.room_gb).reason


def _service(service: Service) -> Iterator[Consequence]:
    before = Service.objects.filter(pk=service.pk).first() if service.pk else None
    card = ModelCard.objects.filter(pk=service.model_card_id).first()
    partition = Partition.objects.filter(pk=service.partition_id).first()
    if partition and not partition.classes.exists():
        yield Consequence("error", "partition", f"{partition} has no classes yet: add some first.")
    live = _live(service) if service.pk else 0
    if before and card and before.model_card_id != service.model_card_id and live:
        text = f"{live} instances serve {before.model_card}; drain them first, or make a service for {card}."
        yield Consequence("error", "model_card", text)
    if before and before.name != service.name:
        yield Consequence("warning", "name", f"Clients that send '{before.name}' will be refused.")
    if before and before.partition_id != service.partition_id and live:
        text = f"Pools change with the partition: up to {live} instances start anew or change their pool."
        yield Consequence("warning", "partition", text)
    if before and (before.policy, before.knobs) != (service.policy, service.knobs):
        yield Consequence("info", "policy", taken_up(service))
        yield from _settings(service)
    if not before:
        yield from _no_pace(service)
    if not before and service.expected_rps is None:
        text = "Without a load to plan for, the first plan is for next to nothing until requests were seen."
        yield Consequence("warning", "expected_rps", text)
    if Adapter.objects.filter(name=service.name).exists():
        yield Consequence("error", "name", f"A LoRA adapter is called '{service.name}': choose another name.")
    yield from _part(service)
    if service.pk and not service.pools.exists():
        yield Consequence("info", "", "It has no pool yet: add one at each site where it may run.")


def _adapter(adapter: Adapter) -> Iterator[Consequence]:
    if Service.objects.filter(name=adapter.name).exists():
        yield Consequence("error", "name", f"A service is called '{adapter.name}': choose another name.")
    before = Adapter.objects.filter(pk=adapter.pk).first() if adapter.pk else None
    if before and before.name != adapter.name:
        yield Consequence("warning", "name", f"Clients that send '{before.name}' will be refused.")
    service = Service.objects.filter(pk=adapter.service_id).select_related("model_card").first()
    if service and service.model_card.name == adapter.name:
        yield Consequence("error", "name", f"The engines of {service} call its model so: choose another name.")
    started_for = max(Adapter.objects.filter(service=service).values_list("rank", flat=True), default=0)
    if service and adapter.rank and adapter.rank > started_for and (live := _live(service)):
        before_it = f"adapters of rank {started_for} at most" if started_for else "no adapters"
        text = (
            f"{live} instances of {service} were started for {before_it} and cannot load it: they are replaced one by "
            "one, each once its successor is ready. Requests for it wait for the first."
        )
        yield Consequence("warning", "rank", text)


def _part(service: Service) -> Iterator[Consequence]:
    """Yields what is wrong with its part: floors that not all can have, a ceiling below the smallest instance."""
    gpus = Gpu.objects.count()
    floors = sum(Service.objects.exclude(pk=service.pk).values_list("min_gpus", flat=True))
    if service.min_gpus and floors + service.min_gpus > gpus:
        text = (
            f"The floors of all services come to {floors + service.min_gpus} GPUs, and the fleet has {gpus}: where all "
            "need them, each gets fewer, by weight. Lower some."
        )
        yield Consequence("warning", "min_gpus", text)
    if service.max_gpus is None or not service.pk:
        return
    sizes = [own.tp for own in published_profiles.offered_modes(service)]
    if sizes and min(sizes) > service.max_gpus:
        text = (
            f"An instance of its model takes at least {min(sizes)} GPUs: with at most {service.max_gpus} it cannot be "
            f"served. Give {min(sizes)} or more, or leave it out."
        )
        yield Consequence("error", "max_gpus", text)


def _no_pace(service: Service) -> Iterator[Consequence]:
    """Says what a new service, whose objectives can only come after it, is to get."""
    try:
        words = service.lacks_pace(Limits())
    except ValueError:
        return  # the form says what is wrong
    if words:
        until = f"Until then answers have {TBT_S:g} s for each token."
        yield Consequence("warning", "policy", f"{service.policy}: {words}. {until}")


def _settings(service: Service) -> Iterator[Consequence]:
    try:
        service.configured_policy()
    except ValueError:
        return  # the form says what is wrong
    for text in without_effect(service.knobs):
        yield Consequence("warning", "knobs", text)


def taken_up(service: Service) -> str:
    """Says what becomes of a policy that is configured, by the control mode."""
    control_mode = active_operations.control_mode_of(service)
    match control_mode.mode:
        case ControlMode.ADVISE:
            return "It advises: nothing that acts changes, and what it would do is shown beside what is in force."
        case ControlMode.APPROVE:
            return "Its plans wait for approval: until one is approved, nothing that acts changes."
    return "All loops decide anew within seconds, under the new policy."


def _live(service: Service) -> int:
    return Instance.objects.filter(pool__service=service).exclude(state=Instance.State.STOPPED).count()


def _slo(slo: Slo) -> Iterator[Consequence]:
    service = Service.objects.filter(pk=slo.service_id).select_related("model_card", "partition").first()
    if service is None or not slo.objective_s or slo.kind not in SloMetric.values:
        return
    known = service.limits()
    limits = Limits(**{**_as_dict(known), f"{slo.kind}_s": slo.objective_s})
    classes = {
        request_class.pk: request_class for request_class in RequestClass.objects.filter(partition=service.partition_id)
    }
    free = dict.fromkeys(classes, Limits())
    lengths = {pk: published_profiles.typical(service, request_class) for pk, request_class in classes.items()}
    anywhere = not service.pools.exists()  # who has not said yet where it may run sees what it could do
    found = published_profiles.mode_profiles(service, classes, lengths, dict.fromkeys(classes, limits), anywhere)
    if not found:
        nodes = "node" if anywhere else "node at its sites"
        text = (
            f"There is no profile of {service.model_card} yet, and no {nodes} with GPUs on which the engine model "
            "knows it: nobody can tell."
        )
        yield Consequence("info", "objective_s", text)
        return
    able = {pk for (pk, _), profile in found.items() if mode_failure(profile, limits) is None}
    failing = sorted(
        (request_class for pk, request_class in classes.items() if pk not in able),
        key=lambda request_class: request_class.rank,
    )
    if not failing:
        return
    alone = published_profiles.mode_profiles(service, classes, lengths, free, anywhere)
    own = Limits(**{f"{slo.kind}_s": slo.objective_s})
    best = _best(alone, slo.kind)
    met = best is None or best <= slo.objective_s
    reached = f": best {slo.get_kind_display()} {_milliseconds(best)}" if best is not None else ""
    if len(failing) == len(classes) and not met:
        text = f"This SLO cannot be met by any profile of this model{reached}."
    else:
        also = "" if own == limits else " with the service's other SLOs"
        names = ", ".join(request_class.name for request_class in failing)
        text = f"No mode keeps this SLO{also} for {names}{reached}; these classes are planned without limits."
    yield Consequence("warning", "objective_s", text)


def _as_dict(limits: Limits) -> dict[str, float | None]:
    return {"ttft_s": limits.ttft_s, "tpot_s": limits.tpot_s, "e2e_s": limits.e2e_s}


def _best(found: Mapping[tuple[int, Mode], ModeProfile], kind: str) -> float | None:
    known = [getattr(profile, f"{kind}_s") for profile in found.values() if profile.max_rps > 0.0]
    return min((value for value in known if value is not None), default=None)


def _milliseconds(value_s: float) -> str:
    return f"{1e3 * value_s:.0f} ms" if value_s < 1.0 else f"{value_s:.3g} s"


def _pool(pool: Pool) -> Iterator[Consequence]:
    service = Service.objects.filter(pk=pool.service_id).select_related("model_card").first()
    site = Site.objects.filter(pk=pool.site_id).first()
    request_class = RequestClass.objects.filter(pk=pool.request_class_id).select_related("partition").first()
    if service is None or site is None or request_class is None:
        return
    if not Partition.objects.filter(
        Q(services=service) | Q(active_services=service), pk=request_class.partition_id
    ).exists():
        own = _list(service.partitions.values_list("name", flat=True))
        text = f"{request_class} is not of a partition that {service} may use: {own or 'it has none'}."
        yield Consequence("error", "request_class", text)
    before = Pool.objects.filter(pk=pool.pk).first() if pool.pk else None
    moved = before and (before.service_id, before.site_id, before.request_class_id) != (
        service.pk,
        site.pk,
        request_class.pk,
    )
    if moved and Instance.objects.filter(pool=pool).exists():
        yield Consequence("error", "", "Instances were started for this pool: make another one instead.")
    nodes = Node.objects.filter(cluster__site=site, gpus__isnull=False).distinct()
    card = service.model_card
    if engine_params.knows_model(card.engine_model_name) and card.engine in engine_params.ENGINES:
        fitting, count, need = _fitting(card, nodes)
        if not count:
            yield Consequence("warning", "site", f"{site} has no node with GPUs yet.")
        elif not fitting:
            text = f"{card} fits on none of the {count} nodes of {site}: {need}."
            yield Consequence("warning", "site", text)
    if not CarbonFeed.objects.filter(site=site).exclude(signal=CarbonFeed.Signal.PRICE).exists():
        text = f"{site} has no carbon feed: the carbon loop cannot choose it. Add one under Feeds."
        yield Consequence("warning", "site", text)
    if not before:
        more = _partner_pools(service, site)
        if more > 1:
            yield Consequence("info", "", f"{more} pools are made at {site}: one for each class of the service.")


def _partner_pools(service: Service, site: Site) -> int:
    classes = RequestClass.objects.filter(Q(partition__services=service) | Q(partition__active_services=service))
    return classes.distinct().count() - Pool.objects.filter(service=service, site=site).count()


def _request_class(request_class: RequestClass) -> Iterator[Consequence]:
    partition = Partition.objects.filter(pk=request_class.partition_id).first()
    if partition is None:
        return
    for other in partition.classes.exclude(pk=request_class.pk):
        if _overlap(request_class, other):
            text = f"It overlaps {other.name}: a request that is in both goes to the one of the lower rank."
            yield Consequence("warning", "input_min", text)
    users = Service.objects.filter(partition=partition)
    live = Instance.objects.filter(pool__service__in=users).exclude(state=Instance.State.STOPPED).count()
    if live:
        text = (
            f"{_list(str(user) for user in users)} serve by this partition: plans change, and some of {live} instances "
        )
        yield Consequence("warning", "", f"{text}may start anew.")


def _overlap(one: RequestClass, other: RequestClass) -> bool:
    def apart(low: int, high: int | None, other_low: int, other_high: int | None) -> bool:
        return (high is not None and high <= other_low) or (other_high is not None and other_high <= low)

    return not (
        apart(one.input_min or 0, one.input_max, other.input_min, other.input_max)
        or apart(one.output_min or 0, one.output_max, other.output_min, other.output_max)
    )


def _profile(profile: Profile) -> Iterator[Consequence]:
    known = engine_params.GPUS.get(profile.gpu_type)
    if known and profile.tp and profile.power_w and profile.power_w > 1.05 * profile.tp * known.tdp_w:
        text = f"{profile.tp} {known.name} are made for {profile.tp * known.tdp_w:.0f} W."
        yield Consequence("warning", "power_w", text)
    if profile.kind == ProfileSource.MEASURED:
        yield Consequence("info", "kind", "A measured profile counts before published and modelled ones of its mode.")


# -- feeds and rates -------------------------------------------------------------------------------


def _feed(feed: CarbonFeed) -> Iterator[Consequence]:
    known = settings.GREENSERVE_CARBON_PROVIDERS
    if feed.provider not in known:
        yield Consequence("error", "provider", f"There is no provider '{feed.provider}'; known are {_list(known)}.")
    if not isinstance(feed.config, Mapping):
        yield Consequence("error", "config", 'Write an object, such as {"zone": "DE"}, or {} for nothing.')
    elif feed.provider in known:
        try:
            feeds.check(feed)
        except AdapterError as error:
            yield Consequence("error", "config", str(error))
    before = CarbonFeed.objects.filter(pk=feed.pk).first() if feed.pk else None
    if before and before.provider != feed.provider:
        text = "Points that were stored stay; from now on they come from the new provider, and its own units and zones."
        yield Consequence("info", "provider", text)


def _weather_feed(feed: WeatherFeed) -> Iterator[Consequence]:
    known = settings.GREENSERVE_WEATHER_PROVIDERS
    if feed.provider not in known:
        yield Consequence("error", "provider", f"There is no provider '{feed.provider}'; known are {_list(known)}.")
    elif not isinstance(feed.config, Mapping):
        yield Consequence("error", "config", 'Write an object, such as {"plan": "free"}, or {} for nothing.')
    elif feed.site_id is not None:
        try:
            weather_feeds.check(feed)
        except AdapterError as error:
            yield Consequence("error", "config", str(error))
    before = WeatherFeed.objects.filter(pk=feed.pk).first() if feed.pk else None
    if before and before.provider != feed.provider:
        text = "The weather that was stored stays. To start anew, remove this feed and make another."
        yield Consequence("info", "provider", text)


def _version(row: Version) -> Iterator[Consequence]:
    """Finds gaps and overlaps with the versions that are there."""
    if row.valid_from is None:
        return
    # A version that is edited becomes another one: the stored one still counts, from its own moment.
    others = [other for other in _siblings(row) if (other.pk, other.valid_from) != (row.pk, row.valid_from)]
    if not others:
        return
    ends = [other.valid_to for other in others if other.valid_from < row.valid_from]
    if ends and None not in ends and (last := max(end for end in ends if end is not None)) < row.valid_from:
        text = f"Nothing is valid from {last:%Y-%m-%d %H:%M} until then: that time has no {_kind(row)}."
        yield Consequence("warning", "valid_from", text)
    later = min((other.valid_from for other in others if other.valid_from > row.valid_from), default=None)
    if later is not None and row.valid_to is not None and row.valid_to < later:
        text = f"Nothing is valid from {row.valid_to:%Y-%m-%d %H:%M} until {later:%Y-%m-%d %H:%M}."
        yield Consequence("warning", "valid_to", text)
    newest = max(other.valid_from for other in others)
    if row.valid_from <= newest:
        text = "It goes back behind what is in force: settled time since then is settled again."
        yield Consequence("info", "valid_from", text)


def _siblings(row: Version) -> list[Version]:
    """Returns the versions of the same thing."""
    keys = [name for name in ("site_id", "gpu_type") if hasattr(row, name)]
    return list(type(row)._default_manager.filter(**{key: getattr(row, key) for key in keys}))


def _kind(row: Version) -> str:
    return str(row._meta.verbose_name)


def _gpu_rate(rate: GpuRate) -> Iterator[Consequence]:
    if rate.gpu_type and not Gpu.objects.filter(gpu_type=rate.gpu_type).exists():
        yield Consequence("warning", "gpu_type", f"No GPU of the fleet is a {rate.gpu_type}.")
    yield from _version(rate)


def _tariff(tariff: Tariff) -> Iterator[Consequence]:
    if tariff.site_id is not None:
        yield from _version(tariff)


def _cluster(cluster: Cluster) -> Iterator[Consequence]:
    before = Cluster.objects.filter(pk=cluster.pk).first() if cluster.pk else None
    if before and before.site_id != cluster.site_id and before.nodes.exists():
        text = (
            f"{before.nodes.count()} nodes stand in it: their energy so far is of {before.site}. Make another cluster."
        )
        yield Consequence("error", "site", text)


def _not_modelled(name: str, known: Mapping[str, Any]) -> str:
    return f"The engine model does not know '{name}', so that only profiles count. It knows {_list(known)}."


def _list(names: Iterable[str]) -> str:
    return ", ".join(str(name) for name in names)


_OF: Mapping[type[Model], Callable[[Any], Iterator[Consequence]]] = {
    Site: _site,
    Cluster: _cluster,
    Node: _node,
    Gpu: _gpu,
    GpuType: _gpu_type,
    ModelCard: _model_card,
    Service: _service,
    Adapter: _adapter,
    Slo: _slo,
    Pool: _pool,
    RequestClass: _request_class,
    Profile: _profile,
    CarbonFeed: _feed,
    WeatherFeed: _weather_feed,
    Tariff: _tariff,
    GpuRate: _gpu_rate,
    Pue: _version,
}
