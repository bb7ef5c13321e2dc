"""Tags of the site's pages: a state in colour, shape and word, the way around, numbers with their units."""

from __future__ import annotations

from typing import Any

from django import template
from django.template.context import Context
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from tracker.groups import SEE_DASHBOARD, USE_CHAT, is_let_in
from tracker.words import length_in_words

register = template.Library()

KINDS = {
    "good": ("online", "done", "answers", "approved", "works", "accepted"),
    "bad": ("offline", "failed", "lost", "revoked", "banned", "gap", "can't answer", "refused"),
    "busy": ("running", "pending", "paused", "draining", "loading", "proposed", "moving", "left out", "waits"),
}
_KIND_OF = {word: kind for kind, words in KINDS.items() for word in words}
WAY = (  # URL name, title, permission
    ("overview", "Overview", ""),
    ("topology", "Topology", SEE_DASHBOARD),
    ("node-list", "Nodes", SEE_DASHBOARD),
    ("session-list", "Sessions", SEE_DASHBOARD),
    ("chat", "Chat", USE_CHAT),
    ("placement", "Placement", SEE_DASHBOARD),
    ("documentation", "API", ""),
)


@register.simple_tag
def state(word: str, kind: str = "") -> SafeString:
    """{% state "online" %}, or with good, bad, busy or off where the word isn't one of KINDS."""
    return format_html('<span class="state {}">{}</span>', kind or _KIND_OF.get(word, "off"), word)


@register.inclusion_tag("dashboard/parts/navigation.html", takes_context=True)
def navigation(context: Context) -> dict[str, Any]:
    request, user = context.get("request"), context.get("user")
    path = request.path if request else ""
    may = user.has_perm if user else lambda permission: False
    entries = [(name, title) for name, title, permission in WAY if not permission or may(permission)]
    if user and is_let_in(user):
        entries.append(("admin:index", "Admin"))
    return {"entries": [_entry(name, title, path) for name, title in entries]}


def _entry(name: str, title: str, path: str) -> dict[str, Any]:
    url = reverse(name)
    is_here = path == url or (url != "/" and path.startswith(url.rstrip("/") + "/"))
    return {"url": url, "title": title, "current": ("page" if path == url else "true") if is_here else ""}


@register.filter
def ms(value: float | None) -> str:
    """ "0.42 ms", "17 ms", "1.9 s"; a dash for what isn't known."""
    if value is None:
        return "–"
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.2f} ms" if value < 1 else f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"


@register.filter
def span(seconds: float | None) -> str:
    """A length of time, coarse, so that a page says something else only now and then: "8 s", "12 min", "3 h"."""
    return "–" if seconds is None else length_in_words(seconds)


@register.filter
def amount(value: float | None) -> str:
    """Bytes as people say them: "812 MB", "1.4 GB"."""
    if value is None:
        return "–"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}" if value < 10 * size else f"{value / size:.0f} {unit}"
    return f"{value:.0f} B"
