"""Tags that draw: figures over time, where layers lie in their model. Each says in words what it shows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from tracker.dashboard.lines import HEIGHT, WIDTH, Line
from tracker.templatetags import meshnet

register = template.Library()

UNITS: dict[str, Callable[[float], str]] = {
    "ms": meshnet.ms,
    "bytes": meshnet.amount,
    "": lambda value: f"{value:,.0f}",
}


@register.simple_tag
def sparkline(line: Line, what: str, span: timedelta, unit: str = "ms") -> SafeString:
    """{% sparkline row.line "round trip" span %}: the line alone, as large as its place."""
    return _picture("sparkline", line.in_words(what, UNITS[unit], span), _drawn(line))


@register.simple_tag
def chart(lines: list[tuple[str, Line]], span: timedelta, unit: str = "ms") -> SafeString:
    """{% chart lines span %}: several lines over one ground, each with what it is. The first is drawn through, the
    second dashed."""
    words = "; ".join(line.in_words(what, UNITS[unit], span) for what, line in lines)
    drawn = format_html("{}" * len(lines), *(_drawn(line, f"line-{number}") for number, (_, line) in enumerate(lines)))
    ground = format_html('<path class="ground" d="M0 0H{0}M0 {1}H{0}M0 {2}H{0}"/>', WIDTH, HEIGHT / 2, HEIGHT)
    return _picture("chart", words, format_html("{}{}", ground, drawn))


@register.simple_tag
def shardbar(start_layer: int | None, end_layer: int | None, num_layers: int | None) -> SafeString:
    """Where the layers lie among all of the model's; empty where that isn't known. The page says it in words beside."""
    if start_layer is None or end_layer is None or not num_layers:
        return SafeString("")
    x, width = WIDTH * start_layer / num_layers, max(2.0, WIDTH * (end_layer - start_layer) / num_layers)
    return format_html(
        '<svg class="shardbar" viewBox="0 0 {} 6" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        '<rect class="ground" width="{}" height="6"/><rect x="{}" width="{}" height="6"/></svg>',
        *(WIDTH, WIDTH, f"{min(x, WIDTH - 2):.1f}", f"{width:.1f}"),
    )


@register.filter
def short(value: float | None) -> str:
    """A large number, about: "812", "1.4 thousand", "23 million"."""
    if value is None:
        return "–"
    for word, size in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {word}" if value < 10 * size else f"{value / size:.0f} {word}"
    return f"{value:.0f}"


@register.filter
def top(line: Line, unit: str = "ms") -> str:
    """What the upper edge of its picture stands for."""
    return UNITS[unit](line.top)


def _drawn(line: Line, name: str = "line-0") -> SafeString:
    if not line.path:
        return SafeString("")
    drawn = format_html('<path class="{}" d="{}" vector-effect="non-scaling-stroke"/>', name, line.path)
    if line.end is None or line.now is None:
        return drawn
    end = "M{:.1f} {:.1f}h0".format(*line.end)
    return format_html('{}<path class="{} end" d="{}" vector-effect="non-scaling-stroke"/>', drawn, name, end)


def _picture(name: str, words: str, drawn: SafeString) -> SafeString:
    """The words twice: for those who hear the page, and for those who point at the picture."""
    return format_html(
        '<svg class="{0}" role="img" aria-label="{1}" viewBox="0 0 {2} {3}" preserveAspectRatio="none">'
        "<title>{1}</title>{4}</svg>",
        *(name, words, WIDTH, HEIGHT, drawn),
    )
