"""What was decided: epochs, decisions, what people override, studies, batches and webhooks."""

from .batches import Batch, BatchLine, File, FileChunk
from .decisions import ControllerState, Decision, Epoch
from .operations import Approval, LoopPause, Override, ServiceMode
from .outside import IdempotentAnswer, WebhookDelivery, WebhookSubscription
from .studies import Study, StudyFile, StudyRun

__all__ = [
    "Approval",
    "Batch",
    "BatchLine",
    "ControllerState",
    "Decision",
    "Epoch",
    "File",
    "FileChunk",
    "IdempotentAnswer",
    "LoopPause",
    "Override",
    "ServiceMode",
    "Study",
    "StudyFile",
    "StudyRun",
    "WebhookDelivery",
    "WebhookSubscription",
]
