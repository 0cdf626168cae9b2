"""A figure as a page of its own, for who has no dashboard open: it needs the browser and the script beside it alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC
from html import escape
from pathlib import Path
from string import Template

from .plot import SCRIPT
from .plot_style import FONT, THEMES, Figure, Look

STATIC = Path(__file__).parents[1] / "static"
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; }
body { margin: 16px; font: 14px $font; background: $light; }
h1 { font-size: 16px; font-weight: 600; }
@media (prefers-color-scheme: dark) { body { background: $dark; } }
</style>
<script src="$script"></script>
</head>
<body>
<h1>$title</h1>
<div id="figure" role="img" aria-label="$title"></div>
<p>Source: $source</p>
<script>
const figures = $figures;
const dark = matchMedia("(prefers-color-scheme: dark)");
const draw = () => {
  const { data, layout } = figures[dark.matches ? "dark" : "light"];
  return Plotly.react("figure", data, layout, { responsive: true, displaylogo: false });
};
dark.addEventListener("change", draw);
draw();
</script>
</body>
</html>
""")


def write_page(target: Path, draw: Callable[[Look], Figure]) -> None:
    """Writes a page that follows its reader's theme, and once a folder the script that draws. Raises OSError."""
    drawn = {name: draw(Look(theme, UTC, "UTC")) for name, theme in THEMES.items()}
    meta = drawn["light"]["meta"]
    figures = {name: {part: figure[part] for part in ("data", "layout")} for name, figure in drawn.items()}
    text = PAGE.substitute(
        title=escape(meta["question"]),
        source=escape(meta["source"]),
        font=FONT,
        light=THEMES["light"].paper,
        dark=THEMES["dark"].paper,
        script=Path(SCRIPT).name,
        figures=json.dumps(figures, allow_nan=False, ensure_ascii=False).replace("<", "\\u003c"),
    )
    target.write_text(text, encoding="utf-8")
    script = target.parent / Path(SCRIPT).name
    if not script.exists():
        shutil.copyfile(STATIC / SCRIPT, script)
