"""Tasks that the scheduler sends by name to a node's queue."""

from __future__ import annotations

import logging
from typing import Any

from .app import app

logger = logging.getLogger(__name__)


@app.task(name="pools.agent.tasks.reconcile", bind=True, expires=60.0)
def reconcile(self: Any, decision_id: int | None = None) -> None:
    """A nudge: the desired state has changed, look now. What to do is in the desired state, so twice does no harm."""
    logger.info("nudged by decision %s", decision_id)
    self.app.bell.nudge()
