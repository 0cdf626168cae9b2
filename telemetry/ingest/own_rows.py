"""A node speaks for itself alone: rows of its stream about GPUs and instances of other nodes are found here.

The shared stream is looked at no further: only the control plane, and agents of 0.1.0, can write there.
"""

from __future__ import annotations

import numpy as np

from pools import wire
from pools.models import Gpu, Instance
from telemetry.ingest.agent_batches import Ids, node_ids
from telemetry.ingest.batch_rows import Mask

NEWEST_INSTANCES = 5_000


class Owners:
    """Knows whose each GPU and instance is. It keeps what it looked up, and belongs to one thread."""

    def __init__(self) -> None:
        self._nodes = Ids(node_ids)
        self._gpus = Ids(lambda: dict(Gpu.objects.values_list("uuid", "node_id")))
        self._instances = Ids(_nodes_of_instances)
        self._own_labels: dict[wire.GpuLabels, str] = {}  # known to be all of that node

    def foreign(self, node: str, batch: wire.AgentBatch) -> tuple[Mask, list[str]] | None:
        """Finds rows about what other nodes have, and says what is wrong with each; returns None where there is none.

        What nobody knows is nobody's: a node may be deleted while its agent still reports.
        """
        own = self._nodes.get(node) or 0
        labels = batch.gpus.of_what
        whys = [""] * len(labels.gpu_uuids)
        if self._own_labels.get(labels) != node:
            pairs = zip(labels.gpu_uuids, labels.instance_uids, strict=True)
            whys = [self._gpu(own, gpu) or self._instance(own, instance) for gpu, instance in pairs]
            if not any(whys):
                self._remember(labels, node)
        whys += [self._instance(own, row.instance_uid) for row in batch.instances]
        whys += [self._instance(own, row.instance_uid) for row in batch.clocks]
        whys += [""] * len(batch.hosts)
        if not any(whys):
            return None
        return np.array([bool(why) for why in whys]), [why for why in whys if why]

    def _gpu(self, own: int, uuid: str) -> str:
        return f"GPU {uuid} is not of this node" if self._gpus.get(uuid) not in (None, own) else ""

    def _instance(self, own: int, uid: str | None) -> str:
        return f"instance {uid} is not of this node" if self._instances.get(uid) not in (None, own) else ""

    def _remember(self, labels: wire.GpuLabels, node: str) -> None:
        if len(self._own_labels) >= 8_192:
            self._own_labels.clear()
        self._own_labels[labels] = node


def _nodes_of_instances() -> dict[str, int]:
    """Returns the node of each of the newest instances; 0 of one that registered itself."""
    recent = Instance.objects.order_by("-id")[:NEWEST_INSTANCES]
    return {str(uid): node or 0 for uid, node in recent.values_list("uid", "node_id")}
