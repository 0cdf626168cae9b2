"""Template tags that every page shares: the rail, links that keep what is chosen, headings that sort."""

from __future__ import annotations

from typing import Any

from django import template
from django.http import HttpRequest

from frontend import navigation

register = template.Library()


@register.simple_tag(takes_context=True)
def rail(context: dict[str, Any]) -> tuple[navigation.Group, ...]:
    """Returns the groups of the navigation, for the person who looks at the page."""
    request: HttpRequest = context["request"]
    return navigation.groups(request)


@register.simple_tag(takes_context=True)
def link(context: dict[str, Any], **changes: Any) -> str:
    """Returns the `?...` of this page with some parameters changed; an empty value removes one."""
    query = context["request"].GET.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value not in (None, ""):
            query[name] = str(value)
    return f"?{query.urlencode()}"
