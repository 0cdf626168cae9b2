"""Template tags of pages with figures."""

from __future__ import annotations

from django import template
from django.templatetags.static import static

from frontend.charts.plot import SCRIPT

register = template.Library()


@register.simple_tag
def plotly_script() -> str:
    """Returns the address of the script that draws figures."""
    return static(SCRIPT)
