"""Colours, markers and the inline SVG of a matplotlib figure.

Colours are written as CSS variables, so that the page can choose them for light and dark.
"""

from __future__ import annotations

import io
import re
from typing import Any

from dpray.reporting.markup import Html

# Stand-ins matplotlib can draw with; each is replaced by the CSS variable of its name.
PAPER, INK, MUTED, BAD = "#070809", "#010203", "#040506", "#0b0c0d"
_COLOURS = ("#0a0001", "#0a0002", "#0a0003", "#0a0004", "#0a0005", "#0a0006", "#0a0007", "#0a0008")
_VARIABLES = {
    PAPER: "var(--paper)",
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    BAD: "var(--bad)",
    **{colour: f"var(--method-{i})" for i, colour in enumerate(_COLOURS)},
}
_MARKERS = "osD^vP*p"


def look_of(number: int) -> tuple[str, str]:
    """Colour and marker of the method with this number: no two alike among the first 64."""
    rounds, place = divmod(number, len(_COLOURS))
    return _COLOURS[place], _MARKERS[(place + rounds) % len(_MARKERS)]


def settings_of(font: float, salt: str) -> dict[Any, Any]:
    """How matplotlib writes text and ids; with another `salt` ids differ from other plots'."""
    return {
        "svg.fonttype": "none",  # real text: it can be searched, and it takes the page's font
        "svg.hashsalt": salt,
        "text.parse_math": False,
        "font.size": font,
    }


def inline(figure: Any, described_as: str) -> Html:
    """The svg element alone, sized by the page, with a name for those who do not see it."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True)
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    name = described_as.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return Html(f'{opening} role="img" aria-label="{name}">{rest}')
