"""Lists the steps from an empty database to serving: what is there, what is missing, and what to do next.

The first-run page and `greenserve doctor` show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from pools.models import ApiKey, Gpu, Instance, ModelCard, Node, Partition, Pool, Service, Site, Slo, Tenant
from scheduler import agents
from scheduler.models import ControllerState
from telemetry.models import CarbonFeed


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `kind`: what to enter next, as the registry calls it; empty: nothing to enter."""

    name: str
    done: bool
    words: str
    kind: str = ""


def steps(now: datetime) -> tuple[Step, ...]:
    """Returns the steps in the order in which one takes them.

    Reads the database and Redis; never raises for what is missing.
    """
    return tuple(step for look in _LOOKS for step in look(now))


def _sites(now: datetime) -> Iterator[Step]:
    names = list(Site.objects.values_list("label", flat=True))
    yield _step("site", names, "Enter a site: where the machines stand, and its zone of the grid.", "sites")


def _feeds(now: datetime) -> Iterator[Step]:
    fed = CarbonFeed.objects.exclude(signal=CarbonFeed.Signal.PRICE)
    without = list(Site.objects.exclude(carbon_feeds__in=fed).values_list("label", flat=True))
    never = [str(feed.site) for feed in fed.filter(last_ok_at=None).select_related("site")]
    if not Site.objects.exists() or without:
        yield Step("carbon feed", False, f"Give {', '.join(without) or 'each site'} a carbon feed.", "feeds")
    elif never:
        text = f"The feeds of {', '.join(never)} have not answered yet: see their pages for the error."
        yield Step("carbon feed", False, text, "")
    else:
        yield Step("carbon feed", True, "Every site has one, and it has answered.")


def _nodes(now: datetime) -> Iterator[Step]:
    names = list(Node.objects.values_list("name", flat=True))
    yield _step("node", names, "Enter a node; its cluster first.", "nodes" if Site.objects.exists() else "clusters")
    without = list(Node.objects.filter(gpus=None).values_list("name", flat=True))
    if names and without:
        yield Step("GPUs", False, f"Enter the GPUs of {_list(without)}.", "gpus")
    elif names:
        yield Step("GPUs", True, f"{Gpu.objects.count()} on {len(names)} nodes.")
    if names:
        silent = set(names) - agents.reporting(agents.connect(), now)
        yield Step("agents", not silent, _silent(silent) if silent else "All nodes report.")


def _silent(names: set[str]) -> str:
    """How their agents are started: those of simulated nodes come with GreenServe, each other machine has its own."""
    simulated = set(Node.objects.filter(name__in=names, simulated=True).values_list("name", flat=True))
    words = []
    if simulated:
        words.append(f"{_list(sorted(simulated))} (simulated) start within seconds; if not: greenserve logs node.NAME.")
    if machines := sorted(names - simulated):
        words.append(f"Let {_list(machines)} join: greenserve node join on each (docs/nodes.md).")
    return f"Not heard of. {' '.join(words)}"


def _models(now: datetime) -> Iterator[Step]:
    names = list(ModelCard.objects.values_list("name", flat=True))
    yield _step("model", names, "Enter the model that is to be served.", "models")
    cut = list(Partition.objects.exclude(classes=None).values_list("name", flat=True))
    words = "Enter a partition and its classes: how requests are distinguished. One class without bounds is enough."
    yield _step("partition", cut, words, "classes" if Partition.objects.exists() else "partitions")


def _services(now: datetime) -> Iterator[Step]:
    services = list(Service.objects.values_list("name", flat=True))
    yield _step("service", services, "Enter a service: the name that clients send.", "services")
    if not services:
        return
    free = list(Service.objects.exclude(slos__in=Slo.objects.all()).values_list("name", flat=True))
    if free:
        yield Step("SLO", False, f"Give {_list(free)} an objective.", "slos")
    else:
        lacking = [f"{own}: {words}." for own in Service.objects.all() if (words := own.lacks_pace(own.limits()))]
        yield Step("SLO", not lacking, " ".join(lacking) or "Each service has one.", "slos")
    out = list(Service.objects.exclude(pools__in=Pool.objects.all()).values_list("name", flat=True))
    words = f"Say where {_list(out)} may run: a pool at each site." if out else "Each service may run somewhere."
    yield Step("pool", not out, words, "pools")


def _keys(now: datetime) -> Iterator[Step]:
    live = ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None).count()
    words = f"{live} are valid." if live else "Make a tenant, and a key for it under Keys."
    yield Step("key", live > 0, words, "tenants" if not live and not Tenant.objects.exists() else "")


def _serving(now: datetime) -> Iterator[Step]:
    planned = ControllerState.objects.filter(kind="carbon", value__has_key="partition").count()
    words = "A plan is in force." if planned else "The first plan is made when nodes report and feeds have answered."
    yield Step("plan", planned > 0, words)
    ready = Instance.objects.filter(state=Instance.State.READY).count()
    coming = Instance.objects.filter(state__in=(Instance.State.PENDING, Instance.State.STARTING)).count()
    waiting = f"{coming} instances are starting." if coming else "None serves yet."
    yield Step("serving", ready > 0, f"{ready} instances serve." if ready else waiting)


def _step(name: str, found: list[str], missing: str, kind: str) -> Step:
    return Step(name, True, f"{len(found)}: {_list(found)}.") if found else Step(name, False, missing, kind)


def _list(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


_LOOKS: tuple[Callable[[datetime], Iterator[Step]], ...] = (
    _sites,
    _feeds,
    _nodes,
    _models,
    _services,
    _keys,
    _serving,
)
