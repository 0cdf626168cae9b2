"""Template tags for what a person may do about a decision."""

from __future__ import annotations

from typing import Any

from django import template

from pools.access import rights
from scheduler.models import Decision
from scheduler.operations import undoing

register = template.Library()


@register.simple_tag(takes_context=True)
def undo_of(context: dict[str, Any], decision: Decision) -> str:
    """Says what undoing the decision would do; empty where it cannot be undone, or this person may not."""
    if not rights.has(context["request"].user, rights.Right.OPERATE):
        return ""
    return undoing.undoable(decision)
