"""Rows of what was decided: epochs, decisions, interventions, studies, trials, batches and webhooks."""

from .batches import Batch, BatchLine, BatchStatus, File, FileChunk
from .decisions import ControllerState, Decision, DecisionKind, Epoch, SlowLoop
from .idempotent_answers import IdempotentAnswer
from .operations import Approval, ApprovalStatus, ControlMode, LoopPause, Override, OverrideKind, ServiceMode
from .studies import RunState, Study, StudyFile, StudyRun
from .trials import Trial, TrialBlock, TrialState
from .webhooks import DeliveryState, WebhookDelivery, WebhookSubscription

__all__ = [
    "Approval",
    "ApprovalStatus",
    "Batch",
    "BatchLine",
    "BatchStatus",
    "ControlMode",
    "ControllerState",
    "Decision",
    "DecisionKind",
    "DeliveryState",
    "Epoch",
    "File",
    "FileChunk",
    "IdempotentAnswer",
    "LoopPause",
    "Override",
    "OverrideKind",
    "RunState",
    "ServiceMode",
    "SlowLoop",
    "Study",
    "StudyFile",
    "StudyRun",
    "Trial",
    "TrialBlock",
    "TrialState",
    "WebhookDelivery",
    "WebhookSubscription",
]
