"""What a person would call a broken chart: words that lie on each other or are cut off, and nothing drawn."""

from __future__ import annotations

from playwright.sync_api import Page

WORDS = ".xtick text, .ytick text, .xtitle, .ytitle, .legendtext, .annotation-text, .textpoint text"
MARKS = ".barlayer .point path, .scatterlayer .js-line, .scatterlayer .point, .heatmaplayer image"
FOUND = """([words, marks]) => {
    const found = [];
    for (const chart of document.querySelectorAll("[data-chart]")) {
        const name = chart.dataset.chart, plot = chart.querySelector(".plot");
        if (plot.hidden || !plot.classList.contains("js-plotly-plot")) continue;
        const whole = plot.getBoundingClientRect();
        const said = [...plot.querySelectorAll(words)]
            .map((word) => ({ text: word.textContent.trim(), box: word.getBoundingClientRect() }))
            .filter(({ text, box }) => text && box.width);
        for (const [n, { text, box }] of said.entries()) {
            const sideways = Math.max(whole.left - box.left, box.right - whole.right);
            const out = Math.max(sideways, whole.top - box.top, box.bottom - whole.bottom);
            if (out > 1) found.push(`${name}: "${text}" is cut off by ${Math.round(out)} px`);
            for (const other of said.slice(n + 1)) {
                const wide = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left);
                const high = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
                if (wide > 3 && high > 3) found.push(`${name}: "${text}" lies on "${other.text}"`);
            }
        }
        if (!plot.querySelector(marks)) found.push(`${name}: nothing is drawn`);
    }
    return found;
}"""


def complaints(page: Page) -> list[str]:
    """Returns a sentence for each flaw of the charts that are drawn; those that say that they are empty have none.

    Charts are drawn anew when a page's width has changed: what is well within three seconds is no flaw.
    """
    for _ in range(30):
        found: list[str] = page.evaluate(FOUND, [WORDS, MARKS])
        if not found:
            break
        page.wait_for_timeout(100)
    return found
