"""Other metrics endpoints, as a list for Prometheus' HTTP service discovery (http_sd_config)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from frontend import health
from pools.models import Node


def targets() -> list[dict[str, Any]]:
    """Returns gateways, agents and engines as they report themselves now. Makes one query and a few Redis calls."""
    nodes = dict(Node.objects.values_list("name", "cluster__site__name"))
    messages = health.read_messages(list(nodes))
    found = [_group(settings.GREENSERVE_GATEWAY_URL, "gateway")]
    if settings.ENV.picker_metrics_port is not None:
        found.append(_group(f"http://{settings.ENV.picker_host}:{settings.ENV.picker_metrics_port}", "picker"))
    for name, agent in sorted(messages.agents.items()):
        where = {"node": name, "site": nodes[name]}
        if agent.metrics_url:
            found.append(_group(agent.metrics_url, "agent", **where))
        found += _engines(agent.instances, where)
    return found


def _engines(instances: list[Any], where: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yields vLLM's own endpoints, each engine named by its instance."""
    for instance in instances:
        if instance.url and instance.state in ("ready", "draining"):
            labels = {**where, "instance_uid": instance.uid, "model": instance.model, "gpu_type": instance.gpu_type}
            yield _group(instance.url, "engine", **labels)


def _group(url: str, kind: str, **labels: str) -> dict[str, Any]:
    parts = urlsplit(url)
    path = (parts.path.rstrip("/") or "").removesuffix("/metrics") + "/metrics"
    return {
        "targets": [parts.netloc],
        "labels": {"__metrics_path__": path, "__scheme__": parts.scheme, "kind": kind, **labels},
    }
